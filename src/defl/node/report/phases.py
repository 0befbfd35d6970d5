"""How a node spends a round: its phases, in seconds since the round opened.

Times are those of one clock that only goes forward; only their differences count.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate

from msgspec import Struct

# The open round, the one whose model is made, and one that was late.
ROUNDS_KEPT = 3


class Phase(StrEnum):
    """What this node did in a round, in this order."""

    PREPARE = "prepare"  # fetch and aggregate the model of the round before
    TRAIN = "train"
    CERTIFY = "certify"  # send the update until a quorum has stored it and it is in the log
    CLOSE = "close"  # wait for the other members' updates
    FETCH = "fetch"  # get the updates that this node does not have yet
    AGGREGATE = "aggregate"


class PhaseTime(Struct, frozen=True):
    phase: Phase
    start_s: float
    end_s: float | None = None  # None: it goes on


@dataclass(slots=True)
class _Marks:
    """When what happened in a round; None: not yet, or not while this process ran."""

    prepared: float | None = None  # the model to train from is ready
    training: float | None = None
    trained: float | None = None
    committed: float | None = None
    opened: float | None = None  # known when the round has closed
    closed: float | None = None
    aggregating: float | None = None
    aggregated: float | None = None


class PhaseClock:
    """Is told what happens when it happens; knows the newest rounds."""

    def __init__(self) -> None:
        self._marks: dict[int, _Marks] = {}

    def training(self, round_: int, now: float) -> None:
        """The first attempt counts: a failed training is a part of the phase."""
        marks = self._of(round_)
        marks.training = now if marks.training is None else marks.training

    def trained(self, round_: int, now: float) -> None:
        self._of(round_).trained = now

    def committed(self, round_: int, now: float) -> None:
        """This node's update is in the log."""
        self._of(round_).committed = now

    def closed(self, round_: int, opened_at: float, now: float) -> None:
        """This node has seen the whole round."""
        marks = self._of(round_)
        marks.opened, marks.closed = opened_at, now

    def aggregating(self, round_: int, now: float) -> None:
        marks = self._of(round_)
        marks.aggregating = now if marks.aggregating is None else marks.aggregating

    def aggregated(self, round_: int, now: float) -> None:
        self._of(round_).aggregated = now
        self._of(round_ + 1).prepared = now

    def closed_round(self, round_: int) -> list[PhaseTime]:
        """Empty if this node has not seen the round from its opening to its close."""
        marks = self._of(round_)
        return [] if marks.opened is None else _phases(marks, marks.opened)

    def open_round(
        self, round_: int, opened_at: float, *, has_model: bool, has_update: bool
    ) -> list[PhaseTime]:
        """`has_model`: there is a model to train from; `has_update`: this node's update is in.
        After a restart the clock does not know since when."""
        marks = self._of(round_)
        prepared = opened_at if has_model and marks.prepared is None else marks.prepared
        committed = opened_at if has_update and marks.committed is None else marks.committed
        return _phases(replace(marks, prepared=prepared, committed=committed), opened_at)

    def _of(self, round_: int) -> _Marks:
        marks = self._marks.setdefault(round_, _Marks())
        for old in sorted(self._marks)[:-ROUNDS_KEPT]:
            del self._marks[old]
        return marks


def _phases(marks: _Marks, opened_at: float) -> list[PhaseTime]:
    """Each begins with its mark and lasts until the next one begins. A training that outlasts the
    round is cut off where the round closes."""
    idle_since = marks.prepared if marks.training is None else None  # a node that does not train
    starts = [
        (Phase.PREPARE, opened_at),
        (Phase.TRAIN, marks.training),
        (Phase.CERTIFY, marks.trained),
        (Phase.CLOSE, idle_since if marks.committed is None else marks.committed),
    ]
    if marks.closed is not None:
        closed = marks.closed
        starts = [(phase, at) for phase, at in starts if at is not None and at < closed]
        starts += [(Phase.FETCH, closed), (Phase.AGGREGATE, marks.aggregating)]
    known = [(phase, at) for phase, at in starts if at is not None]
    seconds = (round(at - opened_at, 3) for _, at in known)  # milliseconds are enough
    times = list(accumulate(seconds, max, initial=0.0))[1:]
    ended = marks.aggregated
    end = None if ended is None else max(round(ended - opened_at, 3), times[-1])
    return [
        PhaseTime(phase, start, end)
        for (phase, _), start, end in zip(known, times, [*times[1:], end], strict=True)
        if end is None or end > start
    ]
