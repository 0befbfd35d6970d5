"""One answer for all viewers: a hundred open pages ask the nodes no more often than one.

The source is called in one thread of its own, one call at a time. The thread is a daemon: a node
that does not answer must not delay the end of the program.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from queue import SimpleQueue

# A page asks every second.
FRESH_S = 0.5
# Answers that are kept or being made. A page asks for four; viewers may look at different rounds.
ANSWERS_MAX = 64

Make = Callable[[], bytes | None]


class Busy(Exception):
    """More different answers are being made than viewers ask for."""


class _Answer:
    def __init__(self, make: Make, loop: asyncio.AbstractEventLoop) -> None:
        self.make = make
        self.loop = loop
        self.future: asyncio.Future[bytes | None] = loop.create_future()
        self.ready_at: float | None = None

    def is_fresh(self, now: float) -> bool:
        """One that is being made is fresh: later callers wait for it."""
        return self.ready_at is None or now < self.ready_at + FRESH_S

    def settle(self, made: bytes | None, error: Exception | None) -> None:
        self.ready_at = self.loop.time()
        if error is None:
            self.future.set_result(made)
        else:
            self.future.set_exception(error)
            self.future.exception()  # counts as seen, even if every viewer has gone


class SharedAnswers:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Hashable, _Answer] = OrderedDict()
        self._waiting: SimpleQueue[_Answer] = SimpleQueue()
        threading.Thread(target=self._make_all, name="defl-source", daemon=True).start()

    async def get(self, key: Hashable, make: Make) -> bytes | None:
        """What `make` returned or raised for this key, at most half a second ago."""
        loop = asyncio.get_running_loop()
        answer = self._answers.get(key)
        if answer is None or not answer.is_fresh(loop.time()):
            self._answers.pop(key, None)
            self._make_room()
            answer = self._answers[key] = _Answer(make, loop)
            self._waiting.put(answer)
        return await asyncio.shield(answer.future)

    def _make_room(self) -> None:
        while len(self._answers) >= ANSWERS_MAX:
            oldest = next(iter(self._answers.values()))
            if oldest.ready_at is None:
                raise Busy
            self._answers.popitem(last=False)

    def _make_all(self) -> None:
        while True:
            answer = self._waiting.get()
            made, error = None, None
            try:
                made = answer.make()
            except Exception as raised:  # noqa: BLE001 - raised again where the answer is awaited
                error = raised
            with suppress(RuntimeError):  # the loop has been closed: nobody waits any more
                answer.loop.call_soon_threadsafe(answer.settle, made, error)
