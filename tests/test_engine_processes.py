"""The engine of processes: killed workers, failing tasks, interruption."""

import os
import signal
from contextlib import closing

import msgspec
import pytest

from defl.engine.book import TaskDone, TaskFailed
from defl.engine.processes import ProcessEngine
from defl.engine.tasks import EngineTask
from support.child_processes import children_of
from support.in_driver import InDriver
from test_engine import BROKEN, small_cell

ROUNDS = 50  # a quarter of a second
TASKS = [small_cell(seed, ROUNDS) for seed in range(6)]


def values_by_task(outcomes: list[TaskDone | TaskFailed]) -> dict[str, bytes]:
    return {
        outcome.task.name: outcome.value for outcome in outcomes if isinstance(outcome, TaskDone)
    }


def test_killed_workers_cells_run_again_and_a_failed_one_does_not() -> None:
    tasks = [BROKEN, *TASKS]
    before = set(children_of(os.getpid()))
    outcomes: list[TaskDone | TaskFailed] = []
    with closing(ProcessEngine(2).run(tasks)) as running:
        outcomes.append(next(running))
        workers = set(children_of(os.getpid())) - before
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        outcomes.extend(running)

    assert len(workers) == 2
    assert len(outcomes) == len(tasks)
    assert [outcome.task for outcome in outcomes if isinstance(outcome, TaskFailed)] == [BROKEN]
    assert values_by_task(outcomes) == values_by_task(list(InDriver().run(TASKS)))
    assert set(children_of(os.getpid())) == before


def test_closing_a_run_ends_its_workers_at_once() -> None:
    before = set(children_of(os.getpid()))
    with closing(ProcessEngine(2).run(TASKS)) as running:
        next(running)
        assert set(children_of(os.getpid())) > before

    assert set(children_of(os.getpid())) == before


def test_tasks_that_measure_run_last_in_the_drivers_own_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def own_process(argument: bytes) -> bytes:
        return msgspec.json.encode(os.getpid())

    monkeypatch.setattr("defl.lab.experiments.robustness.perform_cell", own_process)
    measuring = EngineTask("robustness.cell", b"", "measuring", "the machine")
    *_, last = ProcessEngine(1).run([measuring, small_cell(2)])

    assert last == TaskDone(measuring, msgspec.json.encode(os.getpid()))
