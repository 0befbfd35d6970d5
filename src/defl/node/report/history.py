"""The rounds as this node sees them: which updates counted, which members were late, how good each
model is.

The newest are kept in memory for the status and the metrics; all go to an experiment tracker and,
as facts, to history.jsonl. Nothing else depends on it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from math import isfinite
from time import monotonic, time

from msgspec.structs import asdict

from defl.committee import Federation, faults_of
from defl.ids import NodeId
from defl.node.report.phases import PhaseClock
from defl.node.report.round_facts import (
    Closed,
    EpochStarted,
    Fact,
    FoldedFacts,
    LateMember,
    Measured,
    OwnTraining,
    Proven,
    RoundFacts,
    RoundJudged,
    RoundReady,
    Started,
    Timed,
)
from defl.node.report.status import (
    BY_RULE,
    Aggregation,
    CommitLatency,
    Evaluation,
    LateUpdate,
    LeftOutRounds,
    MemberLateness,
    MemberShare,
    RoundStatus,
    finite,
    left_out_by_rule,
)
from defl.node.work.worker_process import WorkReport
from defl.output import (
    Aggregate,
    Attested,
    ModelReady,
    OwnUpdateLate,
    RoundClosed,
    RoundProven,
    RoundSeen,
    Train,
)

# A client that polls the status now and then still sees every round.
ROUNDS_KEPT = 8
# A round's model is aggregated in its own epoch or in the next one.
EPOCHS_KEPT = 2
# A rule gives its reason in a sentence or two.
REASON_CHARACTERS_MAX = 500

# Takes the figures of a round, by name.
Recorder = Callable[[int, Mapping[str, float]], None]


def write_nothing(fact: Fact) -> None:
    """The writer of a history that nobody reads."""


def discard(round_: int, values: Mapping[str, float]) -> None:
    """The recorder of a node without an experiment tracker."""


class RoundHistory:
    def __init__(
        self,
        names: Sequence[str],
        active: Collection[NodeId],
        record: Recorder = discard,
        first_round: int = 1,
        write: Callable[[Fact], None] = write_nothing,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        # From whom updates are expected, by the first round of their epoch; the newest last.
        self._expected: list[tuple[int, frozenset[NodeId]]] = []
        self.set_members(names, active, first_round)
        self.record = record
        self.write = write
        self._clock = clock
        self.phases = PhaseClock()
        self.aggregation: Aggregation | None = None
        self.evaluation: Evaluation | None = None
        self.evaluation_error: str | None = None
        self.late: dict[str, MemberLateness] = {}
        self.newest_proven: Proven | None = None
        self.own_update_late: LateUpdate | None = None
        self._by_rule: Counter[str] = Counter()  # rounds since the start
        self._no_update: Counter[str] = Counter()
        self._newest = FoldedFacts()

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
        return [_status_of(facts) for _, facts in sorted(self._newest.rounds.items())]

    def started(self, federation: Federation, round_: int) -> None:
        """The process has started; so many rounds were closed before."""
        epoch, first_round = federation.epoch, federation.first_round
        self.write(Started(time(), round_, epoch, first_round, self._member_names(first_round)))

    def entered(self, federation: Federation) -> None:
        """Another epoch began."""
        names = [member.name for member in federation.members]
        epoch, first_round = federation.epoch, federation.first_round
        self.set_members(names, federation.committee.members, first_round)
        self.write(EpochStarted(time(), epoch, first_round, self._member_names(first_round)))

    def closed(self, notice: RoundClosed, latency: CommitLatency | None = None) -> Closed:
        """`latency`: of this node's own newest transactions."""
        fact = self._closed_fact(notice, latency)
        self._add(fact)
        self._no_update.update(fact.missing)
        seen = notice.seen
        if seen is not None:
            self._add_late(notice.round, seen)
        if seen is not None and seen.whole:
            self.phases.closed(notice.round, seen.opened_at, seen.opened_at + seen.lasted_s)
        figures: dict[str, float] = {"rounds/without_update": len(fact.missing)}
        if latency is not None:
            figures |= prefixed("commit_ms", asdict(latency))
        self.record(notice.round, figures)
        return fact

    def _add_late(self, round_: int, seen: RoundSeen) -> None:
        for late in seen.late:
            name = self._names[late.member]
            before = self.late[name].rounds if name in self.late else 0
            self.late[name] = MemberLateness(
                rounds=before + 1,
                round=round_,
                lasted_s=seen.lasted_s,
                waited_s=late.waited_s,
                usual_s=late.usual_s,
            )

    def _closed_fact(self, notice: RoundClosed, latency: CommitLatency | None) -> Closed:
        seen, names = notice.seen, self._names
        whole = seen if seen is not None and seen.whole else None
        came = dict(whole.arrivals) if whole is not None else {}
        arrivals = {names[author]: rounded(came.get(author)) for author in notice.updates}
        late = seen.late if seen is not None else ()
        return Closed(
            at=time(),
            round=notice.round,
            lasted_s=rounded(whole.lasted_s) if whole is not None else None,
            arrivals=arrivals,
            missing=[names[member] for member in notice.missing],
            late={
                names[one.member]: LateMember(round(one.waited_s, 3), round(one.usual_s, 3))
                for one in late
            },
            deadline_s=rounded(whole.deadline_s) if whole is not None else None,
            commit_ms=rounded(latency.p50) if latency is not None else None,
        )

    def own_late(self, notice: OwnUpdateLate) -> None:
        self.own_update_late = LateUpdate(notice.round, notice.late_s)

    def committed(self, round_: int) -> None:
        """This node's own update is in the log."""
        self.phases.committed(round_, self._clock())

    def begins(self, work: Train | Aggregate) -> None:
        if isinstance(work, Train):
            self.phases.training(work.round, self._clock())
        else:
            self.phases.aggregating(work.round, self._clock())

    def trained(self, report: WorkReport) -> None:
        self.phases.trained(report.round, self._clock())
        self._add(OwnTraining(report.round, finite(report.metrics)))
        self.record(report.round, prefixed("train", report.metrics))

    def aggregated(self, work: Aggregate, report: WorkReport) -> Aggregation:
        shares = {
            reference.author: _share(report, place) for place, reference in enumerate(work.updates)
        }
        members = {
            self._names[member]: shares.get(member, MemberShare())
            for member in sorted(shares.keys() | self._members(work.round))
        }
        aggregation = Aggregation(work.round, report.reason[:REASON_CHARACTERS_MAX], members)
        self.aggregation = aggregation
        self._add(RoundJudged(work.round, aggregation.reason, members))
        self._write_phases(work.round)
        self._by_rule.update(aggregation.left_out)
        by_member = {name: float(share.left_out) for name, share in members.items()}
        by_rule = {"rounds/left_out_by_rule": len(aggregation.left_out)}
        self.record(work.round, {**by_rule, **prefixed("left_out", by_member)})
        return aggregation

    def evaluated(self, round_: int, metrics: Mapping[str, float], seconds: float) -> None:
        self.evaluation = Evaluation(round_, finite(metrics), seconds)
        self.evaluation_error = None
        self._add(Measured(round_, self.evaluation.metrics, round(seconds, 3)))
        self.record(round_, prefixed("evaluate", metrics))

    def _write_phases(self, round_: int) -> None:
        self.phases.aggregated(round_, self._clock())
        phases = self.phases.closed_round(round_)
        if phases:
            self.write(Timed(round_, phases))

    def ready(self, notice: ModelReady) -> None:
        self.write(RoundReady(notice.round, notice.digest.hex()))

    def proven(self, notice: RoundProven | Attested) -> None:
        """The initial model is no round's."""
        if notice.round == 0:
            return
        is_last = isinstance(notice, Attested)  # the others are proven by the round after
        members = len(self._members(notice.round if is_last else notice.round + 1))
        needed = members - faults_of(members) if members else 0
        digest = notice.digest.hex()
        self.newest_proven = Proven(notice.round, digest, notice.signatures, members, needed)
        self.write(self.newest_proven)

    def _member_names(self, round_: int) -> list[str]:
        return [self._names[member] for member in sorted(self._members(round_))]

    def _add(self, fact: Closed | RoundJudged | Measured | OwnTraining) -> None:
        """To the newest rounds and to the file."""
        self._newest.add([fact])
        for old in sorted(self._newest.rounds)[:-ROUNDS_KEPT]:
            del self._newest.rounds[old]
        self.write(fact)


def _status_of(facts: RoundFacts) -> RoundStatus:
    closed, judged = facts.closed, facts.judged
    return RoundStatus(
        round=facts.number,
        missing=closed.missing if closed is not None else [],
        left_out=left_out_by_rule(judged.members) if judged is not None else None,
        late=list(closed.late) if closed is not None else [],
        metrics=facts.measured.metrics if facts.measured is not None else {},
        training=facts.trained.metrics if facts.trained is not None else {},
    )


def rounded(seconds: float | None) -> float | None:
    """Milliseconds are enough."""
    return None if seconds is None else round(seconds, 3)


def _share(report: WorkReport, place: int) -> MemberShare:
    weight = report.weights[place]
    return MemberShare(
        weight=weight,
        score=report.scores[place],
        reason=None if weight else BY_RULE,
        detail=report.details[place][:REASON_CHARACTERS_MAX] if report.details else "",
        trust=report.trusts[place] if report.trusts else None,
    )


def prefixed(group: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f"{group}/{name}": value for name, value in values.items()}


def log_fields(metrics: Mapping[str, float], **own: object) -> dict[str, object]:
    """A client's metrics as fields of a log line; no metric can replace the line's own fields."""
    shown = {name: value if isfinite(value) else str(value) for name, value in metrics.items()}
    return {**own, **{name: value for name, value in shown.items() if name not in own}}
