"""Callers from their connection until the transport has shaken hands with them.

A caller is heard before anything is spent on it: its first record stays in the kernel until it is
whole, and says in which room of the lobby the caller waits. Those of one room begin their
handshakes one after the other, at a bounded rate. So strangers cost neither a member its place nor
the node more than a part of a core.
"""

import asyncio
import itertools
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from defl.budget import TokenBucket
from defl.ids import NodeId
from defl.node.net.admission import Refusal, Refused, refused_by
from defl.node.net.framing import Link
from defl.node.net.lobby import Lobby, Places
from defl.node.net.tls import FIRST_BYTES_MAX, is_first_record, marked

# After the kernel refused us a socket (no descriptors left), before the next attempt.
ACCEPT_PAUSE_S = 0.1
# A queue of callers is let in by so many at a time; in between, those who are in are heard.
ACCEPTED_AT_ONCE_MAX = 8
# Until the rest of a first record is looked for: a socket that holds a part of it is always ready
# to be read, so that waiting for readiness would never wait.
PEEK_AGAIN_S = 0.02

# Shakes hands over a connection that a caller began; says why not, if so.
Handshake = Callable[[Link, socket.socket], Awaitable[Refused | None]]
Caller = asyncio.Task[None]


@dataclass(frozen=True, slots=True)
class ReceptionLimits:
    handshake_s: float = 5.0  # TLS and hello together, from the accepted connection on
    places: Places = field(default_factory=Places)
    # TLS handshakes with strangers, all together, and with each member: about 1 ms of a core each.
    handshakes_per_s: float = 50.0
    handshakes_burst: float = 100.0


class Reception:
    def __init__(
        self,
        limits: ReceptionLimits,
        handshake: Handshake,
        refusals: Counter[Refusal],
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        self._limits = limits
        self._handshake = handshake
        self._refusals = refusals
        self._pause = pause
        self._marks: dict[bytes, NodeId] = {}
        self._lobby: Lobby[Caller] = Lobby(limits.places)
        self._turns: dict[NodeId | None, tuple[asyncio.Lock, TokenBucket]] = {}
        self.callers: dict[Caller, socket.socket] = {}

    @property
    def waiting(self) -> int:
        return len(self._lobby)

    def expect(self, mark: bytes, member: NodeId) -> None:
        """Whoever brings this mark waits in the member's room."""
        self._marks[mark] = member

    async def accept(self, listener: socket.socket) -> None:
        """For ever."""
        loop = asyncio.get_running_loop()
        for accepted in itertools.count(1):
            guest, host = await self._next_guest(listener)
            caller = loop.create_task(self._welcome(guest))
            self.callers[caller] = guest
            caller.add_done_callback(self._gone)
            self._turn_away(self._lobby.enter(caller, host))
            if accepted % ACCEPTED_AT_ONCE_MAX == 0:
                await asyncio.sleep(0)

    async def _next_guest(self, listener: socket.socket) -> tuple[socket.socket, str]:
        """Nothing is awaited once it is here: being cancelled then would leave it open."""
        while True:
            try:
                guest, (host, *_) = listener.accept()
            except BlockingIOError:
                await _readable(listener)
            except OSError:
                await self._pause(ACCEPT_PAUSE_S)
            else:
                guest.setblocking(False)
                return guest, host

    def _turn_away(self, crowded_out: Caller | None) -> None:
        if crowded_out is not None:
            crowded_out.cancel()
            self._refusals[Refusal.CROWDED] += 1

    def _gone(self, caller: Caller) -> None:
        self._lobby.leave(caller)
        guest = self.callers.pop(caller)
        if caller.cancelled():
            guest.close()

    async def _welcome(self, guest: socket.socket) -> None:
        link: Link | None = None  # it has buffers: not before the caller has said something
        refused: Refused | None = Refused(Refusal.CROWDED, "")
        try:
            async with asyncio.timeout(self._limits.handshake_s):
                await self._await_turn(await _first_bytes(guest))
                link = Link()
                refused = await self._handshake(link, guest)
        except (OSError, TimeoutError) as error:
            refused = refused_by(error, link)
        finally:
            if refused is not None:
                if link is not None:
                    link.abort()
                if link is None or link.certificate is None:
                    guest.close()
        if refused is not None:
            self._refusals[refused.kind] += 1

    async def _await_turn(self, first_bytes: bytes) -> None:
        """Who is turned away before its turn has taken nobody else's."""
        member = self._marks.get(marked(first_bytes))
        caller = asyncio.current_task()
        if caller is None:
            raise RuntimeError("each caller is welcomed in a task of its own")
        self._turn_away(self._lobby.speak(caller, member))
        now = asyncio.get_running_loop().time()
        if member not in self._turns:
            bucket = TokenBucket(self._limits.handshakes_per_s, self._limits.handshakes_burst, now)
            self._turns[member] = asyncio.Lock(), bucket
        turn, handshakes = self._turns[member]
        async with turn:
            await asyncio.sleep(handshakes.take(1, asyncio.get_running_loop().time()))


async def _first_bytes(guest: socket.socket) -> bytes:
    """A caller's first record, which stays where it is for TLS to read."""
    while True:
        try:
            data = guest.recv(FIRST_BYTES_MAX, socket.MSG_PEEK)
        except BlockingIOError:
            await _readable(guest)
            continue
        if not data:
            raise ConnectionResetError("hung up without a word")
        if is_first_record(data):
            return data
        await asyncio.sleep(PEEK_AGAIN_S)


async def _readable(guest: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(guest, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(guest)
