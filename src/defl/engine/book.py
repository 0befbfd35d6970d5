"""What becomes of each task: run again if its worker was lost, never if it failed.

Pure: the engines report what happened, and this file decides.
"""

from collections import deque
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from msgspec import MsgspecError

from defl.engine.tasks import EngineTask, OtherCode, TaskError, Value, answer_of
from defl.engine.version import code_version
from defl.errors import UserError, WorkerFailed

# A machine may fail twice under one task. A task that loses three workers takes them down itself,
# most likely by the memory that it needs.
ATTEMPTS_MAX = 3
FAILURES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Attempt:
    task: EngineTask
    number: int  # from 1


@dataclass(frozen=True, slots=True)
class TaskDone:
    task: EngineTask
    value: bytes


@dataclass(frozen=True, slots=True)
class TaskFailed:
    task: EngineTask
    error: str


Outcome = TaskDone | TaskFailed


class Engine(Protocol):
    def check(self, tasks: Iterable[EngineTask]) -> None:
        """Raise a UserError if one of the tasks cannot be run here."""

    def run(self, tasks: Iterable[EngineTask]) -> Generator[Outcome]:
        """Outcomes as they come. Tasks are taken from the iterable when a worker is free for them.
        Closing the generator ends what is running."""


class TaskBook:
    def __init__(self, tasks: Iterable[EngineTask]) -> None:
        self._new = iter(tasks)
        self._lost: deque[Attempt] = deque()

    def next(self) -> Attempt | None:
        if self._lost:
            return self._lost.popleft()
        task = next(self._new, None)
        return None if task is None else Attempt(task, 1)

    def lost(self, attempt: Attempt, reason: str) -> TaskFailed | None:
        """The worker ended without an answer; None if the task is run again."""
        if attempt.number < ATTEMPTS_MAX:
            self._lost.append(Attempt(attempt.task, attempt.number + 1))
            return None
        return TaskFailed(attempt.task, f"its worker was lost {attempt.number} times: {reason}")

    def answered(self, attempt: Attempt, data: bytes) -> Outcome:
        try:
            answer = answer_of(data)
        except MsgspecError as unknown:
            raise UserError(
                f"a worker's answer cannot be read ({unknown}): does it have another version of "
                "defl? Install the same version there. What is finished is stored."
            ) from unknown
        match answer:
            case Value(value):
                return TaskDone(attempt.task, value)
            case TaskError(error):  # it would fail again
                return TaskFailed(attempt.task, error)
            case OtherCode(code, host):
                raise UserError(
                    f"a worker on {host} was refused, since it has other code than this process:\n"
                    f"  worker  {code}\n  here    {code_version()}\n"
                    "Install the same version there. What is finished is stored."
                )


def values(engine: Engine, tasks: Iterable[EngineTask]) -> Generator[bytes]:
    """The values as they come; at the end a WorkerFailed if a task failed."""
    failures: list[TaskFailed] = []
    with closing(engine.run(tasks)) as outcomes:
        for outcome in outcomes:
            if isinstance(outcome, TaskFailed):
                failures.append(outcome)
            else:
                yield outcome.value
    if failures:
        raise WorkerFailed(in_words(failures))


def in_words(failures: list[TaskFailed]) -> str:
    lines = [f"{len(failures)} failed; everything else is finished and stored:"]
    for failure in failures[:FAILURES_SHOWN]:
        lines += [f"- {failure.task.name}", *(f"    {line}" for line in failure.error.splitlines())]
    if len(failures) > FAILURES_SHOWN:
        lines.append(f"- and {len(failures) - FAILURES_SHOWN} more")
    return "\n".join(lines)
