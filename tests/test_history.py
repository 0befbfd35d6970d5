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
BASE = name("base")


def aggregate_of(round_: int, *authors: int) -> Aggregate:
    updates = tuple(
        Reference(NodeId(author), name(str(author)), 400, BASE, b"", b"") for author in authors
    )
    return Aggregate(Round(round_), BASE, updates, name("closing"))


def test_the_newest_aggregate_lists_every_members_weight_and_reason() -> None:
    """Carol sent nothing; the rule left out dave, whose score is not finite."""
    history = RoundHistory(NAMES)
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


def test_a_thousand_rounds_take_no_more_space_than_eight() -> None:
    history = RoundHistory(NAMES)
    for round_ in range(1, 1001):
        history.closed(round_, [])
        report = WorkReport(Round(round_), {}, (0.25,) * 4, (1.0,) * 4, "because " * 1000)
        history.aggregated(aggregate_of(round_, 0, 1, 2, 3), report)
        history.evaluated(round_, {"accuracy": round_ / 1000}, 0.1)

    assert [report.round for report in history.rounds] == list(range(1001 - ROUNDS_KEPT, 1001))
    kept = (history.aggregation, history.left_out, history.late, history.rounds)
    assert len(msgspec.json.encode(kept)) < 5000
