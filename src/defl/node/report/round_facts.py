"""What a node writes down about its rounds: history.jsonl, one fact per line, and the facts of one
round taken together.

A fact is written when it becomes known, so a crash loses nothing; a node that restarts may write
one again, and the later line counts. Members are given by name. Times of day are seconds since
1970; everything else is in seconds since the round opened, as seen from this node. Nothing in the
node depends on this file, and it is never read by the node itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from defl.node.report.phases import PhaseTime
from defl.node.report.status import BY_RULE, MemberShare, Metrics

# Readers turn it into a date: a line with one that no calendar has is damaged.
TimeOfDay = Annotated[float, Meta(ge=0, lt=253_402_300_800)]  # before the year 10000


class LateMember(Struct, frozen=True):
    """An expected member that the round closed without."""

    waited_s: float
    usual_s: float  # what it usually needs; 0: unknown


class Started(Struct, frozen=True, tag="started"):
    """The node's process has started; who the members are."""

    at: TimeOfDay
    round: int  # closed so far
    epoch: int
    first_round: int  # of the epoch
    members: list[str]


class EpochStarted(Struct, frozen=True, tag="epoch"):
    at: TimeOfDay
    epoch: int
    first_round: int
    members: list[str]


class Closed(Struct, frozen=True, tag="closed"):
    at: TimeOfDay
    round: int
    lasted_s: float | None  # None: this node has not seen it open
    arrivals: dict[str, float | None]  # whose update is in; None: this node was away
    missing: list[str]
    late: dict[str, LateMember] = {}  # of the missing: those that the round was kept open for
    deadline_s: float | None = None  # of those awaited last, met or not; None: nobody was awaited
    commit_ms: float | None = None  # the newest median


class RoundJudged(Struct, frozen=True, tag="judged"):
    """The rule's verdict: the round is aggregated."""

    round: int
    reason: str  # in the rule's own words
    members: dict[str, MemberShare]


class Timed(Struct, frozen=True, tag="timed"):
    """How this node spent the round; written when its model is ready."""

    round: int
    phases: list[PhaseTime]


class RoundReady(Struct, frozen=True, tag="ready"):
    round: int
    digest: str


class Measured(Struct, frozen=True, tag="measured"):
    """This node's own evaluation of the round's model."""

    round: int
    metrics: Metrics
    seconds: float


class OwnTraining(Struct, frozen=True, tag="trained"):
    round: int
    metrics: Metrics


class Proven(Struct, frozen=True, tag="proven"):
    round: int
    digest: str
    signatures: int
    members: int  # of the epoch in which they signed; 0: not known any more
    needed: int


RoundFact = Closed | RoundJudged | Timed | RoundReady | Measured | OwnTraining | Proven
Fact = Started | EpochStarted | RoundFact


class UpdateVerdict(StrEnum):
    """What became of a member's update in a round; one letter for the dashboard's strip."""

    KEPT = "k"
    LEFT_OUT = "x"  # by the rule
    LATE = "l"  # it was expected and waited for
    NO_UPDATE = "n"
    NOT_A_MEMBER = "-"
    PENDING = "p"  # in, not judged yet
    UNKNOWN = "?"  # this node was away and has no record of the round


@dataclass(slots=True)
class RoundFacts:
    """One round: the newest fact of each kind, None while there is none."""

    number: int
    members: frozenset[str] | None = None  # of the round's epoch; None: not known
    closed: Closed | None = None
    judged: RoundJudged | None = None
    timed: Timed | None = None
    ready: RoundReady | None = None
    measured: Measured | None = None
    trained: OwnTraining | None = None
    proven: Proven | None = None

    def verdict(self, member: str) -> UpdateVerdict:
        share = self.judged.members.get(member) if self.judged is not None else None
        if share is not None and share.reason is None:
            return UpdateVerdict.KEPT
        if share is not None and share.reason == BY_RULE:
            return UpdateVerdict.LEFT_OUT
        closed = self.closed
        if closed is not None and member in closed.late:
            return UpdateVerdict.LATE
        if share is not None or (closed is not None and member in closed.missing):
            return UpdateVerdict.NO_UPDATE
        if closed is not None and member in closed.arrivals:
            return UpdateVerdict.PENDING
        if self.members is not None and member not in self.members:
            return UpdateVerdict.NOT_A_MEMBER
        return UpdateVerdict.UNKNOWN


@dataclass(slots=True)
class FoldedFacts:
    """All facts of a node's history, by round."""

    rounds: dict[int, RoundFacts] = field(default_factory=dict)
    starts: list[Started] = field(default_factory=list)
    epochs: dict[int, Started | EpochStarted] = field(default_factory=dict)  # by their numbers
    _members: dict[int, frozenset[str]] = field(default_factory=dict)  # by the first round

    def add(self, facts: Iterable[Fact]) -> set[int]:
        """Returns the rounds that are not what they were."""
        changed: set[int] = set()
        for fact in facts:
            if isinstance(fact, Started | EpochStarted):
                changed |= self._add_epoch(fact)
            else:
                self._add_to_round(fact)
                changed.add(fact.round)
        return changed

    def members_of(self, round_: int) -> frozenset[str] | None:
        """None: the round is older than the first epoch on record."""
        first = max((first for first in self._members if first <= round_), default=None)
        return None if first is None else self._members[first]

    def _add_epoch(self, fact: Started | EpochStarted) -> set[int]:
        if isinstance(fact, Started):
            self.starts.append(fact)
        if fact.epoch in self.epochs:
            return set()
        self.epochs[fact.epoch] = fact
        self._members[fact.first_round] = frozenset(fact.members)
        changed = {number for number in self.rounds if number >= fact.first_round}
        for number in changed:
            self.rounds[number].members = self.members_of(number)
        return changed

    def _add_to_round(self, fact: RoundFact) -> None:
        facts = self.rounds.get(fact.round)
        if facts is None:
            facts = RoundFacts(fact.round, self.members_of(fact.round))
            self.rounds[fact.round] = facts
        match fact:
            case Closed():
                facts.closed = fact
            case RoundJudged():
                facts.judged = fact
            case Timed():
                facts.timed = fact
            case RoundReady():
                facts.ready = fact
            case Measured():
                facts.measured = fact
            case OwnTraining():
                facts.trained = fact
            case Proven():
                facts.proven = fact
