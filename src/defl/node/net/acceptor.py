"""Accepts connections, up to the TLS handshake, at a cost that strangers cannot raise.

Nothing is spent on a connection before its first record is complete: until then it stays in the
kernel. The record decides which class of pending connections the caller belongs to (pending.py).
Handshakes of one class begin one by one, at a bounded rate. So strangers neither evict a member nor
cost the node more than a fraction of a core. A caller that loses its place gets a TLS alert. A
caller of the letterbox stays pending to its end.
"""

import asyncio
import contextlib
import itertools
import random
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from defl.budget import TokenBucket
from defl.node.net.admission import refusal_of
from defl.node.net.dial_hints import ExpectedMarks
from defl.node.net.framing import Link
from defl.node.net.pending import Caller, PendingConnections, PendingLimits, Stranger
from defl.node.net.refusal import Refusal, Refused
from defl.node.net.tls import FIRST_BYTES_MAX, is_first_record
from defl.node.setup.identity import Identity, certificate_key

# The pause before the next attempt after the kernel has run out of descriptors.
ACCEPT_PAUSE_S = 0.1
# Connections accepted in a row before the accepted ones get their turn.
ACCEPTED_AT_ONCE_MAX = 8
# How often a partial first record is looked at: a socket with some bytes is always readable, so
# waiting for readability would not wait.
PEEK_AGAIN_S = 0.02
# TLS's fatal alert internal_error, in plaintext, for a caller that is turned away: it did nothing
# wrong (RFC 8446, 6.2).
NO_PLACE_ALERT = bytes.fromhex("15 0303 0002 02 50")
# The node counts as crowded for this long after it has turned a caller away.
CROWDED_S = 60.0

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
        identity: Identity,
        limits: AcceptLimits,
        handshake: Handshake,
        serve: Serve,
        refusals: Counter[Refusal],
        pause: Callable[[float], Awaitable[None]],
        rng: random.Random | None = None,
    ) -> None:
        """`rng` draws who loses its place, by default so that nobody can foresee it."""
        self._limits = limits
        self._handshake = handshake
        self._serve = serve
        self._refusals = refusals
        self._pause = pause
        self._marks = ExpectedMarks(identity)
        self._pending: PendingConnections[socket.socket] = PendingConnections(limits.pending, rng)
        self._turns: dict[Caller, tuple[asyncio.Lock, TokenBucket]] = {}
        self._in_handshake: set[socket.socket] = set()
        self._crowded_at: float | None = None
        self.turned_away = 0  # since the start, for lack of a place
        self.admissions: dict[socket.socket, Admission] = {}

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def is_crowded(self) -> bool:
        """Whether a caller was turned away a short time ago."""
        return self._crowded_at is not None and monotonic() - self._crowded_at < CROWDED_S

    def expect(self, callers: Mapping[Caller, bytes]) -> None:
        """Expect the marks of these callers only, each given with its public key."""
        self._marks.expect(callers)
        self._pending.expect(set(callers.values()))
        expected = {*callers, *Stranger}
        self._turns = {caller: turn for caller, turn in self._turns.items() if caller in expected}

    async def accept(self, listener: socket.socket) -> None:
        """Accept connections forever."""
        loop = asyncio.get_running_loop()
        for accepted in itertools.count(1):
            connection, host = await self._next_connection(listener)
            first_bytes = _peeked(connection)
            caller = self._marks.caller_of(first_bytes) if first_bytes else Stranger.SILENT
            loser = self._pending.add(connection, host, loop.time(), caller)
            if loser is connection:
                self._turn_away(connection)
                connection.close()
            else:
                self.admissions[connection] = loop.create_task(self._admit(connection, caller))
                self.admissions[connection].add_done_callback(partial(self._done, connection))
                self._evict(loser)
            if accepted % ACCEPTED_AT_ONCE_MAX == 0:
                await asyncio.sleep(0)

    async def stop(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        """Ends its owner's tasks, which accept among other things, and whatever is pending."""
        running = [*tasks, *self.admissions.values()]
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

    def _evict(self, connection: socket.socket | None) -> None:
        if connection is not None:
            self._turn_away(connection)
            self.admissions[connection].cancel()

    def _turn_away(self, connection: socket.socket) -> None:
        """Count a connection that loses its place, and alert its caller. Unread bytes would make
        the kernel discard the alert."""
        self._refusals[Refusal.CROWDED] += 1
        self.turned_away += 1
        self._crowded_at = monotonic()
        if connection not in self._in_handshake:
            with contextlib.suppress(OSError):
                connection.send(NO_PLACE_ALERT)
                connection.recv(FIRST_BYTES_MAX)

    def _done(self, connection: socket.socket, admission: Admission) -> None:
        self._pending.remove(connection)
        self._in_handshake.discard(connection)
        del self.admissions[connection]
        if admission.cancelled():
            connection.close()

    async def _admit(self, connection: socket.socket, caller: Caller) -> None:
        link: Link | None = None  # has buffers, so none before the caller has sent something
        refused: Refused | None = Refused(Refusal.CROWDED, "")
        try:
            async with asyncio.timeout(self._limits.handshake_s):
                if caller is Stranger.SILENT:
                    caller = self._marks.caller_of(await _first_bytes(connection))
                    if not self._has_place(connection, caller):
                        return
                await self._await_turn(caller)
                link = Link()
                self._in_handshake.add(connection)
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
        elif link is not None and link.certificate is not None:
            self._pending.admitted(connection, certificate_key(link.certificate))

    def _has_place(self, connection: socket.socket, caller: Caller) -> bool:
        loser = self._pending.classify(connection, caller)
        if loser is connection:
            self._turn_away(connection)
            return False
        self._evict(loser)
        return True

    async def _await_turn(self, caller: Caller) -> None:
        """Wait for a turn. A caller that is evicted before its turn does not use it up."""
        if caller is Stranger.UNMARKED_AT_RELAY:
            caller = Stranger.UNMARKED
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


def _peeked(connection: socket.socket) -> bytes:
    """A first record that is complete at once, or nothing: then _first_bytes finds out why."""
    with contextlib.suppress(OSError):
        data = connection.recv(FIRST_BYTES_MAX, socket.MSG_PEEK)
        if data and is_first_record(data):
            return data
    return b""


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
