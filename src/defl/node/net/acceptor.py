"""Accepts connections, up to the TLS handshake, at a cost that strangers cannot raise.

Nothing is spent on a connection before its first record is complete: until then it stays in the
kernel. The record decides which class of pending connections the caller belongs to (pending.py).
Handshakes of one class begin one by one, at a bounded rate. So strangers neither evict a member nor
cost the node more than a fraction of a core.
"""

import asyncio
import itertools
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from defl.budget import TokenBucket
from defl.ids import NodeId
from defl.node.net.admission import Refusal, Refused, refusal_of
from defl.node.net.framing import Link
from defl.node.net.pending import PendingConnections, PendingLimits
from defl.node.net.tls import FIRST_BYTES_MAX, is_first_record, marked

# The pause before the next attempt after the kernel has run out of descriptors.
ACCEPT_PAUSE_S = 0.1
# Connections accepted in a row before the accepted ones get their turn.
ACCEPTED_AT_ONCE_MAX = 8
# How often a partial first record is looked at: a socket with some bytes is always readable, so
# waiting for readability would not wait.
PEEK_AGAIN_S = 0.02

# Completes TLS and hello on an accepted connection; returns the refusal, if any.
Handshake = Callable[[Link, socket.socket], Awaitable[Refused | None]]
Caller = asyncio.Task[None]


@dataclass(frozen=True, slots=True)
class AcceptLimits:
    handshake_s: float = 5.0  # TLS and hello together, from the accepted connection on
    pending: PendingLimits = field(default_factory=PendingLimits)
    # TLS handshakes with all strangers together, and with each member: about 1 ms of a core each.
    handshakes_per_s: float = 50.0
    handshakes_burst: float = 100.0


class Acceptor:
    def __init__(
        self,
        limits: AcceptLimits,
        handshake: Handshake,
        refusals: Counter[Refusal],
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        self._limits = limits
        self._handshake = handshake
        self._refusals = refusals
        self._pause = pause
        self._marks: dict[bytes, NodeId] = {}
        self._pending: PendingConnections[Caller] = PendingConnections(limits.pending)
        self._turns: dict[NodeId | None, tuple[asyncio.Lock, TokenBucket]] = {}
        self.callers: dict[Caller, socket.socket] = {}

    @property
    def pending(self) -> int:
        return len(self._pending)

    def expect(self, mark: bytes, member: NodeId) -> None:
        """A connection with this mark is pending as the member's."""
        self._marks[mark] = member

    async def accept(self, listener: socket.socket) -> None:
        """Accept connections forever."""
        loop = asyncio.get_running_loop()
        for accepted in itertools.count(1):
            connection, host = await self._next_connection(listener)
            caller = loop.create_task(self._admit(connection))
            self.callers[caller] = connection
            caller.add_done_callback(self._done)
            self._evict(self._pending.add(caller, host))
            if accepted % ACCEPTED_AT_ONCE_MAX == 0:
                await asyncio.sleep(0)

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

    def _evict(self, caller: Caller | None) -> None:
        if caller is not None:
            caller.cancel()
            self._refusals[Refusal.CROWDED] += 1

    def _done(self, caller: Caller) -> None:
        self._pending.remove(caller)
        connection = self.callers.pop(caller)
        if caller.cancelled():
            connection.close()

    async def _admit(self, connection: socket.socket) -> None:
        link: Link | None = None  # has buffers, so none before the caller has sent something
        refused: Refused | None = Refused(Refusal.CROWDED, "")
        try:
            async with asyncio.timeout(self._limits.handshake_s):
                await self._await_turn(await _first_bytes(connection))
                link = Link()
                refused = await self._handshake(link, connection)
        except (OSError, TimeoutError) as error:
            refused = refusal_of(error, link)
        finally:
            if refused is not None:
                if link is not None:
                    link.abort()
                if link is None or link.certificate is None:
                    connection.close()
        if refused is not None:
            self._refusals[refused.kind] += 1

    async def _await_turn(self, first_bytes: bytes) -> None:
        """A caller that is evicted before its turn does not use up a turn."""
        member = self._marks.get(marked(first_bytes))
        caller = asyncio.current_task()
        if caller is None:
            raise RuntimeError("each connection is admitted in a task of its own")
        self._evict(self._pending.classify(caller, member))
        now = asyncio.get_running_loop().time()
        if member not in self._turns:
            bucket = TokenBucket(self._limits.handshakes_per_s, self._limits.handshakes_burst, now)
            self._turns[member] = asyncio.Lock(), bucket
        turn, handshakes = self._turns[member]
        async with turn:
            await asyncio.sleep(handshakes.take(1, asyncio.get_running_loop().time()))


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
