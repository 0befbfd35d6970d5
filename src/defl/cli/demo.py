"""`defl demo`: real nodes on this machine, an attacker among them, and what comes of it."""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from defl.cli.demo_view import Lines, live_view, megabytes, percent
from defl.lab.experiments.demo import (
    ATTACK,
    ATTACKS_SHOWN,
    VICTIM,
    Demo,
    DemoPlan,
    Outcome,
    name_of,
)
from defl.lab.experiments.demo_plot import drawing
from defl.node.setup.local import new_folder

EXAMPLES = """
Examples:

\b
  defl demo                                7 nodes, one lies, one is killed
  defl demo --attack same_value --json     another attack, one JSON object
  defl demo --nodes 4 --rounds 6
  defl demo --plot accuracy.png            also draw accuracy by round

Needs scikit-learn for its digits and rich for the live view: the extra `demo` (README, Install).

Exit code 0: all rounds closed and all honest nodes hold the same model; 1: not so; 2: it cannot be
run as asked, and the message says what to do; 130: interrupted.
"""
# Whatever goes wrong, a demonstration ends; on two cores it takes less than half a minute.
LIMIT_S = 300.0


@click.command(epilog=EXAMPLES)
@click.option("--nodes", default=7, show_default=True, help="Members; the last one attacks.")
@click.option("--rounds", default=10, show_default=True, help="Rounds of learning, at least 4.")
@click.option(
    "--attack",
    type=click.Choice(ATTACKS_SHOWN),
    default=ATTACK,
    show_default=True,
    help="What the last node does to its updates.",
)
@click.option("--seed", default=1, show_default=True, help="Of data, weights and batches.")
@click.option("--out", type=click.Path(path_type=Path), help="Where the nodes' folders are made.")
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Draw accuracy by round (.png, .svg)."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object at the end instead of text.")
def demo(
    nodes: int,
    rounds: int,
    attack: str,
    seed: int,
    out: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Train on handwritten digits with an attacker among real nodes on this machine.

    Every node is a process with its own key, disk and TLS connections. The last one's client
    poisons each update; another node is killed with SIGKILL half-way and started again. FedAvg with
    the same clients, data and seed is run beside it in one loop, with the attack and without.
    """
    plan = DemoPlan(nodes, rounds, attack, seed)
    draw = None if plot is None else drawing(plot)
    started = time.monotonic()
    shown = new_folder(out or Path(tempfile.mkdtemp(prefix="defl-demo-")))
    course = Demo(plan, shown)
    tell = Lines(plan, err=as_json)
    tell.opening(shown)
    attacked = course.by_server(attacked=True)
    alone = course.by_server(attacked=False)
    with live_view(plan, tell, wanted=not as_json) as show:
        outcome = course.run(show, LIMIT_S)
    report = _report(plan, outcome, attacked, alone, shown, time.monotonic() - started)
    if draw is not None:
        draw(attacked, outcome.told.accuracy, alone)
        tell.say(f"wrote {plot}")
    click.echo(json.dumps(report, indent=1) if as_json else _text(plan, report))
    sys.exit(0 if report["digests_equal"] and report["rounds_closed"] == rounds else 1)


def _report(
    plan: DemoPlan,
    outcome: Outcome,
    attacked: tuple[float, ...],
    alone: tuple[float, ...],
    folder: Path,
    seconds: float,
) -> dict[str, Any]:
    return {
        "nodes": plan.nodes,
        "rounds": plan.rounds,
        "rounds_closed": outcome.rounds_closed,
        "attack": plan.attack,
        "attacker": name_of(plan.attacker),
        "killed": name_of(VICTIM),
        "accuracy": {
            "fedavg_attacked": attacked[-1],
            "defl_attacked": outcome.accuracy,
            "no_attack": alone[-1],
        },
        "accuracy_by_round": {
            "fedavg_attacked": dict(enumerate(attacked, 1)),
            "defl_attacked": outcome.told.accuracy,
            "no_attack": dict(enumerate(alone, 1)),
        },
        "digests_equal": outcome.digests_equal,
        "digests": outcome.digests,
        "left_out": outcome.told.left_out,
        "commit_ms": outcome.commit_ms,
        "bytes_sent": outcome.bytes_sent,
        "bytes_received": outcome.bytes_received,
        "disk_bytes": outcome.disk_bytes,
        "folder": str(folder),
        "wall_s": round(seconds, 2),
    }


def _text(plan: DemoPlan, report: dict[str, Any]) -> str:
    accuracy, attacker, folder = report["accuracy"], report["attacker"], report["folder"]
    digest = next(iter(report["digests"].values()))
    same = f"the same at all {len(report['digests'])} honest nodes"
    counts: dict[str, int] = {}
    for nodes in report["left_out"].values():
        for node in nodes:
            counts[node] = counts.get(node, 0) + 1
    left_out = ", ".join(f"{node} in {count}" for node, count in sorted(counts.items()))
    return "\n".join(
        [
            "",
            f"accuracy on test images after round {plan.rounds}",
            (
                f"  FedAvg, {attacker} attacks     {percent(accuracy['fedavg_attacked']):>7}"
                "   a server's loop in this process"
            ),
            (
                f"  DeFL, {attacker} attacks       {percent(accuracy['defl_attacked']):>7}"
                f"   {plan.nodes} real nodes, {report['killed']} killed half-way"
            ),
            (
                f"  FedAvg, nobody attacks     {percent(accuracy['no_attack']):>7}"
                "   a server's loop; same data and seed"
            ),
            "",
            f"rounds    {report['rounds_closed']} of {plan.rounds} closed",
            f"model     {digest}",
            f"          {same if report['digests_equal'] else 'THE DIGESTS DIFFER'}",
            f"left out  {left_out or 'nobody'} of {plan.rounds} rounds",
            (
                f"commit    {report['commit_ms'].get('p50', 0):.0f} ms (median), "
                f"{report['commit_ms'].get('p99', 0):.0f} ms (p99)"
            ),
            (
                f"per node  sent {megabytes(report['bytes_sent'])}, received "
                f"{megabytes(report['bytes_received'])}, stored {megabytes(report['disk_bytes'])}"
            ),
            f"took      {report['wall_s']:.0f} s",
            "",
            "next",
            f"  defl verify {folder}/node-0/proven.safetensors \\",
            f"      {folder}/node-0/round-certificate.json {folder}/federation.toml",
            f"  defl export {folder}/node-0 digits.npz",
            "  defl demo --attack same_value",
            "  defl new my-project && defl run my-project",
        ]
    )
