"""Frames between members, over two links per pair: one for each lane.

The lower id dials, the higher one answers. TLS refuses every caller that is not a member. Then both
send a hello, and both check the certificate's owner, the federation and the lane. Only frames of
links that pass reach `on_frame`.
"""

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from defl.budget import TokenBucket
from defl.cards import Card
from defl.errors import PeerFault, UserError
from defl.ids import Digest, NodeId
from defl.node.net.acceptor import AcceptLimits, Acceptor
from defl.node.net.admission import Refusal, Refused, check_hello, dial_refusal_of
from defl.node.net.framing import (
    PROTOCOL_VERSION,
    Frame,
    Hello,
    Lane,
    Link,
    SendQueue,
    Traffic,
    Use,
    decode_hello,
    encode_hello,
)
from defl.node.net.tls import client_context, mark_of, server_context, trust_also
from defl.node.setup.identity import Identity, card_defect, split_address

__all__ = ["Frame", "Lane", "Refusal", "Stats", "Traffic", "Transport", "TransportLimits"]

LANES = tuple(Lane)
BACKLOG = 128
# A link that lived this long resets the back-off.
STABLE_S = 5.0
CLOSE_S = 1.0
# A machine that vanishes closes nothing: an idle link is dead after 30 s. With bytes in flight the
# wait is longer, since a peer that is too busy to read looks the same to the kernel.
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 120_000}


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """Bounds of a node's traffic. Rates are per peer and lane; beyond them we read more slowly."""

    accept: AcceptLimits = field(default_factory=AcceptLimits)
    connect_s: float = 10.0  # TLS and hello together, for a connection that we dial
    queue_frames_max: int = 8192
    # A peer that does not read must not make us hold more small messages. Only one chunk is queued.
    queue_bytes_max: int = 16 * 2**20
    away_frames_max: int = 256  # for a peer that is not connected
    away_bytes_max: int = 2 * 2**20
    messages_per_s: float = 5_000.0
    messages_burst: float = 20_000.0
    bytes_per_s: float = 1e9
    bytes_burst: float = 5e8
    backoff_first_s: float = 0.1
    backoff_max_s: float = 3.0


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts since the start; refusals are of accepted and of dialled connections."""

    traffic: dict[tuple[NodeId, Lane], Traffic]
    refusals: Counter[Refusal] = field(default_factory=Counter)
    reconnects: Counter[NodeId] = field(default_factory=Counter)
    replaced: Counter[NodeId] = field(default_factory=Counter)
    trouble: dict[NodeId, str] = field(default_factory=dict)  # why a peer is not connected


class Transport:
    def __init__(
        self,
        *,
        me: NodeId,
        identity: Identity,
        cards: Sequence[Card],
        chain: Digest,
        listen: tuple[str, int] | socket.socket,
        frame_bytes_max: Mapping[Lane, int],
        on_frame: Callable[[NodeId, Lane, Frame], Awaitable[None] | None],
        on_connected: Callable[[NodeId], None] = lambda _: None,
        on_disconnected: Callable[[NodeId], None] = lambda _: None,
        limits: TransportLimits | None = None,
        rng: random.Random | None = None,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`listen` is an address or a listening socket. `wait` sleeps between attempts."""
        if cards[me].key != identity.public_key:
            raise UserError(f"this node's key is not that of member {me} of the federation")
        for card in cards:
            if defect := card_defect(card):
                raise UserError(f"{card.name}'s card: {defect}")
        self._me = me
        self._identity = identity
        self._cards = dict(zip(map(NodeId, range(len(cards))), cards, strict=True))
        self._chain = chain
        self._listen = listen
        self._frame_bytes_max = frame_bytes_max
        self._on_frame = on_frame
        self._on_connected = on_connected
        self._on_disconnected = on_disconnected
        self._limits = limits or TransportLimits()
        self._rng = rng or random.Random()  # noqa: S311  (jitter is no secret)
        self._wait = wait
        self._server_context = server_context(identity, cards)
        keys = [(peer, lane) for peer in self._cards if peer != me for lane in LANES]
        self.stats = Stats({key: Traffic() for key in keys})
        self._queues = {key: SendQueue(self.stats.traffic[key]) for key in keys}
        self._links: dict[tuple[NodeId, Lane], Link] = {}
        self._seen: set[tuple[NodeId, Lane]] = set()  # connected before
        self._buckets: dict[tuple[NodeId, Lane], tuple[TokenBucket, TokenBucket]] = {}
        self._moved = {peer: asyncio.Event() for peer in self._cards}
        self._listener: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._acceptor = Acceptor(
            self._limits.accept, self._handshake_as_server, self.stats.refusals, wait
        )
        for peer in self._cards:
            self._expect(peer)

    # ------------------------------------------------------------------ for the node

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._listener = await self._bind()
        limits = self._limits
        now = loop.time()
        for key in self._queues:
            self._buckets[key] = (
                TokenBucket(limits.messages_per_s, limits.messages_burst, now),
                TokenBucket(limits.bytes_per_s, limits.bytes_burst, now),
            )
        self._tasks.append(loop.create_task(self._acceptor.accept(self._listener)))
        for peer, lane in self._queues:
            if self._me < peer:
                self._tasks.append(loop.create_task(self._keep_dialling(peer, lane)))

    async def close(self) -> None:
        """Ends every connection, after a moment for the bytes that are already written."""
        running = [*self._tasks, *self._acceptor.callers]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        self._tasks.clear()
        if self._listener is not None:
            self._listener.close()
        links = list(self._links.values())
        for link in links:
            link.close()
        if links:
            await asyncio.wait([link.closed for link in links], timeout=CLOSE_S)
        for link in links:
            link.abort()
        if links:
            await asyncio.wait([link.closed for link in links], timeout=CLOSE_S)
        await asyncio.sleep(0)  # aborted handshakes close their sockets in the loop's next turn

    @property
    def address(self) -> tuple[str, int]:
        """Where we listen; the port is the real one."""
        if self._listener is None:
            raise UserError("the transport has not been started")
        host, port = self._listener.getsockname()[:2]
        return host, port

    @property
    def unauthenticated(self) -> int:
        """Accepted connections whose hello has not come yet."""
        return self._acceptor.pending

    def connected(self, peer: NodeId) -> bool:
        return all((peer, lane) in self._links for lane in LANES)

    def queued_bytes(self, peer: NodeId, lane: Lane) -> int:
        return self._queues[peer, lane].bytes

    async def drained(self, peer: NodeId, lane: Lane) -> bool:
        """Waits until the queue is empty: at most one frame is then on its way. False if the peer
        is not connected."""
        await self._queues[peer, lane].empty.wait()
        return (peer, lane) in self._links

    def send(self, peer: NodeId, frame: Frame, lane: Lane) -> bool:
        """False if the queue is full; the frame is then dropped and counted."""
        longest = self._frame_bytes_max[lane]
        if not 1 <= len(frame) <= longest:
            raise ValueError(f"{len(frame)} bytes in a {lane} frame, 1 to {longest} allowed")
        queue, limits = self._queues[peer, lane], self._limits
        link = self._links.get((peer, lane))
        if link is None:
            queue.push(frame, frames_max=limits.away_frames_max, bytes_max=limits.away_bytes_max)
            return True
        taken = queue.offer(
            frame, frames_max=limits.queue_frames_max, bytes_max=limits.queue_bytes_max
        )
        if taken:
            link.pump_soon()
        return taken

    def update_card(self, card: Card) -> bool:
        """Takes address and certificate from a member's newer signed card; False if it is not
        newer, not signed by the member or not a member's."""
        if card_defect(card) is not None:
            return False
        for peer, known in self._cards.items():
            if known.key == card.key:
                if (card.name, True) != (known.name, card.serial > known.serial):
                    return False
                self._cards[peer] = card
                trust_also(self._server_context, card)
                self._expect(peer)
                self._moved[peer].set()
                return True
        return False

    # ------------------------------------------------------------------ accepted connections

    def _expect(self, peer: NodeId) -> None:
        if peer != self._me:
            mark = mark_of(self._cards[peer].certificate, self._identity.certificate)
            self._acceptor.expect(mark, peer)

    async def _bind(self) -> socket.socket:
        if isinstance(self._listen, socket.socket):
            self._listen.setblocking(False)
            return self._listen
        host, port = self._listen
        loop = asyncio.get_running_loop()
        try:
            addresses = await loop.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, _, _, _, address = addresses[0]
            listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        except OSError as error:
            raise UserError(
                f"cannot listen on {host}:{port}: {error}; is the port taken by another program, "
                "or is the address not this machine's? See `listen` in node.toml"
            ) from error
        listener.setblocking(False)
        return listener

    async def _handshake_as_server(self, link: Link, connection: socket.socket) -> Refused | None:
        _set_options(connection)
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: link,
            connection,
            ssl=self._server_context,
            ssl_handshake_timeout=self._limits.accept.handshake_s,
            ssl_shutdown_timeout=CLOSE_S,
        )
        hello = decode_hello(await link.hello)
        refused = self._check_hello(link, hello, None)
        if hello is None or (refused is not None and refused.member is None):
            return refused
        # A member, even of another federation, gets our hello, so that it can report what differs.
        link.send_hello(self._hello(hello.lane))
        if refused is not None and refused.member is not None:
            if refused.kind is not Refusal.PROBE:
                self.stats.trouble[refused.member] = refused.text
            link.close()
            await asyncio.wait([link.closed])
            return refused
        self._adopt(NodeId(hello.node), hello.lane, link)
        return None

    # ------------------------------------------------------------------ dialled connections

    async def _keep_dialling(self, peer: NodeId, lane: Lane) -> None:
        loop = asyncio.get_running_loop()
        attempt = 0
        while True:
            self._moved[peer].clear()
            began = loop.time()
            link = await self._dial(peer, lane)
            if link is not None:
                await asyncio.wait([link.closed])
                if loop.time() - began >= STABLE_S:
                    attempt = 0
            await self._back_off(peer, attempt)
            attempt += 1

    async def _back_off(self, peer: NodeId, attempt: int) -> None:
        """Waits, unless a newer card gives another address."""
        limits = self._limits
        longest = min(limits.backoff_max_s, limits.backoff_first_s * 2.0 ** min(attempt, 30))
        loop = asyncio.get_running_loop()
        waits = [
            loop.create_task(_awaited(self._wait(longest * self._rng.uniform(0.5, 1.0)))),
            loop.create_task(_awaited(self._moved[peer].wait())),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _dial(self, peer: NodeId, lane: Lane) -> Link | None:
        card = self._cards[peer]
        link = Link()
        try:
            async with asyncio.timeout(self._limits.connect_s):
                refused = await self._handshake_as_client(link, peer, lane, card)
        except (OSError, TimeoutError) as error:
            refused = dial_refusal_of(error, link, card)
        except asyncio.CancelledError:
            link.abort()
            raise
        if refused is None:
            self._adopt(peer, lane, link)
            return link
        link.abort()
        self.stats.refusals[refused.kind] += 1
        self.stats.trouble[peer] = refused.text
        return None

    async def _handshake_as_client(
        self, link: Link, peer: NodeId, lane: Lane, card: Card
    ) -> Refused | None:
        host, port = split_address(card.address)
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: link,
            host,
            port,
            ssl=client_context(self._identity, card),
            server_hostname="",
            ssl_handshake_timeout=self._limits.connect_s,
            ssl_shutdown_timeout=CLOSE_S,
        )
        _set_options(transport.get_extra_info("socket"))
        link.send_hello(self._hello(lane))
        return self._check_hello(link, decode_hello(await link.hello), (peer, lane))

    # ------------------------------------------------------------------ both

    def _hello(self, lane: Lane) -> bytes:
        return encode_hello(Hello(PROTOCOL_VERSION, self._chain, self._me, lane))

    def _check_hello(
        self, link: Link, hello: Hello | None, dialled: tuple[NodeId, Lane] | None
    ) -> Refused | None:
        return check_hello(
            hello,
            certificate=link.certificate,
            dialled=dialled,
            me=self._me,
            chain=self._chain,
            cards=self._cards,
        )

    def _adopt(self, peer: NodeId, lane: Lane, link: Link) -> None:
        """Makes this the only link of the lane: an older one is dead, or the peer has restarted."""
        if link.closed.done():
            return
        key = (peer, lane)
        older = self._links.get(key)
        if older is not None:
            self.stats.replaced[peer] += 1
            self._lost(peer, lane, older)
            older.abort()
        if key in self._seen:
            self.stats.reconnects[peer] += 1
        self._seen.add(key)
        self._links[key] = link
        messages, volume = self._buckets[key]
        link.open(
            Use(
                frame_bytes_max=self._frame_bytes_max[lane],
                handler=lambda frame: self._deliver(peer, lane, frame),
                queue=self._queues[key],
                traffic=self.stats.traffic[key],
                messages=messages,
                volume=volume,
            )
        )
        link.closed.add_done_callback(lambda _: self._lost(peer, lane, link))
        if self.connected(peer):
            self.stats.trouble.pop(peer, None)
            self._on_connected(peer)

    def _lost(self, peer: NodeId, lane: Lane, link: Link) -> None:
        if self._links.get((peer, lane)) is not link:
            return
        was_connected = self.connected(peer)
        del self._links[peer, lane]
        self._queues[peer, lane].clear()  # lost like the frames in flight
        if link.broken is not None:
            self.stats.refusals[Refusal.FRAME] += 1
        reason = link.closed.result() if link.closed.done() else "replaced"
        self.stats.trouble[peer] = f"the {lane} connection ended: {reason}"
        if was_connected:
            self._on_disconnected(peer)

    def _deliver(self, peer: NodeId, lane: Lane, frame: Frame) -> Awaitable[None] | None:
        try:
            result = self._on_frame(peer, lane, frame)
        except PeerFault:
            self.stats.refusals[Refusal.FAULT] += 1
            return None
        return None if result is None else self._delivered(result)

    async def _delivered(self, result: Awaitable[None]) -> None:
        try:
            await result
        except PeerFault:
            self.stats.refusals[Refusal.FAULT] += 1


async def _awaited(wait: Awaitable[object]) -> None:
    await wait


def _set_options(connection: socket.socket) -> None:
    # A small frame must not wait until the one before it is acknowledged, up to 40 ms. asyncio sees
    # to it for dialled connections only: an accepted socket does not know that it is TCP.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        option = getattr(socket, name, None)  # not every system has them all
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
