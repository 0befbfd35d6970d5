"""For tests of relays: real ones on loopback, members that only dial, and hostile ends."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, ClassVar

from defl.cards import Card, Reach
from defl.node.net.framing import HEADER_BYTES, Lane
from defl.node.net.tls import relay_client_context
from defl.node.relay.protocol import (
    RELAY_VERSION,
    Notice,
    Request,
    Signal,
    Verb,
    decode_notice,
    encode,
)
from defl.node.relay.service import Relay
from defl.node.setup.identity import Identity, make_card, make_identity
from support.transports import ORIGIN, TIME_LIMIT_S, Peer

# In the order of their keys, so that the first one calls.
LOW, MIDDLE, HIGH, STRANGER = sorted(
    (make_identity(f"only dials {i}") for i in range(4)), key=lambda identity: identity.public_key
)
RELAY, OTHER_RELAY = (make_identity(f"relay {i}") for i in range(2))


def dialling_cards(*identities: Identity) -> list[Card]:
    return [make_card(identity, "", reach=Reach.DIAL) for identity in identities]


class DiallingPeer(Peer):
    """A member without a port; `me` is its place among the cards."""

    def __init__(self, me: int, cards: Sequence[Card], identity: Identity, **options: Any) -> None:
        super().__init__(me, cards, None, identity=identity, reach=Reach.DIAL, **options)


@asynccontextmanager
async def relay_at(
    bound: socket.socket, members: Sequence[Card], identity: Identity = RELAY, **options: Any
) -> AsyncIterator[Relay]:
    relay = Relay(identity, ORIGIN, bound, **options)
    relay.agree(members)
    await relay.start()
    try:
        yield relay
    finally:
        for guest in Guest.present:
            await guest.close()
        Guest.present.clear()
        await relay.close()


@contextmanager
def relay_in_a_thread(
    bound: socket.socket, members: Sequence[Card], identity: Identity
) -> Iterator[None]:
    """For code that runs an event loop of its own."""
    loop = asyncio.new_event_loop()
    started, stopping = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with relay_at(bound, members, identity):
            started.set()
            await stopping.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        started.wait(TIME_LIMIT_S)
        yield
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join()
        loop.close()


class Guest:
    """One connection to a relay, by hand. `relay_at` closes those that are left."""

    present: ClassVar[list["Guest"]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.present.append(self)

    @classmethod
    async def at(cls, relay: Card, identity: Identity) -> "Guest":
        host, port = relay.address.split(":")
        context = relay_client_context(identity, relay)
        return cls(*await asyncio.open_connection(host, int(port), ssl=context, server_hostname=""))

    @classmethod
    async def asking(
        cls, relay: Card, identity: Identity, verb: Verb, peer: Identity, lane: Lane = Lane.CONTROL
    ) -> "Guest":
        guest = await cls.at(relay, identity)
        guest.send(encode(Request(RELAY_VERSION, ORIGIN, verb, peer.public_key, lane)))
        return guest

    def send(self, frame: bytes) -> None:
        self.writer.write(len(frame).to_bytes(HEADER_BYTES, "big") + frame)

    async def signal(self) -> Signal | None:
        """The next one; None if the connection ended."""
        notice = await self.notice()
        return None if notice is None else notice.signal

    async def notice(self) -> Notice | None:
        try:
            length = int.from_bytes(await self.reader.readexactly(HEADER_BYTES), "big")
            return decode_notice(await self.reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def ended(self) -> bool:
        try:
            return await self.reader.read() == b""
        except OSError:
            return True

    async def is_sent_away(self) -> bool:
        """The connection ends, whatever is said before."""
        with suppress(OSError):
            await self.reader.read()
        return True

    async def close(self) -> None:
        """Aborts it and waits until its socket is closed."""
        self.writer.transport.abort()
        with suppress(OSError):
            await self.writer.wait_closed()


async def pair_at(relay: Card) -> tuple[Guest, Guest]:
    """HIGH and LOW, spliced."""
    parked = await Guest.asking(relay, HIGH, Verb.PARK, LOW)
    assert await parked.signal() is Signal.PARKED
    called = await Guest.asking(relay, LOW, Verb.CALL, HIGH)
    assert await parked.signal() is Signal.GO
    parked.send(encode(Notice(Signal.READY)))
    assert await called.signal() is Signal.GO
    return parked, called


async def is_let_in(relay: Card, identity: Identity, verb: Verb, peer: Identity) -> bool:
    """Whether TLS lets this key's request through."""
    try:
        guest = await Guest.asking(relay, identity, verb, peer)
        return await guest.signal() is not None
    except OSError:
        return False
