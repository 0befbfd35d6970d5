"""The history of recent rounds: whose update counted, and the reason."""

import msgspec

from defl.ids import NodeId, Round
from defl.node.report.history import ROUNDS_KEPT, RoundHistory
from defl.node.report.status import (
    BY_RULE,
    NO_UPDATE,
    LeftOutRounds,
    MemberLateness,
    MemberShare,
    RoundStatus,
)
from defl.node.work.worker_process import WorkReport
from defl.output import Aggregate, MemberLate, Reference
from support.builders import name

NAMES = ["alice", "bob", "carol", "dave"]
ALL = [NodeId(i) for i in range(4)]
BASE = name("base")


def aggregate_of(round_: int, *authors: int) -> Aggregate:
    updates = tuple(
        Reference(NodeId(author), name(str(author)), 400, BASE, b"", b"") for author in authors
    )
    return Aggregate(Round(round_), BASE, updates, name("closing"), 1)


def test_the_newest_aggregate_lists_every_members_weight_and_reason() -> None:
    """Carol sent nothing; the rule left out dave, whose score is not finite."""
    history = RoundHistory(NAMES, ALL)
    history.trained(WorkReport(Round(3), {"loss": float("nan")}))
    history.closed(3, [NodeId(2)])
    history.member_late(MemberLate(Round(3), NodeId(2), waited_s=1.0, usual_s=2.0, lasted_s=1.5))
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
        history.closed(round_, [])
        report = WorkReport(Round(round_), {}, (0.25,) * 4, (1.0,) * 4, "because " * 1000)
        history.aggregated(aggregate_of(round_, 0, 1, 2, 3), report)
        history.evaluated(round_, {"accuracy": round_ / 1000}, 0.1)

    assert [report.round for report in history.rounds] == list(range(1001 - ROUNDS_KEPT, 1001))
    kept = (history.aggregation, history.left_out, history.late, history.rounds)
    assert len(msgspec.json.encode(kept)) < 5000
