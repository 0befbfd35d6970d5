"""Many rounds of a 1 MB model on real nodes: disk and memory stay flat.

    python tests/endurance/long.py [--nodes 4] [--rounds 300]

Prints the disk and memory of node 0 after a tenth of the rounds, half of them, and at the end.
Fails if the last figure exceeds the first by more than a quarter.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from defl.committee import Timing
from defl.lab.experiments.processes import Nodes

VALUES = 250_000
GROWTH_MAX = 1.25
LIMIT_S = 1800.0


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * 4096


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=300)
    chosen = parser.parse_args()
    timing = Timing(gst_lt_min_s=30.0, grace_s=30.0)
    held = []
    with tempfile.TemporaryDirectory(prefix="defl-long-") as folder:
        nodes = Nodes(Path(folder) / "n", chosen.nodes, chosen.rounds, values=VALUES, timing=timing)
        started = time.monotonic()
        try:
            nodes.start()
            for due in (chosen.rounds // 10, chosen.rounds // 2, chosen.rounds - 2):
                nodes.wait(lambda due=due: nodes.round(0) >= due, LIMIT_S)
                disk = nodes.status(0).disk_bytes
                memory = resident_bytes(nodes.pid(0))
                held.append((disk, memory))
                print(f"round {due}: disk {disk} bytes, memory {memory} bytes", flush=True)
            nodes.finish(LIMIT_S)
            violations = nodes.judge()
        finally:
            nodes.close()
    for name, first, last in zip(("disk", "memory"), held[0], held[-1], strict=True):
        if last > first * GROWTH_MAX:
            violations.append(f"{name} grew from {first} to {last} bytes")
    took = time.monotonic() - started
    verdict = ", ".join(violations) or "ok"
    print(f"{chosen.nodes} nodes, {chosen.rounds} rounds in {took:.0f} s: {verdict}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
