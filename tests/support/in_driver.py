"""An engine without workers: tasks one after the other, in the test's own process.

It saves the start of a process, and what a test has patched holds for the tasks too.
"""

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager

from defl.engine.book import Engine, Outcome, TaskBook
from defl.engine.tasks import EngineTask, order_of, perform


class InDriver:
    def check(self, tasks: Iterable[EngineTask]) -> None:
        pass

    def run(self, tasks: Iterable[EngineTask]) -> Generator[Outcome]:
        book = TaskBook(tasks)
        while (attempt := book.next()) is not None:
            yield book.answered(attempt, perform(order_of(attempt.task)))


@contextmanager
def opened_in_driver(_choice: str, **_options: object) -> Iterator[Engine]:
    """In place of `opened` in a command."""
    yield InDriver()
