"""What a node reports of the newest rounds: whose update counted, and why."""

import json

from defl.ids import NodeId, Round
from defl.node.report.history import BY_RULE, NO_UPDATE, ROUNDS_KEPT, Evaluation, Reports
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


def test_each_members_part_in_the_newest_aggregate_is_told_with_its_reason() -> None:
    """Carol sent nothing, dave's update was thrown away, whose score is beyond any number."""
    reports = Reports(NAMES)
    reports.trained(WorkReport(Round(3), {"loss": float("nan")}))
    reports.closed(3, [NodeId(2)])
    reports.member_late(MemberLate(Round(3), NodeId(2), 1.0, 2.0, 1.5))
    reports.aggregated(
        aggregate_of(3, 0, 1, 3),
        WorkReport(Round(3), {}, (0.5, 0.5, 0.0), (1.5, 2.5, float("inf")), "the closest two."),
    )

    told = json.loads(json.dumps(reports.status(), allow_nan=False))
    assert told["aggregation"] == {
        "round": 3,
        "reason": "the closest two.",
        "members": {
            "alice": {"weight": 0.5, "score": 1.5, "left_out": False, "reason": None},
            "bob": {"weight": 0.5, "score": 2.5, "left_out": False, "reason": None},
            "carol": {"weight": 0.0, "score": None, "left_out": True, "reason": NO_UPDATE},
            "dave": {"weight": 0.0, "score": None, "left_out": True, "reason": BY_RULE},
        },
    }
    assert told["left_out"] == {
        "carol": {"by_rule": 0, "no_update": 1},
        "dave": {"by_rule": 1, "no_update": 0},
    }
    assert told["history"] == [
        {
            "round": 3,
            "missing": ["carol"],
            "left_out": ["dave"],
            "metrics": {},
            "late": ["carol"],
            "training": {"loss": None},
        }
    ]


def test_a_thousand_rounds_take_no_more_room_than_eight() -> None:
    reports = Reports(NAMES)
    for round_ in range(1, 1001):
        reports.closed(round_, [])
        report = WorkReport(Round(round_), {}, (0.25,) * 4, (1.0,) * 4, "because " * 1000)
        reports.aggregated(aggregate_of(round_, 0, 1, 2, 3), report)
        reports.evaluated(Evaluation(round_, {"accuracy": round_ / 1000}, 0.1))

    told = reports.status()
    assert [report["round"] for report in told["history"]] == list(range(1001 - ROUNDS_KEPT, 1001))
    assert len(json.dumps(told)) < 5000
