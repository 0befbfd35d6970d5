"""A relay with real connections: who is let in, what is joined, and what hostile members cost."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from defl.cards import Card
from defl.node.net.acceptor import AcceptLimits
from defl.node.net.framing import Lane
from defl.node.net.pending import PendingLimits
from defl.node.net.refusal import Refusal
from defl.node.relay.leg import LEG_UNREAD_BYTES_MAX, LEG_UNSENT_BYTES_MAX
from defl.node.relay.protocol import (
    RELAY_FRAME_BYTES_MAX,
    RELAY_VERSION,
    Notice,
    Request,
    Signal,
    Verb,
    encode,
)
from defl.node.relay.service import Relay
from defl.node.relay.switchboard import SPLICED_TICKS_MAX
from defl.node.setup.identity import make_card
from support.relays import (
    HIGH,
    LOW,
    MIDDLE,
    RELAY,
    STRANGER,
    Guest,
    dialling_cards,
    is_let_in,
    pair_at,
    relay_at,
)
from support.transports import ORIGIN, TIME_LIMIT_S, address_of, listener

pytestmark = pytest.mark.usefixtures("on_both_loops")

MEMBERS = dialling_cards(LOW, MIDDLE, HIGH)
READY = encode(Notice(Signal.READY))
BEAT = encode(Notice(Signal.BEAT))
READ_AT_ONCE = 256 * 2**10  # by asyncio and uvloop

Scenario = Callable[[Relay, Card], Coroutine[object, object, None]]


def at_a_relay(scenario: Scenario, **options: Any) -> None:
    async def run() -> None:
        bound = listener()
        card = make_card(RELAY, address_of(bound))
        async with asyncio.timeout(TIME_LIMIT_S), relay_at(bound, MEMBERS, **options) as relay:
            await scenario(relay, card)

    asyncio.run(run())


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_what_one_member_writes_the_other_reads_however_much_it_is() -> None:
    async def scenario(relay: Relay, card: Card) -> None:
        parked, called = await pair_at(card)
        there, back = bytes(range(256)) * 8192, b"answer" * 100_000
        called.writer.write(there)
        parked.writer.write(back)
        assert await parked.reader.readexactly(len(there)) == there
        assert await called.reader.readexactly(len(back)) == back
        assert relay.server.stats.bytes == len(there) + len(back)

    at_a_relay(scenario)


@pytest.mark.parametrize("leaves_first", ["parked", "called"])
def test_the_end_of_one_connection_is_the_end_of_the_other_after_its_last_bytes(
    leaves_first: str,
) -> None:
    async def scenario(relay: Relay, card: Card) -> None:
        pair = await pair_at(card)
        first, other = pair if leaves_first == "parked" else reversed(pair)
        first.writer.write(b"last words")
        first.writer.close()
        assert await other.reader.read() == b"last words"
        await until(lambda: relay.server.connections == 0)

    at_a_relay(scenario)


def test_a_key_that_is_not_agreed_does_not_get_through_tls() -> None:
    async def scenario(relay: Relay, card: Card) -> None:
        assert not await is_let_in(card, STRANGER, Verb.PARK, LOW)
        await until(lambda: relay.refusals[Refusal.CERTIFICATE] == 1)
        assert relay.server.connections == 0

    at_a_relay(scenario)


def test_a_former_member_loses_its_connections_and_gets_no_others() -> None:
    async def scenario(relay: Relay, card: Card) -> None:
        parked, called = await pair_at(card)
        relay.agree(dialling_cards(LOW, MIDDLE))
        assert await parked.ended()
        assert await called.ended()
        again = await Guest.asking(card, LOW, Verb.CALL, HIGH)
        refusal = await again.notice()
        assert refusal is not None
        assert "the peer's key is no member's" in refusal.reason
        assert not await is_let_in(card, HIGH, Verb.PARK, LOW)

    at_a_relay(scenario)


def test_of_two_connections_of_one_key_the_newer_one_is_called() -> None:
    async def scenario(_: Relay, card: Card) -> None:
        older = await Guest.asking(card, HIGH, Verb.PARK, LOW)
        assert await older.signal() is Signal.PARKED
        newer = await Guest.asking(card, HIGH, Verb.PARK, LOW)
        assert await newer.signal() is Signal.PARKED
        assert await older.ended()
        await Guest.asking(card, LOW, Verb.CALL, HIGH)
        assert await newer.signal() is Signal.GO

    at_a_relay(scenario)


def test_a_member_parks_for_itself_alone() -> None:
    """It says whom it waits for; who it is, its certificate says."""

    async def scenario(relay: Relay, card: Card) -> None:
        parked = await Guest.asking(card, MIDDLE, Verb.PARK, LOW)
        assert await parked.signal() is Signal.PARKED
        called = await Guest.asking(card, LOW, Verb.CALL, HIGH)
        assert await called.signal() is Signal.ABSENT
        assert relay.server.parked == 1

    at_a_relay(scenario)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(bytes(4), id="an empty frame"),
        pytest.param(b"\xff\xff\xff\xff", id="a frame without end"),
        pytest.param(b"\x00\x00\x00\x02\xc1\xc1", id="no notice"),
        pytest.param(len(READY).to_bytes(4, "big") + READY, id="ready without a call"),
        pytest.param(bytes(LEG_UNREAD_BYTES_MAX + 1), id="more than a few frames"),
    ],
)
def test_a_parked_member_that_does_not_follow_the_protocol_is_ended(sent: bytes) -> None:
    async def scenario(relay: Relay, card: Card) -> None:
        parked = await Guest.asking(card, HIGH, Verb.PARK, LOW)
        assert await parked.signal() is Signal.PARKED
        parked.writer.write(sent)
        assert await parked.ended()
        await until(lambda: relay.server.connections == 0)

    at_a_relay(scenario)


def test_what_is_sent_before_its_time_never_reaches_the_other_member() -> None:
    async def scenario(_: Relay, card: Card) -> None:
        parked = await Guest.asking(card, HIGH, Verb.PARK, LOW)
        assert await parked.signal() is Signal.PARKED
        called = await Guest.asking(card, LOW, Verb.CALL, HIGH)
        assert await parked.signal() is Signal.GO
        parked.writer.write(len(READY).to_bytes(4, "big") + READY + b"too early")
        assert await called.signal() is Signal.GO
        assert await called.ended()

    at_a_relay(scenario)


def test_a_member_that_sends_more_than_its_request_is_sent_away() -> None:
    async def scenario(relay: Relay, card: Card) -> None:
        guest = await Guest.at(card, HIGH)
        request = encode(Request(RELAY_VERSION, ORIGIN, Verb.PARK, LOW.public_key, Lane.CONTROL))
        guest.writer.write(len(request).to_bytes(4, "big") + request + b"more")
        assert await guest.is_sent_away()
        assert relay.server.connections == 0

    at_a_relay(scenario)


def test_a_beat_that_crosses_go_is_no_part_of_what_the_members_say() -> None:
    async def scenario(relay: Relay, card: Card) -> None:
        parked = await Guest.asking(card, HIGH, Verb.PARK, LOW)
        assert await parked.signal() is Signal.PARKED
        called = await Guest.asking(card, LOW, Verb.CALL, HIGH)
        await until(lambda: relay.server.stats.answers[Signal.GO] == 1)
        parked.send(BEAT)
        assert await parked.signal() is Signal.GO
        parked.send(READY)
        assert await called.signal() is Signal.GO
        called.writer.write(b"hello")
        assert await parked.reader.readexactly(5) == b"hello"
        parked.writer.write(b"answer")
        assert await called.reader.readexactly(6) == b"answer"

    at_a_relay(scenario)


def test_a_member_that_never_reads_stops_its_peer_and_costs_a_bounded_buffer() -> None:
    async def scenario(relay: Relay, card: Card) -> None:
        parked, called = await pair_at(card)
        parked.reader._transport.pause_reading()  # type: ignore[attr-defined]
        sent = 0
        while True:
            called.writer.write(bytes(READ_AT_ONCE))
            sent += READ_AT_ONCE
            try:
                async with asyncio.timeout(0.2):
                    await called.writer.drain()
            except TimeoutError:
                break
        legs = list(relay.server._legs)
        unsent = [leg._transport.get_write_buffer_size() for leg in legs if leg._transport]
        assert 0 < max(unsent) <= LEG_UNSENT_BYTES_MAX + 2 * READ_AT_ONCE

    at_a_relay(scenario)


def test_strangers_take_nothing_from_members() -> None:
    async def scenario(relay: Relay, card: Card) -> None:
        host, port = card.address.split(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
        foreign = [is_let_in(card, STRANGER, Verb.PARK, LOW) for _ in range(20)]
        assert not any(await asyncio.gather(*foreign))
        parked, called = await pair_at(card)
        called.writer.write(b"hello")
        assert await parked.reader.readexactly(5) == b"hello"
        assert relay.server.connections == 2
        assert relay.pending <= 8
        for _, writer in silent:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()

    at_a_relay(scenario, limits=AcceptLimits(pending=PendingLimits(silent=8)))


def test_fuzzed_frames_of_members_leave_nothing_behind() -> None:
    async def scenario(relay: Relay, card: Card) -> None:
        rng = random.Random(7)  # noqa: S311
        for place in range(30):
            if place % 2:
                guest = await Guest.asking(card, HIGH, Verb.PARK, LOW)
            else:
                guest = await Guest.at(card, (LOW, MIDDLE, HIGH)[place % 3])
            frames = (rng.randbytes(rng.randint(1, RELAY_FRAME_BYTES_MAX)) for _ in range(10))
            for frame in frames:
                guest.send(frame)
            assert await guest.is_sent_away()
        await until(lambda: relay.server.connections == 0)

    at_a_relay(scenario)


def test_a_member_that_says_nothing_after_tls_is_ended() -> None:
    async def scenario(relay: Relay, card: Card) -> None:
        silent = await Guest.at(card, LOW)
        assert await silent.ended()
        assert relay.refusals[Refusal.SLOW] == 1

    at_a_relay(scenario, limits=AcceptLimits(handshake_s=0.2))


def test_a_pair_without_a_byte_is_ended_and_one_with_bytes_is_not() -> None:
    ticks: asyncio.Queue[None] = asyncio.Queue()

    async def tick(_: float) -> None:
        await ticks.get()
        ticks.task_done()

    async def scenario(relay: Relay, card: Card) -> None:
        parked, called = await pair_at(card)
        for _ in range(2 * SPLICED_TICKS_MAX):
            called.writer.write(b"x")
            await parked.reader.readexactly(1)
            ticks.put_nowait(None)
            await ticks.join()
        assert relay.server.spliced == 1
        for _ in range(SPLICED_TICKS_MAX + 1):
            ticks.put_nowait(None)
            await ticks.join()
        assert await parked.ended()
        assert await called.ended()

    at_a_relay(scenario, wait=tick)
