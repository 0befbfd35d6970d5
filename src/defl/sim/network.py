"""When, and whether, a frame arrives: latency, bandwidth, loss, duplication, cuts, censors.

Small messages and chunks travel on lanes of their own, as on the real connections: a blob takes
its time on a link, a vote does not wait for it. A member with a line of its own sends its chunks to
all others one after the other, and receives them so.
"""

import random
from collections.abc import Callable

from defl.ids import NodeId
from defl.sim.conditions import SLOWNESS, Conditions


class Network:
    def __init__(
        self, conditions: Conditions, rng: random.Random, is_calm: Callable[[], bool]
    ) -> None:
        self._conditions = conditions
        self._cuts = conditions.cuts
        self._is_lossy = conditions.loss > 0 or conditions.duplication > 0
        self._rng = rng
        self._is_calm = is_calm
        self._free_at: dict[tuple[NodeId, NodeId], float] = {}  # of each link's lane for chunks
        self._lines = {line.member: line for line in conditions.lines}
        self._up_free_at: dict[NodeId, float] = {}
        self._down_free_at: dict[NodeId, float] = {}

    def arrivals(
        self, source: NodeId, target: NodeId, size: int, *, heavy: bool, now: float
    ) -> list[float]:
        """When the copies of a frame sent now arrive; empty if it is lost."""
        conditions, rng = self._conditions, self._rng
        if self._cuts and self.cuts(source, target, now):
            return []
        faulty = self._is_lossy and not self._is_calm()
        if faulty and rng.random() < conditions.loss:
            return []
        copies = 2 if faulty and rng.random() < conditions.duplication else 1
        sent_at = self._through_link(source, target, size, now) if heavy else now
        return [sent_at + self._delay(source) for _ in range(copies)]

    def cuts(self, source: NodeId, target: NodeId, now: float) -> bool:
        return any(
            cut.start_s <= now < cut.end_s and cut.cuts(source, target) for cut in self._cuts
        )

    def censors(self, kind: str, source: NodeId, target: NodeId, now: float) -> bool:
        if not self._conditions.censors:
            return False
        return any(
            censor.start_s <= now < censor.end_s and censor.drops(kind, source, target)
            for censor in self._conditions.censors
        )

    def has_line(self, member: NodeId) -> bool:
        return member in self._lines

    def received(self, target: NodeId, size: int, now: float) -> float:
        """When a chunk, whose last byte reaches the target's line now, is through that line."""
        takes_s = size / self._lines[target].down_bytes_s
        begins_at = max(now - takes_s, self._down_free_at.get(target, 0.0))
        self._down_free_at[target] = begins_at + takes_s
        return begins_at + takes_s

    def _through_link(self, source: NodeId, target: NodeId, size: int, now: float) -> float:
        line = self._lines.get(source)
        if line is not None:
            sent_at = max(now, self._up_free_at.get(source, 0.0)) + size / line.up_bytes_s
            self._up_free_at[source] = sent_at
            return sent_at
        sent_at = max(now, self._free_at.get((source, target), 0.0))
        sent_at += size / self._conditions.bandwidth_bytes_s
        self._free_at[source, target] = sent_at
        return sent_at

    def _delay(self, source: NodeId) -> float:
        conditions = self._conditions
        delay = conditions.latency_s + self._rng.expovariate(1.0) * conditions.jitter_s
        return delay * SLOWNESS if source in conditions.slow else delay
