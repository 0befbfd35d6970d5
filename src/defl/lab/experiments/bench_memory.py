"""Measures the peak memory of real nodes that train a large model, and how long rounds take.

A node is three processes: the node itself, its client and its arithmetic. Their memory is sampled
from outside and summed at each moment. Two parts are told apart: a node's own memory, and pages of
the files that it maps (blobs), which the system drops and reads again when memory is short.
"""

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from defl.committee import Timing
from defl.lab.experiments.paper.memory import ResidentMemory, resident_memory
from defl.lab.experiments.processes import Nodes
from defl.lab.experiments.processor_times import KINDS, kinds_of
from defl.lab.experiments.sampling import sampled

LIMIT_S = 7200.0
SAMPLE_EVERY_S = 0.1
LOOK_EVERY = 10  # samples; for processes that have started since
GRACE_S = 600.0
GST_LT_S = 1800.0  # rounds close because all members have updated
# Beside the models: three processes of Python with their libraries, the transport's queues, and
# what the C library's allocator keeps (node/work/environment.py).
CONSTANT_BYTES = 512 * 2**20
MODELS_MAX = 2  # own memory in models: what the client trains, and the row that it becomes


@dataclass(frozen=True, slots=True)
class Peaks:
    """Of one node."""

    own_bytes: int
    mapped_bytes: int
    own_by_kind: Mapping[str, int]  # not all at one moment


class MemoryPeaks:
    """Call `sample` repeatedly (sampling.py) while the nodes run; then ask `peaks`."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self._peaks = {node: Peaks(0, 0, dict.fromkeys(KINDS, 0)) for node in nodes}
        self._kinds: dict[int, dict[int, str]] = {}
        self._samples = itertools.count()

    @property
    def peaks(self) -> tuple[Peaks, ...]:
        return tuple(self._peaks.values())

    def sample(self) -> None:
        if next(self._samples) % LOOK_EVERY == 0:
            self._kinds = {node: kinds_of([node]) for node in self._peaks}
        for node, before in self._peaks.items():
            memory = [(kind, resident_memory(pid)) for pid, kind in self._kinds[node].items()]
            self._peaks[node] = higher(before, memory)


def higher(before: Peaks, now: Sequence[tuple[str, ResidentMemory]]) -> Peaks:
    """The peaks after a sample of a node's processes."""
    by_kind = {
        kind: max(peak, sum(memory.own_bytes for other, memory in now if other == kind))
        for kind, peak in before.own_by_kind.items()
    }
    return Peaks(
        max(before.own_bytes, sum(memory.own_bytes for _, memory in now)),
        max(before.mapped_bytes, sum(memory.mapped_bytes for _, memory in now)),
        by_kind,
    )


def bench_memory(count: int, megabytes: float, rounds: int, aggregation: str) -> dict[str, Any]:
    values = int(megabytes * 1e6) // 4
    size = 4 * values
    with tempfile.TemporaryDirectory(prefix="defl-bench-") as scratch:
        nodes = Nodes(
            Path(scratch),
            count,
            rounds,
            values=values,
            timing=Timing(gst_lt_min_s=GST_LT_S, gst_lt_max_s=GST_LT_S, grace_s=GRACE_S),
            aggregation=aggregation,
        )
        try:
            nodes.start()
            memory = MemoryPeaks([nodes.pid(member) for member in nodes.members])
            with sampled(memory.sample, SAMPLE_EVERY_S):
                nodes.finish(LIMIT_S)
            wrong = nodes.judge()
            seconds = round_seconds(nodes.log(0))
            disk = max(state.disk_bytes for m in nodes.members if (state := nodes.status(m)))
        finally:
            nodes.close()
    own = max(peaks.own_bytes for peaks in memory.peaks)
    bound = MODELS_MAX * size + CONSTANT_BYTES
    if own > bound:
        wrong.append(
            f"a node took {own} bytes of memory, {MODELS_MAX} models and {CONSTANT_BYTES} bytes "
            f"are {bound}"
        )
    return {
        "nodes": count,
        "mb": size / 1e6,
        "aggregation": aggregation,
        "rounds": rounds,
        "seconds_each": seconds,
        "own_peak_mb": own / 1e6,
        "own_peak_models": own / size,
        "own_peak_mb_by_process": {
            kind: max(peaks.own_by_kind[kind] for peaks in memory.peaks) / 1e6 for kind in KINDS
        },
        "bound_mb": bound / 1e6,
        "mapped_peak_mb": max(peaks.mapped_bytes for peaks in memory.peaks) / 1e6,
        "disk_mb": disk / 1e6,
        "wrong": wrong,
    }


def round_seconds(log: Sequence[Mapping[str, Any]]) -> list[float]:
    """Of each round from close to close, training included; the first from the node's start."""
    closed = [line["time"] for line in log if line["event"] == "round closed"]
    return [
        round(after - before, 1) for before, after in itertools.pairwise([log[0]["time"], *closed])
    ]
