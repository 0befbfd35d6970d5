"""TLS records that bring nothing end their link; records that bring little are read slowly.

Member 2 is the victim, member 0 its honest peer, and member 1 is Byzantine. Strangers know only
where the victim listens. The hostile ends make their records themselves (support/key_updates.py).
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from defl.ids import NodeId
from defl.node.net import tls_transport
from defl.node.net.framing import Lane
from defl.node.net.hello import PROTOCOL_VERSION, Hello, encode_hello
from defl.node.net.sessions import SESSION_BYTES
from defl.node.net.tls import (
    client_context,
    letterbox_client_context,
    relay_client_context,
    server_context,
)
from defl.node.net.tls_transport import (
    EMPTY_RECORDS_BURST,
    HANDSHAKE_RECORDS_MAX,
    TURN_RECORDS,
    RecordFlood,
    TlsTransport,
    secure,
)
from defl.node.net.transport import Refusal
from defl.node.relay.protocol import RELAY_VERSION, Notice, Request, Signal, Verb, encode
from defl.node.setup.identity import make_card
from support.key_updates import (
    APPLICATION_DATA,
    KEY_UPDATE_WITH_ANSWER,
    RawTls,
    WriteKeys,
    cipher_of,
    is_secured,
    secrets_of,
)
from support.relays import HIGH, LOW, RELAY, Guest, dialling_cards, relay_at
from support.transports import (
    IDENTITIES,
    ORIGIN,
    QUICK,
    TIME_LIMIT_S,
    Peer,
    address_of,
    cards_of,
    listener,
    pair,
    running,
)

pytestmark = pytest.mark.usefixtures("on_both_loops")

BAD = IDENTITIES[1]
# Records that OpenSSL may have been given before the link ends.
ENDED_AFTER = EMPTY_RECORDS_BURST + TURN_RECORDS
SENT = 1000
Floods = list[tuple[NodeId | None, RecordFlood]]
Records = Callable[[WriteKeys], bytes]


def framed(frame: bytes) -> bytes:
    return len(frame).to_bytes(4, "big") + frame


def hello(lane: Lane) -> bytes:
    stated = Hello(PROTOCOL_VERSION, ORIGIN, 0, BAD.public_key, lane, bytes(SESSION_BYTES))
    return framed(encode_hello(stated))


@asynccontextmanager
async def attacked() -> AsyncIterator[tuple[Peer, Floods]]:
    """The victim and what it reports. At the end it still exchanges frames with its honest peer,
    on the connections that they had."""
    listeners = [listener() for _ in range(4)]
    cards = cards_of(listeners)
    for unused in (listeners[1], listeners[3]):
        unused.close()
    floods: Floods = []
    honest = Peer(0, cards, listeners[0], limits=QUICK)
    victim = Peer(
        2,
        cards,
        listeners[2],
        limits=QUICK,
        on_flood=lambda peer, flood: floods.append((peer, flood)),
    )
    async with asyncio.timeout(TIME_LIMIT_S), running(honest, victim):
        await honest.until_connected(victim)
        await victim.until_connected(honest)
        yield victim, floods
        for lane in Lane:
            assert honest.send(victim, b"vote", lane)
        await victim.until(
            lambda: (
                {(peer, lane) for peer, lane, _ in victim.received if peer == honest.me}
                == {(honest.me, lane) for lane in Lane}
            )
        )
        assert [event for event in victim.events if event[1] == honest.me] == [
            ("connected", honest.me)
        ]


async def flooded(raw: RawTls, records: bytes) -> None:
    """Sends them all at once, and waits for the end of the connection."""
    try:
        await raw.send_records(records)
    except ConnectionError:
        raw.close()
    else:
        await raw.ended()


def updates(keys: WriteKeys) -> bytes:
    return b"".join(keys.key_update() for _ in range(SENT))


def updates_that_want_an_answer(keys: WriteKeys) -> bytes:
    return b"".join(keys.key_update(KEY_UPDATE_WITH_ANSWER) for _ in range(SENT))


def padded_updates(keys: WriteKeys) -> bytes:
    return b"".join(keys.key_update(padding=16_000) for _ in range(SENT // 20))


def empty_data(keys: WriteKeys) -> bytes:
    """Fewer in a row than OpenSSL itself would refuse."""
    beat = framed(b"x")
    pieces = []
    for i in range(SENT):
        data = beat[i // 20 % 5 : i // 20 % 5 + 1] if i % 20 == 0 else b""
        pieces.append(keys.record(APPLICATION_DATA, data, padding=i % 3))
    return b"".join(pieces)


def updates_among_frames(keys: WriteKeys) -> bytes:
    """Follows each frame by a key update."""
    frame = framed(b"x")
    return b"".join(
        keys.record(APPLICATION_DATA, frame) + keys.key_update() for _ in range(SENT // 10)
    )


# --- Where it may come from ---------------------------------------------------------------------


@pytest.mark.parametrize("greeted", [False, True], ids=["before the hello", "after the hello"])
def test_a_stranger_at_the_letterbox_is_cut_off_after_a_few_key_updates(greeted: bool) -> None:
    async def scenario() -> None:
        async with attacked() as (victim, floods):
            context = letterbox_client_context(victim.card)
            stranger = await RawTls.to(victim.transport.address, context)
            if greeted:
                await stranger.send(hello(Lane.CONTROL))
                length = int.from_bytes(await stranger.receive(4), "big")
                await stranger.receive(length)
            await flooded(stranger, updates(stranger.keys))

            await victim.until(lambda: victim.transport.unauthenticated == 0)
            ((peer, flood),) = floods
            assert peer is None
            assert flood.remote.startswith("127.0.0.1 port ")
            assert flood.records <= ENDED_AFTER
            assert victim.transport.stats.refusals[Refusal.RECORDS] == (not greeted)

    asyncio.run(scenario())


@pytest.mark.parametrize("lane", Lane)
@pytest.mark.parametrize(
    "records",
    [updates, updates_that_want_an_answer, padded_updates, empty_data, updates_among_frames],
)
def test_a_member_is_cut_off_after_a_few_records_without_data(records: Records, lane: Lane) -> None:
    async def scenario() -> None:
        async with attacked() as (victim, floods):
            bad = await RawTls.to(victim.transport.address, client_context(BAD, victim.card))
            await bad.send(hello(lane))
            await bad.receive(int.from_bytes(await bad.receive(4), "big"))
            await flooded(bad, records(bad.keys))

            await victim.until(lambda: floods)
            ((peer, flood),) = floods
            assert peer == NodeId(1)
            assert flood.records <= ENDED_AFTER
            trouble = f"the {lane} connection ended: {flood.records} TLS records brought no data"
            await victim.until(lambda: victim.transport.stats.trouble.get(NodeId(1)) == trouble)

    asyncio.run(scenario())


def test_a_caller_that_splits_its_handshake_into_many_records_is_cut_off() -> None:
    async def scenario() -> None:
        async with attacked() as (victim, floods):
            context = client_context(BAD, victim.card)
            outgoing = ssl.MemoryBIO()
            assert not is_secured(context.wrap_bio(ssl.MemoryBIO(), outgoing))
            record = outgoing.read()
            split = b"".join(record[:3] + b"\0\1" + bytes([byte]) for byte in record[5:])
            reader, writer = await asyncio.open_connection(*victim.transport.address)
            writer.write(split)
            assert await ended(reader)
            writer.close()

            await victim.until(lambda: victim.transport.stats.refusals[Refusal.RECORDS] == 1)
            ((peer, flood),) = floods
            assert (peer, flood.certificate) == (None, None)
            assert flood.records == HANDSHAKE_RECORDS_MAX + 1

    asyncio.run(scenario())


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("joined", [False, True], ids=["parked", "joined"])
def test_a_member_at_a_relay_is_cut_off_after_a_few_key_updates(joined: bool) -> None:
    async def scenario() -> None:
        told: list[tuple[str, RecordFlood]] = []
        bound = listener()
        card = make_card(RELAY, address_of(bound))
        members = dialling_cards(LOW, HIGH)
        report: Any = lambda who, flood: told.append((who, flood))  # noqa: E731
        async with (
            asyncio.timeout(TIME_LIMIT_S),
            relay_at(bound, members, on_flood=report) as relay,
        ):
            bad, other, verb = (LOW, HIGH, Verb.CALL) if joined else (HIGH, LOW, Verb.PARK)
            if joined:
                parked = await Guest.asking(card, HIGH, Verb.PARK, LOW)
                assert await parked.signal() is Signal.PARKED
            raw = await RawTls.to(bound.getsockname(), relay_client_context(bad, card))
            request = Request(RELAY_VERSION, ORIGIN, verb, other.public_key, Lane.CONTROL)
            await raw.send(framed(encode(request)))
            if joined:
                assert await parked.signal() is Signal.GO
                parked.send(encode(Notice(Signal.READY)))
            await raw.receive(int.from_bytes(await raw.receive(4), "big"))
            await flooded(raw, updates(raw.keys))

            ((who, flood),) = told
            assert who == bad.name
            assert flood.records <= ENDED_AFTER
            assert relay.counts()["floods"] == 1

    asyncio.run(scenario())


# --- Who follows the protocol -------------------------------------------------------------------


def test_honest_traffic_is_never_cut_off() -> None:
    """Large frames, small ones that each have a record of their own, and many in one record."""

    async def scenario() -> None:
        floods: Floods = []
        options = {"on_flood": lambda peer, flood: floods.append((peer, flood))}
        async with pair(first=options, second=options) as (a, b):
            sent = 0
            for turn in range(64):
                assert a.send(b, bytes(2**20), Lane.WEIGHTS)
                for i in range(100):
                    assert a.send(b, bytes(1 + 17 * i))
                    if turn % 2:
                        await asyncio.sleep(0)  # else they share records
                assert b.send(a, b"answer")
                sent += 101
                await b.until(lambda expected=sent: len(b.received) == expected)
            await a.until(lambda: len(a.received) == 64)
            assert not floods
            assert a.events == [("connected", b.me)]
            assert b.events == [("connected", a.me)]

    asyncio.run(scenario())


def test_a_peer_may_renew_its_keys_now_and_then() -> None:
    async def scenario() -> None:
        async with attacked() as (victim, floods):
            bad = await RawTls.to(victim.transport.address, client_context(BAD, victim.card))
            await bad.send(hello(Lane.CONTROL))
            await bad.receive(int.from_bytes(await bad.receive(4), "big"))
            for i in range(int(EMPTY_RECORDS_BURST)):
                await bad.send_records(bad.keys.key_update())
                await bad.send(framed(b"%d" % i))
            last = (NodeId(1), Lane.CONTROL, b"%d" % (EMPTY_RECORDS_BURST - 1))
            await victim.until(lambda: last in victim.received)
            assert not floods
            bad.close()

    asyncio.run(scenario())


# --- One turn of the event loop ------------------------------------------------------------------


class Wire(asyncio.Transport):
    """The TCP connection under a TLS transport: keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_paused = False
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default


class Reader(asyncio.Protocol):
    """Keeps what is read, and what was read at once."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)

    @property
    def count(self) -> int:
        return sum(map(len, self.pieces))


class Called:
    """A TLS transport without a network, called by an end that makes its records itself."""

    def __init__(self) -> None:
        called, caller = IDENTITIES[:2]
        cards = [make_card(identity, "127.0.0.1:9") for identity in (called, caller)]
        self.reader, self.wire = Reader(), Wire()
        context = server_context(called, cards[1:])
        self.transport = TlsTransport(self.reader, context, None, lambda _: None)
        self.transport.connection_made(self.wire)
        arrivals, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        calling = client_context(caller, cards[0])
        with secrets_of(calling) as secret:
            secured = calling.wrap_bio(arrivals, outgoing)
            while not is_secured(secured):
                self.receive(outgoing.read())
                arrivals.write(bytes(self.wire.written))
                self.wire.written.clear()
            self.receive(outgoing.read())
            self.keys = WriteKeys(cipher_of(secured), secret())

    def receive(self, data: bytes) -> None:
        """Takes data as from the kernel, as far as it is read; the rest is lost."""
        rest = memoryview(data)
        while rest and not self.wire.is_paused and not self.wire.is_closed:
            buffer = self.transport.get_buffer(-1)
            count = min(len(buffer), len(rest))
            assert count, "the kernel is read, but there is no room"
            buffer[:count] = rest[:count]
            rest = rest[count:]
            self.transport.buffer_updated(count)

    def bytes_of(self, count: int) -> bytes:
        """One in each record."""
        return b"".join(self.keys.record(APPLICATION_DATA, b"x") for _ in range(count))


def test_one_turn_opens_a_few_records_and_the_next_ones_open_the_rest() -> None:
    async def scenario() -> None:
        called = Called()
        called.receive(called.bytes_of(10 * TURN_RECORDS))
        turns = [called.reader.count]
        for _ in range(20):
            await asyncio.sleep(0)
            turns.append(called.reader.count)

        steps = [later - earlier for earlier, later in pairwise(turns)]
        assert turns[0] <= TURN_RECORDS
        assert max(steps) <= TURN_RECORDS
        assert turns[-1] == 10 * TURN_RECORDS

    asyncio.run(scenario())


def test_many_records_that_bring_little_are_read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        called = Called()
        called.receive(called.bytes_of(5000))
        for _ in range(1000):
            await asyncio.sleep(0)

        assert 100 <= called.reader.count <= 100 + TURN_RECORDS
        assert not called.wire.is_closed

    monkeypatch.setattr(tls_transport, "SHORT_RECORDS_BURST", 100.0)
    monkeypatch.setattr(tls_transport, "SHORT_RECORDS_PER_S", 1e-6)
    asyncio.run(scenario())


def test_full_records_are_not_read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        called = Called()
        for _ in range(200):
            called.receive(called.keys.record(APPLICATION_DATA, bytes(2**14)))
            await asyncio.sleep(0)

        assert called.reader.count == 200 * 2**14

    monkeypatch.setattr(tls_transport, "SHORT_RECORDS_BURST", 100.0)
    monkeypatch.setattr(tls_transport, "SHORT_RECORDS_PER_S", 1e-6)
    asyncio.run(scenario())


def test_a_reader_that_pauses_stops_the_kernel_and_gets_everything_later() -> None:
    async def scenario() -> None:
        called = Called()
        called.transport.pause_reading()
        record = called.keys.record(APPLICATION_DATA, bytes(2**14))
        received = 0
        while not called.wire.is_paused:
            called.receive(record)
            record = called.keys.record(APPLICATION_DATA, bytes(2**14))
            received += 2**14
        assert called.reader.count == 0
        assert received <= tls_transport.RECEIVED_BYTES_MAX
        assert called.transport.eof_received()  # the connection stays open

        called.transport.resume_reading()
        for _ in range(10):
            await asyncio.sleep(0)
        assert called.reader.count == received
        assert called.wire.is_closed  # after all was read

    asyncio.run(scenario())


class Canceller(asyncio.Protocol):
    """Cancels the call whose handshake has just ended."""

    def __init__(self) -> None:
        self.call: asyncio.Task[TlsTransport] | None = None
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: ARG002
        assert self.call is not None
        self.call.cancel()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self.lost.set()


def test_a_call_that_is_cancelled_as_its_handshake_ends_leaves_no_connection() -> None:
    async def scenario() -> None:
        async with attacked() as (victim, _):
            connection = socket.socket()
            connection.setblocking(False)
            address = victim.transport.address
            await asyncio.get_running_loop().sock_connect(connection, address)
            context = letterbox_client_context(victim.card)
            caller = Canceller()
            caller.call = asyncio.create_task(
                secure(connection, caller, context, handshake_s=TIME_LIMIT_S, server_name="")
            )
            await asyncio.wait([caller.call])
            assert caller.call.cancelled()
            await caller.lost.wait()
            await victim.until(lambda: victim.transport.stats.refusals[Refusal.GONE] == 1)

    asyncio.run(scenario())


@pytest.fixture(autouse=True)
def no_errors_are_only_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [record for record in caplog.records if record.name == "asyncio"]
