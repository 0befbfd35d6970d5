"""For tests of networking: real transports on loopback that record what they receive."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

from defl.cards import Card, Reach
from defl.ids import Digest, NodeId, digest_of
from defl.node.net.acceptor import AcceptLimits
from defl.node.net.dialler import DialLimits
from defl.node.net.transport import Frame, Lane, Transport, TransportLimits
from defl.node.setup.identity import Identity, make_card, make_identity

ORIGIN = digest_of(b"a federation")
FRAME_BYTES_MAX = 5 * 2**20
CONTROL_BYTES_MAX = 4 * 2**20
TIME_LIMIT_S = 20.0
# A backoff of milliseconds, so that no test waits for it.
QUICK = TransportLimits(dial=DialLimits(backoff_first_s=0.001, backoff_max_s=0.01))
IDENTITIES = [make_identity(f"member {i}") for i in range(4)]


def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def address_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()
    return f"{host}:{port}"


class Peer:
    """A transport, the frames it received, and a way to wait for a condition."""

    def __init__(
        self,
        me: int,
        cards: Sequence[Card],
        listen: socket.socket | None,
        *,
        reach: Reach = Reach.BOTH,
        contacts: Mapping[NodeId, Card] | None = None,
        identity: Identity | None = None,
        origin: Digest = ORIGIN,
        epoch: int = 0,
        limits: TransportLimits = QUICK,
        on_frame: Callable[[NodeId, Lane, Frame], Awaitable[None] | None] | None = None,
        **options: Any,
    ) -> None:
        self.me = NodeId(me)
        self.identity = identity or IDENTITIES[me]
        address = address_of(listen) if listen is not None else ""
        self.card = make_card(self.identity, address, reach=reach)
        self.received: list[tuple[NodeId, Lane, bytes]] = []
        self.events: list[tuple[str, NodeId]] = []
        self.epochs: dict[NodeId, int] = {}  # as stated at the last connection
        self._changed = asyncio.Event()
        self._on_frame = on_frame
        self.transport = Transport(
            me=self.me,
            identity=self.identity,
            origin=origin,
            epoch=epoch,
            contacts=contacts if contacts is not None else others(cards, me),
            listen=listen,
            reach=reach,
            frame_bytes_max={Lane.CONTROL: CONTROL_BYTES_MAX, Lane.WEIGHTS: FRAME_BYTES_MAX},
            on_frame=self._frame,
            on_connected=self._connected,
            on_disconnected=lambda peer: self._event("disconnected", peer),
            limits=limits,
            rng=Random(me),  # noqa: S311
            **options,
        )

    def _frame(self, peer: NodeId, lane: Lane, frame: Frame) -> Awaitable[None] | None:
        self.received.append((peer, lane, bytes(frame)))
        self._changed.set()
        return self._on_frame(peer, lane, frame) if self._on_frame else None

    def _connected(self, peer: NodeId, epoch: int) -> None:
        self.epochs[peer] = epoch
        self._event("connected", peer)

    def _event(self, kind: str, peer: NodeId) -> None:
        self.events.append((kind, peer))
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wakes up for frames and connections, and regularly for counters."""
        async with asyncio.timeout(TIME_LIMIT_S):
            while not condition():
                self._changed.clear()
                try:
                    async with asyncio.timeout(0.01):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    async def until_connected(self, *peers: "Peer") -> None:
        await self.until(lambda: all(self.transport.connected(peer.me) for peer in peers))

    def send(self, peer: "Peer", frame: bytes, lane: Lane = Lane.CONTROL) -> bool:
        return self.transport.send(peer.me, frame, lane)


def cards_of(
    listeners: Sequence[socket.socket], identities: Sequence[Identity] = IDENTITIES
) -> list[Card]:
    return [
        make_card(identity, address_of(bound))
        for identity, bound in zip(identities, listeners, strict=True)
    ]


def others(cards: Sequence[Card], me: int) -> dict[NodeId, Card]:
    """The contacts of one member of an epoch that all these cards belong to."""
    return {NodeId(i): card for i, card in enumerate(cards) if i != me}


@asynccontextmanager
async def running(*peers: Peer) -> AsyncIterator[None]:
    """Starts and closes these peers; an error that asyncio would only log fails the test."""
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    try:
        for peer in peers:
            await peer.transport.start()
        yield
    finally:
        await asyncio.gather(*(peer.transport.close() for peer in peers))
    assert not errors, errors


@asynccontextmanager
async def pair(
    *, first: dict[str, Any] | None = None, second: dict[str, Any] | None = None
) -> AsyncIterator[tuple[Peer, Peer]]:
    """Members 0 and 1 of four, connected; takes options of `Peer`."""
    listeners = [listener() for _ in range(4)]
    cards = cards_of(listeners)
    for bound in listeners[2:]:
        bound.close()
    a = Peer(0, cards, listeners[0], **(first or {}))
    b = Peer(1, cards, listeners[1], **(second or {}))
    async with running(a, b):
        await a.until_connected(b)
        await b.until_connected(a)
        yield a, b


def shorter(limits: TransportLimits = QUICK, **changes: Any) -> TransportLimits:
    return replace(limits, **changes)


def receiving(**changes: Any) -> TransportLimits:
    """Other limits for unauthenticated connections. Dials as rarely as a real node, so that an
    absent member costs the test no time."""
    return TransportLimits(accept=AcceptLimits(**changes))
