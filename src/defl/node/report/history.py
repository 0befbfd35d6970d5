"""The newest rounds: which updates counted, which members were late, how good each model is.

Kept in memory for the status, the metrics and an experiment tracker; nothing else depends on it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

from defl.ids import NodeId
from defl.node.report.status import (
    BY_RULE,
    Aggregation,
    Evaluation,
    LateUpdate,
    LeftOutRounds,
    MemberLateness,
    MemberShare,
    Metrics,
    RoundStatus,
    finite,
)
from defl.node.work.worker_process import WorkReport
from defl.output import Aggregate, MemberLate, OwnUpdateLate

# A client that polls the status now and then still sees every round.
ROUNDS_KEPT = 8
# A round's model is aggregated in its own epoch or in the next one.
EPOCHS_KEPT = 2
# A rule gives its reason in a sentence or two.
REASON_CHARACTERS_MAX = 500

# Takes the figures of a round, by name.
Recorder = Callable[[int, Mapping[str, float]], None]


def discard(round_: int, values: Mapping[str, float]) -> None:
    """The recorder of a node without an experiment tracker."""


@dataclass(slots=True)
class _OpenReport:
    """A round's report, filled in piece by piece."""

    missing: list[str] = field(default_factory=list)
    left_out: list[str] | None = None
    late: list[str] = field(default_factory=list)
    metrics: Metrics = field(default_factory=dict)
    training: Metrics = field(default_factory=dict)


class RoundHistory:
    def __init__(
        self,
        names: Sequence[str],
        active: Collection[NodeId],
        record: Recorder = discard,
        first_round: int = 1,
    ) -> None:
        # From whom updates are expected, by the first round of their epoch; the newest last.
        self._expected: list[tuple[int, frozenset[NodeId]]] = []
        self.set_members(names, active, first_round)
        self.record = record
        self.aggregation: Aggregation | None = None
        self.evaluation: Evaluation | None = None
        self.evaluation_error: str | None = None
        self.late: dict[str, MemberLateness] = {}
        self.own_update_late: LateUpdate | None = None
        self._by_rule: Counter[str] = Counter()  # rounds since the start
        self._no_update: Counter[str] = Counter()
        self._reports: dict[int, _OpenReport] = {}

    def set_members(
        self, names: Sequence[str], active: Collection[NodeId], first_round: int
    ) -> None:
        """Names by id, also of departed members, and the ids from whom updates are expected in
        this round and the following ones."""
        self._names = list(names)
        self._expected = [*self._expected[1 - EPOCHS_KEPT :], (first_round, frozenset(active))]

    def _members(self, round_: int) -> frozenset[NodeId]:
        """Those of the round's epoch; nobody if that is not known any more."""
        newest_first = reversed(self._expected)
        return next((active for first, active in newest_first if first <= round_), frozenset())

    @property
    def left_out(self) -> dict[str, LeftOutRounds]:
        """Members whose update was missing from some round's model."""
        return {
            name: LeftOutRounds(self._by_rule[name], self._no_update[name])
            for name in self._names
            if self._by_rule[name] or self._no_update[name]
        }

    @property
    def rounds(self) -> list[RoundStatus]:
        return [
            RoundStatus(
                round=round_,
                missing=report.missing,
                left_out=report.left_out,
                late=report.late,
                metrics=report.metrics,
                training=report.training,
            )
            for round_, report in sorted(self._reports.items())
        ]

    def closed(self, round_: int, missing: Sequence[NodeId]) -> list[str]:
        """Returns the names of the members without an update."""
        names = [self._names[member] for member in missing]
        self._report(round_).missing = names
        self._no_update.update(names)
        self.record(round_, {"rounds/without_update": len(names)})
        return names

    def member_late(self, notice: MemberLate) -> MemberLateness:
        name = self._names[notice.member]
        self._report(notice.round).late.append(name)
        before = self.late[name].rounds if name in self.late else 0
        lateness = MemberLateness(
            rounds=before + 1,
            round=notice.round,
            lasted_s=notice.lasted_s,
            waited_s=notice.waited_s,
            usual_s=notice.usual_s,
        )
        self.late[name] = lateness
        return lateness

    def own_late(self, notice: OwnUpdateLate) -> None:
        self.own_update_late = LateUpdate(notice.round, notice.late_s)

    def trained(self, report: WorkReport) -> None:
        self._report(report.round).training = finite(report.metrics)
        self.record(report.round, prefixed("train", report.metrics))

    def aggregated(self, work: Aggregate, report: WorkReport) -> Aggregation:
        shares = {
            reference.author: MemberShare(weight, score, None if weight else BY_RULE)
            for reference, weight, score in zip(
                work.updates, report.weights, report.scores, strict=True
            )
        }
        members = {
            self._names[member]: shares.get(member, MemberShare())
            for member in sorted(shares.keys() | self._members(work.round))
        }
        aggregation = Aggregation(work.round, report.reason[:REASON_CHARACTERS_MAX], members)
        self.aggregation = aggregation
        self._report(work.round).left_out = aggregation.left_out
        self._by_rule.update(aggregation.left_out)
        by_member = {name: float(share.left_out) for name, share in members.items()}
        by_rule = {"rounds/left_out_by_rule": len(aggregation.left_out)}
        self.record(work.round, {**by_rule, **prefixed("left_out", by_member)})
        return aggregation

    def evaluated(self, round_: int, metrics: Mapping[str, float], seconds: float) -> None:
        self.evaluation = Evaluation(round_, finite(metrics), seconds)
        self.evaluation_error = None
        self._report(round_).metrics = self.evaluation.metrics
        self.record(round_, prefixed("evaluate", metrics))

    def _report(self, round_: int) -> _OpenReport:
        report = self._reports.setdefault(round_, _OpenReport())
        for old in sorted(self._reports)[:-ROUNDS_KEPT]:
            del self._reports[old]
        return report


def prefixed(group: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f"{group}/{name}": value for name, value in values.items()}


def log_fields(metrics: Mapping[str, float], **own: object) -> dict[str, object]:
    """A client's metrics as fields of a log line; no metric can replace the line's own fields."""
    shown = {name: value if isfinite(value) else str(value) for name, value in metrics.items()}
    return {**own, **{name: value for name, value in shown.items() if name not in own}}
