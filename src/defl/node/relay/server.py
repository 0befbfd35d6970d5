"""A relay's connections: members are admitted by their certificates, parked, and joined in pairs.

The acceptor in front of it, its own or a node's, bounds what callers cost before their request
(node/net/acceptor.py). switchboard.py decides; this module does what it says. Between pairs the
event loop is fair: it takes one read of each connection in turn.
"""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from defl.budget import TokenBucket
from defl.cards import Card
from defl.ids import Digest
from defl.node.net.framing import Link
from defl.node.net.pending import Caller, RelayCaller
from defl.node.net.refusal import Refusal, Refused
from defl.node.net.sockets import set_options
from defl.node.net.tls import server_context
from defl.node.net.tls_transport import CLOSE_S, OnFlood, secure
from defl.node.relay.leg import Leg, splice
from defl.node.relay.protocol import Signal, decode_notice, decode_request, encode
from defl.node.relay.switchboard import CONNECTIONS_MAX, TICK_S, Decision, Switchboard
from defl.node.setup.identity import Identity

# Frames of a parked connection: a beat every 20 s and READY. More are read more slowly.
NOTICES_PER_S = 1.0
NOTICES_BURST = 8.0

# The last frames of a connection.
FINAL = frozenset({Signal.REFUSED, Signal.ABSENT, Signal.KNOWN})


@dataclass(slots=True)
class RelayStats:
    """Counts since the start."""

    answers: Counter[Signal] = field(default_factory=Counter)
    pairs: int = 0
    bytes: int = 0  # passed on, in both directions


class RelayServer:
    def __init__(
        self,
        identity: Identity,
        origin: Digest,
        *,
        handshake_s: float,
        connections_max: int = CONNECTIONS_MAX,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
        on_flood: OnFlood = lambda _: None,
    ) -> None:
        """`wait` sleeps between ticks."""
        self._identity = identity
        self._handshake_s = handshake_s
        self._wait = wait
        self._on_flood = on_flood
        self._board: Switchboard[Leg] = Switchboard(origin, connections_max)
        self._keys: dict[bytes, bytes] = {}  # certificate -> key
        self._cards: tuple[Card, ...] = ()
        self._context: ssl.SSLContext | None = None
        self._legs: dict[Leg, asyncio.Task[None]] = {}
        self._stats = RelayStats()

    def agree(self, cards: Iterable[Card]) -> dict[Caller, bytes]:
        """From now on these members are served, and nobody else; returns them with their keys."""
        own = self._identity
        self._cards = tuple(card for card in cards if card.key != own.public_key)
        self._keys = {card.certificate: card.key for card in self._cards}
        self._context = None  # made for the next caller
        self._do(self._board.agree(self._keys.values()))
        return {RelayCaller(card.key): card.key for card in self._cards}

    async def admit(self, link: Link, connection: socket.socket) -> Refused | None:
        """TLS and the request of an accepted connection."""
        if self._context is None:
            self._context = server_context(self._identity, self._cards)
        set_options(connection)
        await secure(
            connection, link, self._context, handshake_s=self._handshake_s, on_flood=self._on_flood
        )
        request = decode_request(bytes(await link.hello))
        key = self._keys.get(link.certificate or b"")
        if key is None:
            return Refused(Refusal.IDENTITY, "its certificate no longer belongs to a member")
        leg = Leg(self._gone)
        if not link.hand_over(leg):
            return Refused(Refusal.HELLO, "more than a request, or gone")
        self._legs[leg] = asyncio.get_running_loop().create_task(self._listen(leg))
        self._do(self._board.request(leg, key, request))
        return None

    async def run(self) -> None:
        """Ends what is silent, for ever."""
        while True:
            await self._wait(TICK_S)
            heard = {leg for leg in self._legs if leg.was_heard}
            for leg in heard:
                leg.was_heard = False
            self._do(self._board.tick(heard))

    async def close(self) -> None:
        legs = list(self._legs)
        for end in (Leg.close, Leg.abort):
            for leg in legs:
                end(leg)
            if legs:
                await asyncio.wait([leg.ended for leg in legs], timeout=CLOSE_S)

    @property
    def connections(self) -> int:
        return self._board.connections

    @property
    def parked(self) -> int:
        return self._board.parked

    @property
    def spliced(self) -> int:
        return self._board.spliced

    @property
    def stats(self) -> RelayStats:
        passed = self._stats.bytes + sum(leg.bytes_in for leg in self._legs)
        return RelayStats(Counter(self._stats.answers), self._stats.pairs, passed)

    # ------------------------------------------------------------------ one connection

    async def _listen(self, leg: Leg) -> None:
        """Until it is joined or ends. Whoever has no place on the switchboard is not heard."""
        loop = asyncio.get_running_loop()
        notices = TokenBucket(NOTICES_PER_S, NOTICES_BURST, loop.time())
        while (frame := await leg.frame()) is not None:
            await asyncio.sleep(notices.take(1, loop.time()))
            self._do(self._board.notice(leg, decode_notice(frame)))

    def _gone(self, leg: Leg) -> None:
        self._legs.pop(leg).cancel()
        self._stats.bytes += leg.bytes_in
        self._do(self._board.gone(leg))

    def _do(self, decision: Decision[Leg]) -> None:
        for leg in decision.end:
            leg.close()
        for leg, notice in decision.tell:
            self._stats.answers[notice.signal] += 1
            leg.send(encode(notice))
            if notice.signal in FINAL:
                leg.close()
        if decision.splice is not None:
            self._stats.pairs += 1
            splice(*decision.splice)
