"""Accepts connections, up to the TLS handshake, at a cost that strangers cannot raise.

Nothing is spent on a connection before its first record is complete: until then it stays in the
kernel. The record decides which class of pending connections the caller belongs to (pending.py).
Handshakes of one class begin one by one, at a bounded rate. So strangers neither evict a member nor
cost the node more than a fraction of a core. A caller of the letterbox stays pending to its end.
"""

import asyncio
import itertools
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from defl.budget import TokenBucket
from defl.node.net.admission import refusal_of
from defl.node.net.framing import Link
from defl.node.net.pending import Caller, PendingConnections, PendingLimits, Stranger
from defl.node.net.refusal import Refusal, Refused
from defl.node.net.tls import FIRST_BYTES_MAX, LETTERBOX_MARK, is_first_record, marked

# The pause before the next attempt after the kernel has run out of descriptors.
ACCEPT_PAUSE_S = 0.1
# Connections accepted in a row before the accepted ones get their turn.
ACCEPTED_AT_ONCE_MAX = 8
# How often a partial first record is looked at: a socket with some bytes is always readable, so
# waiting for readability would not wait.
PEEK_AGAIN_S = 0.02

# Completes TLS and hello on a connection that bears this mark; returns the refusal, if any.
Handshake = Callable[[Link, socket.socket, Caller], Awaitable[Refused | None]]
# Serves an accepted call to the letterbox until it ends.
Serve = Callable[[Link], Awaitable[None]]
Admission = asyncio.Task[None]


@dataclass(frozen=True, slots=True)
class AcceptLimits:
    handshake_s: float = 5.0  # TLS and hello together, from the accepted connection on
    pending: PendingLimits = field(default_factory=PendingLimits)
    # TLS handshakes with all strangers together, and with each contact: about 1 ms of a core each.
    handshakes_per_s: float = 50.0
    handshakes_burst: float = 100.0
    # Each call to the letterbox may bring a handover, whose proof costs more to check.
    letterbox_per_s: float = 4.0
    letterbox_burst: float = 8.0


class Acceptor:
    def __init__(
        self,
        limits: AcceptLimits,
        handshake: Handshake,
        serve: Serve,
        refusals: Counter[Refusal],
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        self._limits = limits
        self._handshake = handshake
        self._serve = serve
        self._refusals = refusals
        self._pause = pause
        self._marks: dict[bytes, Caller] = {}
        self._pending: PendingConnections[Admission] = PendingConnections(limits.pending)
        self._turns: dict[Caller, tuple[asyncio.Lock, TokenBucket]] = {}
        self.admissions: dict[Admission, socket.socket] = {}

    @property
    def pending(self) -> int:
        return len(self._pending)

    def expect(self, marks: Mapping[bytes, Caller]) -> None:
        """A connection with one of these marks, and no other, is pending as that caller's."""
        self._marks = dict(marks)
        expected = {*marks.values(), *Stranger}
        self._turns = {caller: turn for caller, turn in self._turns.items() if caller in expected}

    async def accept(self, listener: socket.socket) -> None:
        """Accept connections forever."""
        loop = asyncio.get_running_loop()
        for accepted in itertools.count(1):
            connection, host = await self._next_connection(listener)
            admission = loop.create_task(self._admit(connection))
            self.admissions[admission] = connection
            admission.add_done_callback(self._done)
            self._evict(self._pending.add(admission, host))
            if accepted % ACCEPTED_AT_ONCE_MAX == 0:
                await asyncio.sleep(0)

    async def stop(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        """Ends its owner's tasks, which accept among other things, and whatever is pending."""
        running = [*tasks, *self.admissions]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def _next_connection(self, listener: socket.socket) -> tuple[socket.socket, str]:
        """Awaits nothing after the accept: a cancellation then would leave the connection open."""
        while True:
            try:
                connection, (host, *_) = listener.accept()
            except BlockingIOError:
                await _readable(listener)
            except OSError:
                await self._pause(ACCEPT_PAUSE_S)
            else:
                connection.setblocking(False)
                return connection, host

    def _evict(self, admission: Admission | None) -> None:
        if admission is not None:
            admission.cancel()
            self._refusals[Refusal.CROWDED] += 1

    def _done(self, admission: Admission) -> None:
        self._pending.remove(admission)
        connection = self.admissions.pop(admission)
        if admission.cancelled():
            connection.close()

    async def _admit(self, connection: socket.socket) -> None:
        caller: Caller = Stranger.UNMARKED
        link: Link | None = None  # has buffers, so none before the caller has sent something
        refused: Refused | None = Refused(Refusal.CROWDED, "")
        try:
            async with asyncio.timeout(self._limits.handshake_s):
                caller = self._caller(await _first_bytes(connection))
                await self._await_turn(caller)
                link = Link()
                refused = await self._handshake(link, connection, caller)
        except (OSError, TimeoutError) as error:
            refused = refusal_of(error, link)
        finally:
            if refused is not None:
                if link is not None:
                    link.abort()
                if link is None or not link.is_made:
                    connection.close()
        if refused is not None:
            self._refusals[refused.kind] += 1
        elif link is not None and caller is Stranger.LETTERBOX:
            await self._serve(link)

    def _caller(self, first_bytes: bytes) -> Caller:
        mark = marked(first_bytes)
        if mark.startswith(LETTERBOX_MARK):
            return Stranger.LETTERBOX
        return self._marks.get(mark, Stranger.UNMARKED)

    async def _await_turn(self, caller: Caller) -> None:
        """A caller that is evicted before its turn does not use up a turn."""
        admission = asyncio.current_task()
        if admission is None:
            raise RuntimeError("each connection is admitted in a task of its own")
        self._evict(self._pending.classify(admission, caller))
        if caller not in self._turns:
            self._turns[caller] = asyncio.Lock(), self._handshakes(caller)
        turn, handshakes = self._turns[caller]
        loop = asyncio.get_running_loop()
        async with turn:
            wait_s = handshakes.take(1, loop.time())
            try:
                await asyncio.sleep(wait_s)
            except asyncio.CancelledError:
                handshakes.take(-1, loop.time())
                raise

    def _handshakes(self, caller: Caller) -> TokenBucket:
        limits, now = self._limits, asyncio.get_running_loop().time()
        if caller is Stranger.LETTERBOX:
            return TokenBucket(limits.letterbox_per_s, limits.letterbox_burst, now)
        return TokenBucket(limits.handshakes_per_s, limits.handshakes_burst, now)


async def _first_bytes(connection: socket.socket) -> bytes:
    """A caller's first record, which stays in the kernel for TLS to read."""
    while True:
        try:
            data = connection.recv(FIRST_BYTES_MAX, socket.MSG_PEEK)
        except BlockingIOError:
            await _readable(connection)
            continue
        if not data:
            raise ConnectionResetError("closed before its first byte")
        if is_first_record(data):
            return data
        await asyncio.sleep(PEEK_AGAIN_S)


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)
