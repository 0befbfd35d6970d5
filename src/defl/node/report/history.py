"""What a node tells people of its rounds: whose update counted, and how good each model is.

Kept for the newest rounds alone, as plain figures; nothing depends on it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from defl.ids import NodeId
from defl.node.work.worker_process import WorkReport
from defl.output import Aggregate, MemberLate, OwnUpdateLate

# Status tells of this many rounds, so that whoever asks now and then misses none.
ROUNDS_KEPT = 8
# A rule says a sentence or two.
REASON_CHARACTERS_MAX = 500

BY_RULE = "the rule gave it no weight"
NO_UPDATE = "no update in the round"


@dataclass(frozen=True, slots=True)
class MemberShare:
    """One member's part in an aggregate."""

    weight: float = 0.0
    score: float | None = None  # what it means is the rule's to say; None: there was no update

    @property
    def left_out(self) -> bool:
        return self.weight == 0

    @property
    def reason(self) -> str | None:
        if not self.left_out:
            return None
        return NO_UPDATE if self.score is None else BY_RULE

    def status(self) -> dict[str, Any]:
        return {
            "weight": self.weight,
            "score": self.score if self.score is not None and isfinite(self.score) else None,
            "left_out": self.left_out,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Aggregation:
    round: int
    reason: str  # the rule's own words
    members: dict[str, MemberShare]

    @property
    def left_out(self) -> list[str]:
        """By the rule; not those who sent nothing."""
        return [name for name, share in self.members.items() if share.reason == BY_RULE]

    def status(self) -> dict[str, Any]:
        members = {name: share.status() for name, share in self.members.items()}
        return {"round": self.round, "reason": self.reason, "members": members}


@dataclass(frozen=True, slots=True)
class Evaluation:
    round: int
    metrics: dict[str, float]
    seconds: float  # that the client took

    def status(self) -> dict[str, Any]:
        return {"round": self.round, "metrics": finite(self.metrics), "seconds": self.seconds}


@dataclass(slots=True)
class Lateness:
    """What is known of a member that was expected and did not deliver in time."""

    rounds: int = 0  # since the start
    last: MemberLate | None = None

    @property
    def late_s(self) -> float | None:
        """By how much, in the newest such round; None: nothing is known of its pace."""
        if self.last is None or self.last.usual_s <= self.last.lasted_s:
            return None
        return self.last.usual_s - self.last.lasted_s

    @property
    def sentence(self) -> str:
        if self.last is None:
            return "never late"
        late, by = self.last, self.late_s
        how = f"it needs {late.usual_s:.1f} s, {by:.1f} s too long" if by else "no update came"
        rounds = "1 round" if self.rounds == 1 else f"{self.rounds} rounds"
        return (
            f"late in {rounds}; in round {late.round}, which lasted "
            f"{late.lasted_s:.1f} s, {how}; waited for it in vain: {late.waited_s:.1f} s"
        )


@dataclass(slots=True)
class RoundReport:
    missing: list[str] = field(default_factory=list)  # members without an update
    left_out: list[str] | None = None  # by the rule; None: not aggregated here yet
    metrics: dict[str, float] = field(default_factory=dict)  # of the model, by this node's client
    late: list[str] = field(default_factory=list)  # of the missing: those that were waited for
    training: dict[str, float] = field(default_factory=dict)  # of this node's own update


Record = Callable[[int, Mapping[str, float]], None]


def nowhere(round_: int, values: Mapping[str, float]) -> None:
    """Nobody keeps track."""


class Reports:
    def __init__(self, names: Sequence[str], record: Record = nowhere) -> None:
        self._names = list(names)
        self.record = record  # a tracker's, for figures of a round
        self.aggregation: Aggregation | None = None  # the newest
        self.evaluation: Evaluation | None = None
        self.evaluation_error: str | None = None  # why the newest attempt gave no metrics
        self.left_out_by_rule: Counter[str] = Counter()  # rounds since the start
        self.without_update: Counter[str] = Counter()
        self.late: dict[str, Lateness] = {}  # by member
        self.own_update_late: OwnUpdateLate | None = None  # the newest
        self._rounds: dict[int, RoundReport] = {}

    def closed(self, round_: int, missing: Sequence[NodeId]) -> list[str]:
        """The names of those without an update."""
        names = [self._names[member] for member in missing]
        self._of(round_).missing = names
        self.without_update.update(names)
        self.record(round_, {"rounds/without_update": len(names)})
        return names

    def member_late(self, notice: MemberLate) -> Lateness:
        name = self._names[notice.member]
        self._of(notice.round).late.append(name)
        lateness = self.late.setdefault(name, Lateness())
        lateness.rounds += 1
        lateness.last = notice
        return lateness

    def trained(self, report: WorkReport) -> None:
        self._of(report.round).training = dict(report.metrics)
        self.record(report.round, prefixed("train", report.metrics))

    def aggregated(self, work: Aggregate, report: WorkReport) -> Aggregation:
        shares = {
            reference.author: MemberShare(weight, score)
            for reference, weight, score in zip(
                work.updates, report.weights, report.scores, strict=True
            )
        }
        members = {
            name: shares.get(NodeId(member), MemberShare())
            for member, name in enumerate(self._names)
        }
        done = Aggregation(work.round, report.reason[:REASON_CHARACTERS_MAX], members)
        self.aggregation = done
        self._of(work.round).left_out = done.left_out
        self.left_out_by_rule.update(done.left_out)
        by_member = {name: float(share.left_out) for name, share in members.items()}
        figures = {"rounds/left_out_by_rule": len(done.left_out), **prefixed("left_out", by_member)}
        self.record(work.round, figures)
        return done

    def evaluated(self, done: Evaluation) -> None:
        self.evaluation = done
        self.evaluation_error = None
        self._of(done.round).metrics = done.metrics
        self.record(done.round, prefixed("evaluate", done.metrics))

    def _of(self, round_: int) -> RoundReport:
        report = self._rounds.setdefault(round_, RoundReport())
        for old in sorted(self._rounds)[:-ROUNDS_KEPT]:
            del self._rounds[old]
        return report

    def status(self) -> dict[str, Any]:
        """For JSON, which knows no NaN: whatever is not finite is null."""
        return {
            "aggregation": None if self.aggregation is None else self.aggregation.status(),
            "left_out": {
                name: {"by_rule": self.left_out_by_rule[name], "no_update": missing}
                for name in self._names
                if (missing := self.without_update[name]) or self.left_out_by_rule[name]
            },
            "late": {name: lateness.sentence for name, lateness in self.late.items()},
            "own_update_late": None
            if self.own_update_late is None
            else f"{self.own_update_late.late_s:.1f} s in round {self.own_update_late.round}",
            "evaluation": None if self.evaluation is None else self.evaluation.status(),
            "evaluation_error": self.evaluation_error,
            "history": [
                {
                    "round": round_,
                    "missing": report.missing,
                    "left_out": report.left_out,
                    "metrics": finite(report.metrics),
                    "late": report.late,
                    "training": finite(report.training),
                }
                for round_, report in sorted(self._rounds.items())
            ],
        }


def prefixed(group: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f"{group}/{name}": value for name, value in values.items()}


def finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if isfinite(value) else None for name, value in values.items()}


def told(metrics: Mapping[str, float], **own: object) -> dict[str, object]:
    """A client's metrics as fields of a log line whose own fields no metric can replace."""
    shown = {name: value if isfinite(value) else str(value) for name, value in metrics.items()}
    return {**own, **{name: value for name, value in shown.items() if name not in own}}
