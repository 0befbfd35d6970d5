"""What becomes of a task: done, failed, lost, or refused by a worker with other code."""

from importlib import import_module
from pathlib import Path

import pytest

from defl.engine import tasks, version
from defl.engine.book import ATTEMPTS_MAX, Attempt, TaskBook, TaskFailed, values
from defl.engine.choice import opened
from defl.engine.tasks import EngineTask, answer_of, order_of, perform
from defl.errors import UserError, WorkerFailed
from defl.lab.experiments.cell_log import append, appending
from defl.lab.experiments.paper import run
from defl.lab.experiments.paper.costs import CostCell
from defl.lab.experiments.robustness import decode_line, task_of
from defl.lab.experiments.robustness_cell import RobustnessCell
from defl.lab.models.learning import Learning
from support.in_driver import InDriver


def small_cell(seed: int, rounds: int = 1) -> EngineTask:
    return task_of(RobustnessCell("fed_avg", "none", None, 4, seed, rounds, "digits"), None)


def seed_of(value: bytes) -> int:
    return decode_line(value)[0].seed


BROKEN = EngineTask("robustness.cell", b"", "broken")


def next_of(book: TaskBook) -> Attempt:
    attempt = book.next()
    assert attempt is not None
    return attempt


def test_every_function_of_the_table_exists() -> None:
    for place in tasks.FUNCTIONS.values():
        module, function = place.split(":")
        assert callable(getattr(import_module(module), function))


def test_lost_task_runs_again_before_new_ones_and_a_bounded_number_of_times() -> None:
    first, second = small_cell(1), small_cell(2)
    book = TaskBook([first, second])
    attempt = next_of(book)
    for number in range(2, ATTEMPTS_MAX + 1):
        assert book.lost(attempt, "killed by SIGKILL") is None
        attempt = next_of(book)
        assert attempt == Attempt(first, number)
    failed = book.lost(attempt, "killed by SIGKILL")

    assert failed == TaskFailed(first, "its worker was lost 3 times: killed by SIGKILL")
    assert next_of(book).task == second
    assert book.next() is None


def test_failed_task_is_reported_with_its_error_and_not_run_again() -> None:
    book = TaskBook([BROKEN])
    outcome = book.answered(next_of(book), perform(order_of(BROKEN)))

    assert isinstance(outcome, TaskFailed)
    assert "DecodeError: Input data was truncated" in outcome.error
    assert book.next() is None


def test_others_go_on_when_a_task_fails_and_the_error_comes_at_the_end() -> None:
    got = []
    with pytest.raises(WorkerFailed, match=r"1 failed; everything else .*\n- broken\n.*Traceback"):
        got.extend(values(InDriver(), [small_cell(1), BROKEN, small_cell(2)]))

    assert [seed_of(value) for value in got] == [1, 2]


def test_worker_with_other_code_does_not_run_the_task_and_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def must_not_run(argument: bytes) -> bytes:
        raise AssertionError

    task = small_cell(1)
    order = order_of(task)
    monkeypatch.setattr("defl.lab.experiments.robustness.perform_cell", must_not_run)
    monkeypatch.setattr(tasks, "code_version", lambda: "defl 9.9+other")
    answer = perform(order)

    with pytest.raises(UserError, match=r"other code(.|\n)*defl 9.9\+other\n  here    defl"):
        TaskBook([]).answered(Attempt(task, 1), answer)


@pytest.mark.parametrize("answer", [b"", b"rubbish", b"\x81\xa4type\xa9Yesterday"])
def test_an_answer_of_another_form_is_refused(answer: bytes) -> None:
    with pytest.raises(UserError, match=r"cannot be read .* Install the same version"):
        TaskBook([]).answered(Attempt(small_cell(1), 1), answer)


def test_version_of_the_code_changes_with_any_source_file(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    module = tmp_path / "lab" / "rule.py"
    module.write_text("x = 1\n", encoding="utf-8")
    before = version.source_digest(tmp_path)
    (tmp_path / "rule.pyc").write_bytes(b"compiled")
    assert version.source_digest(tmp_path) == before
    module.write_text("x = 2\n", encoding="utf-8")
    changed = version.source_digest(tmp_path)
    module.rename(tmp_path / "rule.py")

    assert len({before, changed, version.source_digest(tmp_path)}) == 3


def test_the_version_is_that_of_the_files_when_the_engine_was_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    version.code_version.cache_clear()
    with opened("processes:1"):
        monkeypatch.setattr(version, "source_digest", lambda _: "of files that changed later")
        assert "changed later" not in version.code_version()


def test_result_beyond_the_bound_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "RESULT_BYTES_MAX", 10)

    assert "more than 10" in answer_of(perform(order_of(small_cell(1)))).error


def test_cells_of_figures_2_and_3_say_what_they_measure() -> None:
    cell = CostCell("defl", 4, 1, Learning("digits", "mlp-32", "sgd", 0.1, 8, 1))

    assert run.task_of(cell, None).measures == "memory and traffic of real processes"


@pytest.mark.parametrize(
    "choice", ["threads", "", *(f"processes:{n}" for n in ("", "two", "-1", "²", "99999"))]
)
def test_unknown_engine_is_refused_with_the_forms(choice: str) -> None:
    with pytest.raises(UserError, match=r"processes\[:N\] \| ray\[:ADDRESS\]"), opened(choice):
        pass


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    out = tmp_path / "file" / "out"
    with pytest.raises(UserError, match="name another folder"), appending(out):
        pass


def test_second_driver_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with appending(tmp_path) as log:
        append(log, b"{}")
        with pytest.raises(UserError, match="another run writes to"), appending(tmp_path):
            pass
    with appending(tmp_path) as log:
        append(log, b"{}")

    assert (tmp_path / "cells.jsonl").read_bytes().split() == [b"{}", b"{}"]
