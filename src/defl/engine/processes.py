"""The engine on this machine: workers are processes, each with one task at a time."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import wait

from defl.engine.book import Attempt, Outcome, TaskBook
from defl.engine.tasks import EngineTask, limit_threads, order_of, perform
from defl.errors import UserError


class ProcessEngine:
    """Tasks that measure their machine run at the end, alone, in the driver's own process."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise UserError(f"the number of processes must be at least 1, not {count}")
        self._count = count

    def check(self, tasks: Iterable[EngineTask]) -> None:
        """This machine is the user's own: everything may run."""

    def run(self, tasks: Iterable[EngineTask]) -> Generator[Outcome]:
        limit_threads()
        book = TaskBook(tasks)
        measuring: list[Attempt] = []
        idle: list[EngineWorker] = []
        busy: dict[object, tuple[EngineWorker, Attempt]] = {}  # by the worker's pipe
        try:
            while True:
                while len(busy) < self._count and (attempt := book.next()) is not None:
                    if attempt.task.measures is not None:
                        measuring.append(attempt)
                        continue
                    worker = idle.pop() if idle else EngineWorker()
                    busy[worker.pipe] = worker, attempt
                    worker.send(attempt.task)
                if not busy:
                    break
                for pipe in wait([worker.pipe for worker, _ in busy.values()]):
                    worker, attempt = busy.pop(pipe)
                    answer = worker.receive()
                    if answer is not None:
                        idle.append(worker)
                        yield book.answered(attempt, answer)
                    elif (failed := book.lost(attempt, worker.end())) is not None:
                        yield failed
        finally:
            for worker in (*idle, *(worker for worker, _ in busy.values())):
                worker.end()
        for attempt in measuring:
            yield book.answered(attempt, perform(order_of(attempt.task)))


class EngineWorker:
    """The driver's side of one worker process."""

    def __init__(self) -> None:
        self.pipe, remote = Pipe()
        with remote:
            names = str(os.getpid()), str(remote.fileno())
            self._process = subprocess.Popen(  # noqa: S603 - this package's own module
                [sys.executable, "-m", "defl.engine.worker", *names],
                pass_fds=[remote.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__,  # standard output is for the driver's results
            )

    def send(self, task: EngineTask) -> None:
        with suppress(OSError):  # the worker has ended: there will be no answer
            self.pipe.send_bytes(order_of(task))

    def receive(self) -> bytes | None:
        """Its answer; None if it has ended without one."""
        try:
            return self.pipe.recv_bytes()
        except (EOFError, OSError):
            return None

    def end(self) -> str:
        """Kill it if it still runs; how it ended, in words."""
        self.pipe.close()
        self._process.kill()
        code = self._process.wait()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
