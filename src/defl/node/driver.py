"""Feeds events to the participant and carries out, with real threads, what duty.py allows.

    event -> participant.handle -> duty.take -> actions
                                   duty.done <- completions

No protocol decision and no order is made here. The simulator's counterpart is sim/driver.py.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType

from defl.duty import (
    CHUNKS_UNDER_WAY_MAX,
    Action,
    Completion,
    Deliver,
    DropBlob,
    Duty,
    PlaceBlob,
    Report,
    Stored,
    SyncBlob,
    Worked,
    WriteRecords,
)
from defl.ids import NodeId
from defl.node.store.writing import Writing
from defl.output import (
    Aggregated,
    Connected,
    Disconnected,
    Envelope,
    Event,
    ReceivedChunk,
    ServeChunk,
    ServeHandover,
    StoreChunk,
    Tick,
    Trained,
    Validated,
    Work,
    WorkFailed,
)
from defl.participant import Participant

Worker = Callable[[Work], Awaitable[Validated | Aggregated | Trained | WorkFailed]]


@dataclass(frozen=True, slots=True)
class Outlets:
    """Where actions go that are not writes."""

    send: Callable[[Envelope | ServeChunk | ServeHandover], None]
    report: Callable[[Report], None]
    work: Worker
    follow: Callable[[], None]  # after each decision: the participant may be in another epoch


class Driver:
    def __init__(self, participant: Participant, writing: Writing, outlets: Outlets) -> None:
        self._participant = participant
        self._writing = writing
        self._outlets = outlets
        self._duty = Duty()
        # One of each link at most, results of work, and ticks.
        self._events: deque[Event] = deque()
        self._completions: deque[Completion] = deque()
        self._going = False
        self._caught_up = asyncio.Event()
        self._ended: asyncio.Future[None] | None = None  # with the error that ended the node
        self._stopped: BaseException | None = None  # by `stop`, perhaps before `run`
        self._timer: asyncio.Handle | None = None
        self._wake_at: float | None = None  # the timer's; uvloop's handles do not always tell
        self._tasks: set[asyncio.Task[None]] = set()
        self.chunk_room = asyncio.Semaphore(CHUNKS_UNDER_WAY_MAX)

    async def run(self) -> None:
        """Run until the federation is finished and all that was decided is carried out. A record
        or chunk that cannot be written ends the node."""
        self._ended = asyncio.get_running_loop().create_future()
        self._writing.start(self._complete, self._end)
        if self._stopped is not None:
            self._end(self._stopped)
        try:
            self._events.appendleft(Tick())
            self._go_on()
            await self._ended
        finally:
            self._cancel_timer()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def feed(self, event: Event) -> None:
        """Decided now, or when the disk has caught up."""
        if isinstance(event, Connected | Disconnected):
            self._forget_links(event.peer)  # one that reconnects again and again is one event
        self._events.append(event)
        self._go_on()

    def _forget_links(self, peer: NodeId) -> None:
        for event in list(self._events):
            if isinstance(event, Connected | Disconnected) and event.peer == peer:
                self._events.remove(event)

    def stop(self, error: BaseException) -> None:
        """No further decision is made, so nothing more is signed; `run` raises the error."""
        self._stopped = error
        self._end(error)

    @property
    def is_caught_up(self) -> bool:
        """Has every event so far been handled?"""
        return not self._events

    async def caught_up(self) -> None:
        while not self.is_caught_up:
            self._caught_up.clear()
            await self._caught_up.wait()

    @property
    def _over(self) -> bool:
        return self._ended is None or self._ended.done()

    def _end(self, error: BaseException | None = None) -> None:
        if self._ended is not None and not self._ended.done():
            if error is None:
                self._ended.set_result(None)
            else:
                self._ended.set_exception(error)

    def _go_on(self) -> None:
        """Take in what was done and what happened, as far as there is room."""
        if self._going or self._over:
            return
        self._going = True
        with contextlib.ExitStack() as stack:
            stack.push(self._end_on_error)
            while self._completions or (self._events and self._duty.has_room):
                if self._completions:
                    self._do_all(self._duty.done(self._completions.popleft()))
                else:
                    self._handle(self._events.popleft())
            if self._participant.is_over and self._duty.settled:
                self._end()
        self._going = False
        if not self._events:
            self._caught_up.set()

    def _end_on_error(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> bool:
        """Whoever fed the event, an error in the machine ends the node."""
        if error is not None:
            self._end(error)
        return error is not None

    def _handle(self, event: Event) -> None:
        if self._participant.is_over:
            return
        output = self._participant.handle(event, asyncio.get_running_loop().time())
        self._outlets.follow()
        if isinstance(event, ReceivedChunk) and not output.store:
            self.chunk_room.release()
        self._set_timer(output.wake_at)
        self._do_all(self._duty.take(output))

    def _set_timer(self, wake_at: float | None) -> None:
        if self._timer is not None and self._wake_at == wake_at:
            return
        self._cancel_timer()
        if wake_at is not None:
            self._timer = asyncio.get_running_loop().call_at(wake_at, self._tick)
            self._wake_at = wake_at

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        self.feed(Tick())

    def _complete(self, completion: Completion) -> None:
        if isinstance(completion, Stored):
            self.chunk_room.release()
        self._completions.append(completion)
        self._go_on()

    def _do_all(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case WriteRecords() | StoreChunk() | PlaceBlob() | SyncBlob() | DropBlob():
                    self._writing.begin(action)
                case Envelope() | ServeChunk() | ServeHandover():
                    self._outlets.send(action)
                case Report():
                    self._outlets.report(action)
                case Deliver(event=event):
                    self._events.append(event)
                case _:
                    self._start(action)

    def _start(self, work: Work) -> None:
        task = asyncio.create_task(self._work(work))
        self._tasks.add(task)
        task.add_done_callback(self._work_ended)

    async def _work(self, work: Work) -> None:
        self._complete(Worked(work, await self._outlets.work(work)))

    def _work_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._end(error)
