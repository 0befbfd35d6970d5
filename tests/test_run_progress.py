"""The progress lines of a running federation: their content, time and order."""

from msgspec.structs import replace

from defl.node.report.status import (
    BY_RULE,
    Aggregation,
    MemberShare,
    Metrics,
    NodeStatus,
    RoundStatus,
)
from defl.results import Omission, OmissionReason
from defl.running.progress import SILENCE_S, ProgressLines, in_one_line
from defl.running.records import RunRecords
from support.statuses import NEW

MEMBERS = ("a", "b")


class Screen:
    """Two members with changing statuses, and the lines printed for each update."""

    def __init__(self, rounds: int = 5) -> None:
        self.records = RunRecords()
        self.lines: list[str] = []
        self._progress = ProgressLines(rounds, self.records)

    def update(
        self,
        statuses: dict[str, NodeStatus],
        *,
        evaluating: tuple[str, ...] = MEMBERS,
        now: float = 0,
    ) -> None:
        self.records.observe(statuses)
        closed = min(status.round for status in statuses.values())
        self.lines += self._progress.update(statuses, closed, evaluating, now)


def status(round_: int, *history: RoundStatus) -> NodeStatus:
    return replace(NEW, round=round_, history=list(history))


def evaluated(round_: int, **metrics: float | None) -> RoundStatus:
    return RoundStatus(round_, [], left_out=[], metrics=dict(metrics))


def trained(round_: int, **metrics: float | None) -> RoundStatus:
    return RoundStatus(round_, [], training=dict(metrics))


def both(*statuses: NodeStatus) -> dict[str, NodeStatus]:
    return dict(zip(MEMBERS, statuses, strict=True))


def test_a_model_is_shown_when_all_members_have_evaluated_it_and_before_the_next_round() -> None:
    screen = Screen()
    screen.update(both(status(0), status(0, evaluated(0, accuracy=0.1))))
    screen.update(both(*[status(1, evaluated(0, accuracy=0.1))] * 2))
    screen.update(both(status(1, evaluated(1, accuracy=0.5)), status(1)))
    late = evaluated(1, accuracy=0.7)
    screen.update(both(status(2), status(2, late)))

    assert screen.lines == [
        "initial model: accuracy 0.1000",
        "round 1 of 5 closed",
        "model of round 1: mean accuracy 0.6000 (a 0.5000 to b 0.7000)",
        "round 2 of 5 closed",
    ]


def test_the_initial_models_line_never_comes_after_round_1s() -> None:
    screen = Screen()
    screen.update(both(status(1), status(1)))
    screen.update(both(*[status(1, evaluated(0, accuracy=0.1))] * 2))
    screen.update(both(*[status(1, evaluated(0, accuracy=0.1), evaluated(1, accuracy=0.2))] * 2))

    assert screen.lines == ["round 1 of 5 closed", "model of round 1: accuracy 0.2000"]
    assert screen.records.initial_metrics == {"a": {"accuracy": 0.1}, "b": {"accuracy": 0.1}}


def test_a_member_that_does_not_evaluate_delays_a_models_line_by_two_rounds_at_most() -> None:
    screen = Screen()
    screen.update(both(status(1, evaluated(1, accuracy=0.5)), status(1)))
    screen.update(both(status(2), status(2)))
    assert screen.lines == ["round 1 of 5 closed", "round 2 of 5 closed"]

    screen.update(both(status(3), status(3)))

    assert screen.lines[2:] == ["round 3 of 5 closed", "model of round 1: accuracy 0.5000"]


def test_at_the_end_every_evaluation_is_shown() -> None:
    screen = Screen(2)
    screen.update(both(status(2, evaluated(1, accuracy=0.5)), status(2)))
    screen.update(both(status(2, evaluated(2, accuracy=0.6)), status(2)), evaluating=())

    assert screen.lines[2:] == [
        "model of round 1: accuracy 0.5000",
        "model of round 2: accuracy 0.6000",
    ]


def test_without_an_accuracy_the_first_metric_that_all_members_report_is_shown() -> None:
    screen = Screen()
    screen.update(
        both(
            status(0, evaluated(0, f1=0.9, eval_loss=2.0, eval_mse=0.5)),
            status(0, evaluated(0, eval_mse=0.5, eval_loss=1.0)),
        )
    )

    assert screen.lines == ["initial model: mean eval_loss 1.5000 (b 1.0000 to a 2.0000)"]


def test_a_closed_round_shows_the_training_loss() -> None:
    screen = Screen()
    screen.update(
        both(status(1, trained(1, steps=5.0, loss=0.2)), status(1, trained(1, loss=0.4, steps=5.0)))
    )

    assert screen.lines == [
        "round 1 of 5 closed; training: mean loss 0.3000 (a 0.2000 to b 0.4000)"
    ]


def test_a_loss_that_is_not_finite_is_reported_once_until_it_recovers() -> None:
    screen = Screen()
    losses: list[Metrics] = [
        {"loss": 0.1},
        {"loss": None},
        {"loss": None},
        {"loss": 1.0},
        {"loss": None},
    ]
    for number, loss in enumerate(losses):
        screen.update(both(status(0, trained(number, **loss)), status(0)))

    assert [line.partition(":")[2][:48] for line in screen.lines] == [
        " training for round 1 gives loss = NaN or infini",
        " training for round 4 gives loss = NaN or infini",
    ]
    assert "lower its learning rate" in screen.lines[0]


def test_a_model_is_shown_once_with_the_members_it_goes_without_and_why() -> None:
    screen = Screen()
    closed = RoundStatus(1, ["c", "d"], left_out=["e"], late=["c"])
    shares = {"a": MemberShare(1.0, 2.0, None), "e": MemberShare(0.0, 9.0, BY_RULE)}
    scored = replace(status(1, closed), aggregation=Aggregation(1, "", shares))
    screen.update(both(status(1, RoundStatus(1, ["c", "d"])), status(1)))
    screen.update(both(scored, status(1, closed)))
    screen.update(both(scored, status(1, closed)))

    assert screen.lines == [
        "round 1 of 5 closed",
        (
            "model of round 1: without c (late), d (no update), "
            "e (left out by the rule: score 4.5 times the worst kept)"
        ),
    ]
    assert screen.records.rounds(1, "aa")[0].omissions == (
        Omission("c", OmissionReason.LATE),
        Omission("d", OmissionReason.NO_UPDATE),
        Omission("e", OmissionReason.BY_RULE, "score 4.5 times the worst kept"),
    )


def test_a_full_disk_and_a_lack_of_descriptors_are_reported_when_they_begin_and_end() -> None:
    screen = Screen()
    full = replace(NEW, disk_full=True)
    for now in (NEW, full, full, replace(NEW, no_descriptors=True), NEW):
        screen.update(both(NEW, now))

    assert [line.split(".")[0] for line in screen.lines] == [
        "b: DISK FULL: it signs nothing until there is room",
        "b: there is room on the disk again",
        "b: TOO MANY OPEN FILES: it signs nothing until it can open one",
        "b: it can open files again",
    ]
    assert "Free some space" in screen.lines[0]


def test_each_failure_of_user_code_is_one_line_with_the_tracebacks_last() -> None:
    screen = Screen()
    error = 'training for round 1 failed:\n  File "client.py"\nValueError: no labels'
    for _ in range(2):
        screen.update(both(NEW, replace(NEW, worker_error=error)))

    assert screen.lines == ["b: training for round 1 failed: ValueError: no labels"]


def test_a_value_that_is_not_finite_does_not_hide_the_others() -> None:
    screen = Screen()
    screen.update(
        both(status(0, evaluated(0, accuracy=0.5)), status(0, evaluated(0, accuracy=None)))
    )

    assert screen.lines[0] == "initial model: accuracy 0.5000; not finite: b"
    assert screen.lines[1].startswith("b: evaluation of the model of round 0 gives accuracy = NaN")


def test_after_a_long_silence_a_line_says_what_the_federation_waits_for() -> None:
    screen = Screen()
    waiting = replace(NEW, waiting="for updates: 0 of at least 3 are in")
    for now in (0.0, SILENCE_S - 1, SILENCE_S, SILENCE_S + 1):
        screen.update(both(waiting, NEW), now=now)

    assert screen.lines == ["round 1 is open; a waits for updates: 0 of at least 3 are in"]


def test_a_long_error_is_cut() -> None:
    line = in_one_line(f"training for round 1 failed:\nValueError: {'x' * 10_000}")

    assert line.startswith("training for round 1 failed: ValueError: xxx")
    assert line.endswith("xxx ...")
    assert len(line) < 400
