"""Real nodes, killed with SIGKILL again and again: every round closes and nothing is lost.

    python tests/endurance/kill.py [--nodes 7] [--rounds 20] [--seed 1]

Three trials: single nodes killed at random moments, all nodes killed at once, and one node away
for more than tau rounds.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from defl.lab.experiments.processes import Nodes

LIMIT_S = 900.0


def one_at_a_time(nodes: Nodes, rng: random.Random, pause_s: float) -> None:
    """Kills one node every few seconds and restarts it a little later."""
    nodes.start()
    last = nodes.rounds - 1
    until = time.monotonic() + LIMIT_S
    while min(nodes.round(member) for member in nodes.members) < last:
        if time.monotonic() > until:
            raise AssertionError("the rounds do not close")
        time.sleep(rng.uniform(0.2, pause_s))
        member = rng.choice(nodes.members)
        if nodes.running(member):
            nodes.kill(member)
            time.sleep(rng.uniform(0.0, pause_s / 2))
            nodes.start(member)
    nodes.finish(LIMIT_S)


def all_at_once(nodes: Nodes, rng: random.Random, times: int) -> None:
    nodes.start()
    for number in range(1, times + 1):
        due = number * nodes.rounds // (times + 1)
        nodes.wait(lambda due=due: max(nodes.round(m) for m in nodes.members) >= due, LIMIT_S)
        time.sleep(rng.uniform(0.0, 1.0))
        nodes.kill(*nodes.members)
        nodes.start()
    nodes.finish(LIMIT_S)


def one_away(nodes: Nodes, tau: int) -> None:
    """One node misses more rounds than are kept, and catches up from a snapshot."""
    away = 0
    nodes.start()
    nodes.wait(lambda: nodes.round(away) >= 1, LIMIT_S)
    nodes.kill(away)
    gone_at = nodes.round(1)
    nodes.wait(lambda: nodes.round(1) > gone_at + tau + 1, LIMIT_S)
    nodes.start(away)
    nodes.finish(LIMIT_S)


def trial(name: str, count: int, rounds: int, rng: random.Random, pause_s: float = 3.0) -> bool:
    with tempfile.TemporaryDirectory(prefix="defl-endurance-") as folder:
        nodes = Nodes(Path(folder), count, rounds, train_s=0.5)
        started = time.monotonic()
        try:
            if name == "one at a time":
                one_at_a_time(nodes, rng, pause_s)
            elif name == "all at once":
                all_at_once(nodes, rng, times=3)
            else:
                one_away(nodes, tau=2)
            violations = nodes.judge()
        except AssertionError as failed:
            violations = [str(failed)]
        finally:
            nodes.close()
        took = time.monotonic() - started
        print(f"{name}: {count} nodes, {rounds} rounds, {nodes.kills} kills, {took:.0f} s: "
              f"{'ok' if not violations else 'FAILED'}", flush=True)  # fmt: skip
        for line in violations:
            print(f"    {line}")
    return not violations


TRIALS = ("one at a time", "all at once", "one away for more than tau rounds")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    rng = random.Random(chosen.seed)  # noqa: S311 - reproducible on purpose
    results = [trial(name, chosen.nodes, chosen.rounds, rng) for name in TRIALS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
