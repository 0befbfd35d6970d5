"""What is told of the newest rounds: whose update counted and why, and live progress."""

import json
from typing import Any

from defl.cli.progress import RunProgress
from defl.ids import NodeId, Round
from defl.node.report.history import BY_RULE, NO_UPDATE, ROUNDS_KEPT, Evaluation, Reports
from defl.node.work.worker_process import WorkReport
from defl.output import Aggregate, Reference
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
    reports.closed(3, [NodeId(2)])
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
        {"round": 3, "missing": ["carol"], "left_out": ["dave"], "metrics": {}}
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


def state(round_: int, *history: dict[str, Any]) -> dict[str, Any]:
    empty = {"missing": [], "left_out": None, "metrics": {}}
    return {"round": round_, "history": [{**empty, **report} for report in history]}


def accuracy(round_: int, value: float | None) -> dict[str, Any]:
    return {"round": round_, "metrics": {"accuracy": value}}


def test_progress_tells_accuracy_when_all_nodes_know_it() -> None:
    lines: list[str] = []
    progress = RunProgress(2, lines.append)
    progress.update({"a": {"round": 0}, "b": state(1, accuracy(0, 0.1))})
    progress.update({"a": state(1, accuracy(0, 0.3)), "b": state(1, accuracy(0, 0.1))})
    progress.update({"a": state(2, accuracy(1, None)), "b": state(2, accuracy(2, 0.6))})
    progress.update({"a": state(2, accuracy(2, 0.8)), "b": state(2, accuracy(2, 0.6))})

    assert lines == [
        "round 1 of 2 closed by all nodes",
        "model of round 0: mean accuracy 0.2000 (a 0.3000  b 0.1000)",
        "round 2 of 2 closed by all nodes",
        "model of round 2: mean accuracy 0.7000 (a 0.8000  b 0.6000)",
    ]


def test_without_an_accuracy_progress_tells_the_first_metric_that_all_clients_report() -> None:
    lines: list[str] = []
    progress = RunProgress(1, lines.append)

    def evaluated(**metrics: float | None) -> dict[str, Any]:
        return state(0, {"round": 0, "metrics": metrics})

    progress.update({"a": evaluated(eval_loss=2.0, eval_acc=0.5), "b": evaluated()})
    progress.update(
        {
            "a": evaluated(eval_loss=2.0, eval_acc=0.5, auc=0.6),
            "b": evaluated(eval_loss=1.0, eval_acc=0.25, auc=None),
        }
    )

    assert lines == ["model of round 0: mean eval_acc 0.3750 (a 0.5000  b 0.2500)"]


def test_progress_tells_once_who_was_left_out_and_why() -> None:
    lines: list[str] = []
    progress = RunProgress(3, lines.append)
    first = {"round": 1, "left_out": [], "missing": []}
    second = {"round": 2, "left_out": ["c"], "missing": ["d"]}
    progress.update({"a": state(2, first), "b": state(2, first, {**second, "left_out": None})})
    progress.update({"a": state(2, first, second), "b": state(2, first, second)})

    assert lines == [
        "round 1 of 3 closed by all nodes",
        "round 2 of 3 closed by all nodes",
        "model of round 2: without c (left out by the rule), d (no update in time)",
    ]
