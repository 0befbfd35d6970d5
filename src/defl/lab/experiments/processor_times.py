"""Processor time of running nodes and of their two child processes, sampled from outside (Linux).

A sample costs about a microsecond per process: the nodes are not asked, and do not notice.
"""

import os
import time
from collections.abc import Sequence

import numpy as np

from defl.lab.experiments.paper.memory import family

KINDS = ("node", "client", "arithmetic")
LOOK_EVERY_S = 0.25  # for children that have not started yet


class ProcessorTimes:
    """Call `sample` repeatedly (sampling.py) while the nodes run; then ask `used`."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._nodes = pids
        self._kinds: dict[int, str] = {}
        self._last: dict[int, float] = {}
        self._look_at = 0.0
        self._at: list[float] = []
        self._seconds: list[tuple[float, ...]] = []  # of all processes of each kind

    def used(self, start: float, end: float) -> dict[str, float]:
        """Seconds of each kind of process between two times of the wall clock, mean per node."""
        series = np.array(self._seconds).T
        return {
            kind: float(np.diff(np.interp([start, end], self._at, seconds))[0]) / len(self._nodes)
            for kind, seconds in zip(KINDS, series, strict=True)
        }

    def sample(self) -> None:
        now = time.time()
        complete = all(self._count(kind) == len(self._nodes) for kind in KINDS)
        if not complete and now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            self._kinds = kinds_of(self._nodes)
        for pid in self._kinds:
            self._last[pid] = _processor_s(pid, self._last.get(pid, 0.0))
        self._at.append(now)
        self._seconds.append(tuple(self._total(kind) for kind in KINDS))

    def _count(self, kind: str) -> int:
        return list(self._kinds.values()).count(kind)

    def _total(self, kind: str) -> float:
        return sum(self._last[pid] for pid, known in self._kinds.items() if known == kind)


def kinds_of(nodes: Sequence[int]) -> dict[int, str]:
    """These nodes' processes, and what each of them is."""
    kinds = dict.fromkeys(nodes, "node")
    for node in nodes:
        for child in family([node]) - {node}:
            kinds[child] = "client" if _is_nicer(child, node) else "arithmetic"
    return kinds


def _is_nicer(child: int, node: int) -> bool:
    """Votes have priority over the client, and over nothing else."""
    try:
        return os.getpriority(os.PRIO_PROCESS, child) > os.getpriority(os.PRIO_PROCESS, node)
    except ProcessLookupError:
        return False


def _processor_s(pid: int, before: float) -> float:
    """The clock of clock_getcpuclockid(3); of a process that has ended, what was read before."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return before
