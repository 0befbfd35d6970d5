"""The history of recent rounds: whose update counted, and the reason."""

import msgspec

from defl.ids import NodeId, Round
from defl.node.report.history import REASON_CHARACTERS_MAX, ROUNDS_KEPT, RoundHistory
from defl.node.report.round_facts import (
    Closed,
    EpochStarted,
    Fact,
    LateMember,
    Measured,
    OwnTraining,
    Proven,
    RoundJudged,
    RoundReady,
    Started,
    Timed,
)
from defl.node.report.status import (
    BY_RULE,
    NO_UPDATE,
    LeftOutRounds,
    MemberLateness,
    MemberShare,
    RoundStatus,
)
from defl.node.work.worker_process import WorkReport
from defl.output import (
    Aggregate,
    MemberLate,
    ModelReady,
    Reference,
    RoundClosed,
    RoundProven,
    RoundSeen,
    Train,
)
from support.builders import Small, name

NAMES = ["alice", "bob", "carol", "dave"]
ALL = [NodeId(i) for i in range(4)]
BASE = name("base")
SMALL = Small(real=False)


def aggregate_of(round_: int, *authors: int) -> Aggregate:
    updates = tuple(
        Reference(NodeId(author), name(str(author)), 400, BASE, b"", b"") for author in authors
    )
    return Aggregate(Round(round_), BASE, updates, name("closing"), 1)


def closed(
    round_: int, *, missing: tuple[int, ...] = (), late: tuple[MemberLate, ...] = ()
) -> RoundClosed:
    authors = tuple(member for member in ALL if member not in missing)
    arrivals = tuple((author, 1.0) for author in authors)
    seen = RoundSeen(
        whole=True, opened_at=0.0, lasted_s=1.5, arrivals=arrivals, late=late, deadline_s=None
    )
    return RoundClosed(Round(round_), authors, tuple(map(NodeId, missing)), seen)


def test_the_newest_aggregate_lists_every_members_weight_and_reason() -> None:
    """Carol sent nothing; the rule left out dave, whose score is not finite."""
    history = RoundHistory(NAMES, ALL)
    history.trained(WorkReport(Round(3), {"loss": float("nan")}))
    history.closed(closed(3, missing=(2,), late=(MemberLate(NodeId(2), 1.0, 2.0),)))
    history.aggregated(
        aggregate_of(3, 0, 1, 3),
        WorkReport(Round(3), {}, (0.5, 0.5, 0.0), (1.5, 2.5, float("inf")), "the closest two."),
    )

    assert history.aggregation is not None
    assert (history.aggregation.round, history.aggregation.reason) == (3, "the closest two.")
    assert history.aggregation.members == {
        "alice": MemberShare(0.5, 1.5, None),
        "bob": MemberShare(0.5, 2.5, None),
        "carol": MemberShare(0.0, None, NO_UPDATE),
        "dave": MemberShare(0.0, float("inf"), BY_RULE),
    }
    assert history.left_out == {
        "carol": LeftOutRounds(by_rule=0, no_update=1),
        "dave": LeftOutRounds(by_rule=1, no_update=0),
    }
    assert history.late == {"carol": MemberLateness(1, 3, lasted_s=1.5, waited_s=1.0, usual_s=2.0)}
    assert history.rounds == [
        RoundStatus(3, ["carol"], left_out=["dave"], late=["carol"], training={"loss": None})
    ]


def test_a_departed_member_is_shown_only_where_its_update_counted() -> None:
    """Bob leaves after round 3, whose model is aggregated afterwards; erin joins."""
    history = RoundHistory(NAMES, ALL)
    history.set_members([*NAMES, "erin"], [NodeId(i) for i in (0, 2, 3, 4)], first_round=4)
    weights = (0.25,) * 4
    history.aggregated(aggregate_of(3, 0, 1, 2, 3), WorkReport(Round(3), {}, weights, weights))
    assert history.aggregation is not None
    assert history.aggregation.members["bob"] == MemberShare(0.25, 0.25, None)
    assert "erin" not in history.aggregation.members

    history.aggregated(aggregate_of(4, 0, 2, 3, 4), WorkReport(Round(4), {}, weights, weights))
    assert list(history.aggregation.members) == ["alice", "carol", "dave", "erin"]


def test_of_a_round_before_the_start_only_authors_are_known() -> None:
    """A node that restarts in a later epoch aggregates the last round of the epoch before."""
    history = RoundHistory([*NAMES, "erin"], [NodeId(i) for i in (0, 2, 3, 4)], first_round=4)
    weights = (0.5, 0.5)
    history.aggregated(aggregate_of(3, 0, 1), WorkReport(Round(3), {}, weights, weights))

    assert history.aggregation is not None
    assert list(history.aggregation.members) == ["alice", "bob"]


def test_a_thousand_rounds_take_no_more_space_than_eight() -> None:
    history = RoundHistory(NAMES, ALL)
    for round_ in range(1, 1001):
        history.closed(closed(round_))
        report = WorkReport(Round(round_), {}, (0.25,) * 4, (1.0,) * 4, "because " * 1000)
        history.aggregated(aggregate_of(round_, 0, 1, 2, 3), report)
        history.evaluated(round_, {"accuracy": round_ / 1000}, 0.1)

    assert [report.round for report in history.rounds] == list(range(1001 - ROUNDS_KEPT, 1001))
    kept = (history.aggregation, history.left_out, history.late, history.rounds)
    assert len(msgspec.json.encode(kept)) < 5000


def test_the_rules_words_and_the_trust_go_with_the_member() -> None:
    history = RoundHistory(NAMES, ALL)
    history.aggregated(
        aggregate_of(3, 0, 2, 3),
        WorkReport(
            round=Round(3),
            weights=(0.5, 0.5, 0.0),
            scores=(1.0, 1.0, 9.0),
            reason="the mean of two.",
            details=("", "", "opposes " + "x" * 5000),
            trusts=(1.0, 0.5, 0.0),
        ),
    )
    aggregation = history.aggregation
    assert aggregation is not None
    shares = aggregation.members
    last = shares[NAMES[3]]

    assert [share.trust for share in shares.values()] == [1.0, None, 0.5, 0.0]
    assert shares[NAMES[0]].detail == ""
    assert last.detail.startswith("opposes ")
    assert len(last.detail) == REASON_CHARACTERS_MAX


# --- What is written down ----------------------------------------------------------------------


class Written:
    """A history whose facts and clock are at hand."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.now = 100.0
        self.history = RoundHistory(NAMES, ALL, write=self.facts.append, clock=lambda: self.now)

    def closed(self) -> Closed:
        (fact,) = (fact for fact in self.facts if isinstance(fact, Closed))
        return fact


def test_a_closed_round_tells_when_each_update_came_and_who_was_late() -> None:
    written = Written()
    seen = RoundSeen(
        whole=True,
        opened_at=70.0,
        lasted_s=30.0,
        arrivals=((NodeId(0), 9.0), (NodeId(1), 12.3456), (NodeId(3), 10.0)),
        late=(MemberLate(NodeId(2), 17.5, 60.0),),
        deadline_s=29.9,
    )
    authors = tuple(map(NodeId, (0, 1, 3)))
    written.history.closed(RoundClosed(Round(7), authors, (NodeId(2),), seen))

    fact = written.closed()
    assert (fact.round, fact.lasted_s, fact.deadline_s) == (7, 30.0, 29.9)
    assert fact.arrivals == {"alice": 9.0, "bob": 12.346, "dave": 10.0}
    assert fact.missing == ["carol"]
    assert fact.late == {"carol": LateMember(17.5, 60.0)}


def test_of_a_round_that_this_node_has_not_seen_open_no_times_are_written() -> None:
    """It was away, or started in the middle; who was late is known all the same."""
    written = Written()
    late = (MemberLate(NodeId(2), 17.5, 60.0),)
    seen = RoundSeen(False, 90.0, 10.0, ((NodeId(0), 0.0),), late, 9.0)
    written.history.closed(RoundClosed(Round(7), (NodeId(0),), (NodeId(2),), seen))

    fact = written.closed()
    assert (fact.lasted_s, fact.deadline_s, fact.arrivals) == (None, None, {"alice": None})
    assert list(fact.late) == ["carol"]
    assert list(written.history.late) == ["carol"]


def test_a_round_is_written_down_from_its_training_to_its_proof() -> None:
    written = Written()
    history, weights = written.history, (0.25,) * 4
    history.started(SMALL.federation, 0)
    history.begins(Train(Round(1), BASE))
    written.now = 110.0
    history.trained(WorkReport(Round(1), {"loss": 0.5}))
    written.now = 112.0
    history.committed(1)
    arrivals = tuple((member, 12.0) for member in ALL)
    seen = RoundSeen(True, 100.0, 20.0, arrivals, (), None)
    history.closed(RoundClosed(Round(1), tuple(ALL), (), seen))
    written.now = 121.0
    history.begins(aggregate_of(1, 0, 1, 2, 3))
    written.now = 123.0
    history.aggregated(aggregate_of(1, 0, 1, 2, 3), WorkReport(Round(1), {}, weights, weights))
    history.ready(ModelReady(Round(1), BASE))
    history.evaluated(1, {"accuracy": 0.9}, 0.5)
    history.proven(RoundProven(Round(1), BASE, aggregate_of(2, 0, 1, 2).updates))

    assert [type(fact) for fact in written.facts] == [
        Started, OwnTraining, Closed, RoundJudged, Timed, RoundReady, Measured, Proven,
    ]  # fmt: skip
    (timed,) = (fact for fact in written.facts if isinstance(fact, Timed))
    assert [(time.phase.value, time.end_s) for time in timed.phases] == [
        ("train", 10.0),
        ("certify", 12.0),
        ("close", 20.0),
        ("fetch", 21.0),
        ("aggregate", 23.0),
    ]
    assert written.facts[-1] == Proven(1, BASE.hex(), signatures=3, members=4, needed=3)
    assert history.newest_proven == written.facts[-1]


def test_the_initial_model_is_not_a_proven_round() -> None:
    written = Written()
    written.history.proven(RoundProven(Round(0), BASE, ()))

    assert written.facts == []


def test_an_epoch_is_written_down_with_its_members() -> None:
    written = Written()
    written.history.entered(SMALL.federation)

    (fact,) = written.facts
    assert isinstance(fact, EpochStarted)
    assert fact.members == [member.name for member in SMALL.federation.members]


def test_a_fact_is_bounded_whatever_the_rule_says() -> None:
    written = Written()
    report = WorkReport(Round(1), {}, (0.25,) * 4, (1.0,) * 4, "because " * 100_000)
    written.history.aggregated(aggregate_of(1, 0, 1, 2, 3), report)

    assert len(msgspec.json.encode(written.facts)) < 2000
