"""The letterbox: a member that slept while all others were replaced hears of the new ones.

The sleeper is in epoch 0 and knows members that are gone. The newcomer is a member of epoch 5 and
knows the sleeper. Strangers only know where the sleeper listens.
"""

import asyncio
import contextlib
import gc
import os
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from defl.contacts import STRANGERS_FROM
from defl.ids import NO_DIGEST, NodeId, digest_of
from defl.node.net.acceptor import AcceptLimits
from defl.node.net.hello import PROTOCOL_VERSION, Hello, decode_hello, encode_hello
from defl.node.net.letterbox import LetterboxLimits
from defl.node.net.pending import PendingLimits, Stranger
from defl.node.net.sessions import SESSION_BYTES
from defl.node.net.tls import letterbox_client_context
from defl.node.net.transport import Lane, Refusal, TransportLimits
from defl.node.setup.identity import Identity, make_card, make_identity
from support.transports import (
    CONTROL_BYTES_MAX,
    IDENTITIES,
    ORIGIN,
    QUICK,
    TIME_LIMIT_S,
    Peer,
    listener,
    others,
    pair,
    running,
)

pytestmark = pytest.mark.usefixtures("on_both_loops")

NEWCOMER = make_identity("newcomer")
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def sleeper_and_newcomer(
    sleeper_id: int = 3, newcomer_id: int = 0, **options: Any
) -> tuple[Peer, Peer]:
    """The newcomer dials if its number is the lower one, and else waits to be dialled."""
    absent = [make_card(identity, "127.0.0.1:9") for identity in IDENTITIES]
    sleeper = Peer(
        sleeper_id, (), listener(), contacts=others(absent, sleeper_id), limits=TransportLimits()
    )
    newcomer = Peer(
        newcomer_id,
        (),
        listener(),
        identity=NEWCOMER,
        contacts={sleeper.me: sleeper.card},
        epoch=5,
        **options,
    )
    return sleeper, newcomer


@pytest.mark.parametrize("sleeper_id", [3, 0], ids=["is dialled", "would have to dial"])
def test_a_sleeper_hears_from_a_newcomer_answers_and_is_connected_in_the_new_epoch(
    sleeper_id: int,
) -> None:
    async def scenario() -> None:
        limits = replace(QUICK, dial=replace(QUICK.dial, uncalled_s=0.01))
        sleeper, newcomer = sleeper_and_newcomer(sleeper_id, 3 - sleeper_id, limits=limits)
        async with running(sleeper, newcomer):
            await newcomer.until(lambda: newcomer.epochs == {sleeper.me: 0})
            assert not newcomer.transport.connected(sleeper.me)
            assert newcomer.send(sleeper, b"handover")
            await sleeper.until(lambda: sleeper.received)
            stranger, lane, frame = sleeper.received[0]
            assert (stranger >= STRANGERS_FROM, lane, frame) == (True, Lane.CONTROL, b"handover")
            assert not sleeper.events
            assert not sleeper.transport.connected(stranger)
            assert not sleeper.transport.send(stranger, b"a chunk", Lane.WEIGHTS)

            assert sleeper.transport.send(stranger, b"more", Lane.CONTROL)
            await newcomer.until(lambda: newcomer.received)
            assert newcomer.received == [(sleeper.me, Lane.CONTROL, b"more")]

            sleeper.transport.set_contacts({newcomer.me: newcomer.card}, 5, sleeper.me)
            await sleeper.until_connected(newcomer)
            await newcomer.until_connected(sleeper)
            assert newcomer.epochs == {sleeper.me: 5}
            await sleeper.until(lambda: sleeper.transport.unauthenticated == 0)
            assert not sleeper.transport.send(stranger, b"more", Lane.CONTROL)
            newcomer.send(sleeper, b"vote")
            await sleeper.until(lambda: len(sleeper.received) == 2)
            assert sleeper.received[1] == (newcomer.me, Lane.CONTROL, b"vote")

    asyncio.run(scenario())


def test_only_letters_go_through_the_letterbox_and_other_frames_wait() -> None:
    async def scenario() -> None:
        sleeper, newcomer = sleeper_and_newcomer(is_letter=lambda frame: frame == b"handover")
        async with running(sleeper, newcomer):
            await newcomer.until(lambda: newcomer.epochs)
            newcomer.send(sleeper, b"vote")
            newcomer.send(sleeper, b"handover")
            newcomer.send(sleeper, b"chunk", Lane.WEIGHTS)
            await sleeper.until(lambda: sleeper.received)
            sleeper.transport.set_contacts({newcomer.me: newcomer.card}, 5, sleeper.me)
            await sleeper.until(lambda: len(sleeper.received) == 3)
            stranger = sleeper.received[0][0]
            assert sleeper.received[0] == (stranger, Lane.CONTROL, b"handover")
            assert set(sleeper.received[1:]) == {
                (newcomer.me, Lane.CONTROL, b"vote"),
                (newcomer.me, Lane.WEIGHTS, b"chunk"),
            }

    asyncio.run(scenario())


def test_a_stranger_gets_nothing_that_is_meant_for_a_contact() -> None:
    async def scenario() -> None:
        sleeper, newcomer = sleeper_and_newcomer()
        async with running(sleeper, newcomer):
            await newcomer.until(lambda: newcomer.epochs)
            newcomer.send(sleeper, b"handover")
            await sleeper.until(lambda: sleeper.received)
            stranger = sleeper.received[0][0]
            for contact in range(3):
                sleeper.transport.send(NodeId(contact), b"to a contact", Lane.CONTROL)
            for unknown in (stranger + 1, 500, 3):
                assert not sleeper.transport.send(NodeId(unknown), b"?", Lane.CONTROL)
            sleeper.transport.send(stranger, b"to the stranger", Lane.CONTROL)
            await newcomer.until(lambda: newcomer.received)
            assert [frame for _, _, frame in newcomer.received] == [b"to the stranger"]

    asyncio.run(scenario())


def test_a_member_that_refuses_us_in_our_own_epoch_is_not_announced() -> None:
    async def scenario() -> None:
        sleeper, newcomer = sleeper_and_newcomer()
        sleeper.transport.set_contacts({}, 5, sleeper.me)
        called: list[bool] = []
        call = newcomer.transport._greeter.call

        async def count_calls(*arguments: Any, letterbox: bool = False) -> Any:
            called.append(letterbox)
            return await call(*arguments, letterbox=letterbox)

        newcomer.transport._greeter.call = count_calls  # type: ignore[method-assign]
        async with running(sleeper, newcomer):
            await newcomer.until(lambda: sum(called) >= 3)
            assert not newcomer.events
            assert newcomer.send(sleeper, b"vote")  # is kept for later
            await sleeper.until(lambda: sleeper.transport.unauthenticated == 0)
            assert not sleeper.received

    asyncio.run(scenario())


def test_a_guest_that_is_not_known_yet_leaves_the_letterbox_alone() -> None:
    async def scenario() -> None:
        sleeper, guest = sleeper_and_newcomer(newcomer_id=999)
        async with running(sleeper, guest):
            await guest.until(lambda: guest.transport.stats.refusals[Refusal.UNKNOWN] >= 6)
            assert not guest.events
            assert not sleeper.transport._acceptor._turns.keys() & {Stranger.LETTERBOX}

    asyncio.run(scenario())


# --- Strangers ---------------------------------------------------------------------------


@asynccontextmanager
async def victim_of(**limits: Any) -> AsyncIterator[tuple[Peer, Peer]]:
    """A node with this letterbox, and a member that stays connected to it."""
    accept = AcceptLimits(letterbox_per_s=1000.0, letterbox_burst=1000.0)
    accept = replace(accept, **limits.pop("accept", {}))
    own = TransportLimits(accept=accept, letterbox=LetterboxLimits(**limits))
    async with pair(second={"limits": own}) as (member, victim):
        yield victim, member
        assert victim.events == [("connected", member.me)]
        assert member.send(victim, b"still here", Lane.WEIGHTS)
        await victim.until(lambda: (member.me, Lane.WEIGHTS, b"still here") in victim.received)


def framed(frame: bytes) -> bytes:
    return len(frame).to_bytes(4, "big") + frame


def hello(
    identity: Identity = NEWCOMER,
    *,
    version: int = PROTOCOL_VERSION,
    origin: bytes = ORIGIN,
    epoch: int = 9,
    lane: Lane = Lane.CONTROL,
) -> bytes:
    key, session = identity.public_key, bytes(SESSION_BYTES)
    return framed(encode_hello(Hello(version, origin, epoch, key, lane, session)))


async def call(victim: Peer, data: bytes, source: str = "127.0.0.1") -> Streams:
    host, port = victim.transport.address
    streams = await asyncio.open_connection(
        host,
        port,
        ssl=letterbox_client_context(victim.card),
        server_hostname="",
        local_addr=(source, 0),
    )
    streams[1].write(data)
    return streams


async def answered(streams: Streams, victim: Peer) -> None:
    """With the victim's hello; its session is its own."""
    length = len(hello(victim.identity, epoch=0))
    async with asyncio.timeout(TIME_LIMIT_S):
        sent = await streams[0].readexactly(length)
    stated = decode_hello(sent[4:])
    assert stated is not None
    expected = Hello(
        PROTOCOL_VERSION, ORIGIN, 0, victim.identity.public_key, Lane.CONTROL, stated.session
    )
    assert sent == framed(encode_hello(expected))


async def closed(streams: Streams) -> bytes:
    """What the victim still sent before it disconnected."""
    data = b""
    async with asyncio.timeout(TIME_LIMIT_S):
        with contextlib.suppress(OSError):
            data = await streams[0].read()
        streams[1].close()
        with contextlib.suppress(OSError):
            await streams[1].wait_closed()
    return data


def letters(victim: Peer) -> list[bytes]:
    return [frame for peer, _, frame in victim.received if peer >= STRANGERS_FROM]


def test_a_caller_that_claims_a_members_key_is_a_stranger_all_the_same() -> None:
    async def scenario() -> None:
        async with victim_of() as (victim, member):
            streams = await call(victim, hello(member.identity) + framed(b"vote"))
            await answered(streams, victim)
            await victim.until(lambda: victim.received)
            assert [(peer >= STRANGERS_FROM, frame) for peer, _, frame in victim.received] == [
                (True, b"vote")
            ]
            assert not victim.transport.stats.replaced
            streams[1].transport.abort()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (hello(origin=digest_of(b"another")), Refusal.FEDERATION),
        (hello(origin=NO_DIGEST), Refusal.PROBE),
        (hello(version=PROTOCOL_VERSION + 1), Refusal.VERSION),
        (hello(lane=Lane.WEIGHTS), Refusal.HELLO),
        (framed(b"rubbish"), Refusal.HELLO),
    ],
    ids=["another federation", "a probe", "another version", "the weights lane", "rubbish"],
)
def test_a_caller_that_does_not_belong_here_learns_nothing(data: bytes, kind: Refusal) -> None:
    async def scenario() -> None:
        async with victim_of() as (victim, _):
            assert await closed(await call(victim, data + framed(b"vote"))) == b""
            assert victim.transport.stats.refusals[kind] == 1
            assert not victim.received

    asyncio.run(scenario())


def test_a_letter_above_the_control_lanes_bound_ends_the_call() -> None:
    async def scenario() -> None:
        async with victim_of() as (victim, _):
            too_long = (CONTROL_BYTES_MAX + 1).to_bytes(4, "big") + bytes(1000)
            streams = await call(victim, hello() + framed(b"letter") + too_long)
            await answered(streams, victim)
            assert await closed(streams) == b""
            assert letters(victim) == [b"letter"]

    asyncio.run(scenario())


def test_letters_are_read_at_a_strict_rate() -> None:
    async def scenario() -> None:
        async with victim_of(letters_per_s=0.001, letters_burst=2.0) as (victim, member):
            streams = await call(victim, hello() + 10 * framed(b"letter"))
            await answered(streams, victim)
            await victim.until(lambda: len(letters(victim)) == 3)  # the third goes on credit
            for i in range(20):
                member.send(victim, b"%d" % i)
            await victim.until(lambda: len(victim.received) == 23)
            assert len(letters(victim)) == 3
            streams[1].transport.abort()

    asyncio.run(scenario())


def test_calls_to_the_letterbox_begin_at_a_strict_rate_that_members_do_not_share() -> None:
    async def scenario() -> None:
        slow = {"letterbox_per_s": 0.001, "letterbox_burst": 1.0, "handshake_s": 60.0}
        async with victim_of(accept=slow) as (victim, member):
            first = await call(victim, hello())
            await answered(first, victim)
            second = asyncio.create_task(call(victim, hello()))
            await victim.until(lambda: victim.transport.unauthenticated == 2)
            seen = len(member.events)
            for channel in member.transport._contacts[victim.me].channels.values():
                if channel.link is not None:
                    channel.link.abort()
            await member.until(lambda: len(member.events) >= seen + 2)
            await member.until_connected(victim)
            assert not second.done()
            second.cancel()
            await asyncio.wait([second])
            first[1].transport.abort()
            await victim.until_connected(member)
            victim.events = victim.events[:1]

    asyncio.run(scenario())


def test_an_idle_caller_is_disconnected() -> None:
    async def scenario() -> None:
        async with victim_of(letterbox_idle_s=0.02) as (victim, _):
            streams = await call(victim, hello() + framed(b"letter"))
            await answered(streams, victim)
            assert await closed(streams) == b""
            assert letters(victim) == [b"letter"]
            assert victim.transport.unauthenticated == 0

    asyncio.run(scenario())


def test_a_flood_of_callers_evicts_neither_members_nor_a_caller_from_elsewhere() -> None:
    async def scenario() -> None:
        async with victim_of() as (victim, member):
            for _ in range(300):  # the flood's address has called often
                _, writer = await asyncio.open_connection(*victim.transport.address)
                writer.transport.abort()
            await victim.until(lambda: victim.transport.unauthenticated == 0)
            before = victim.transport.turned_away
            honest = await call(victim, hello() + framed(b"first"), source="127.0.0.2")
            await answered(honest, victim)
            flood = []
            for _ in range(50):
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):  # it has no place
                    flood.append(await call(victim, hello()))
                    await answered(flood[-1], victim)
                assert victim.transport.unauthenticated <= PendingLimits().letterbox + 1
            places = PendingLimits().letterbox
            assert victim.transport.turned_away - before == 1 + 50 - places
            honest[1].write(framed(b"second"))
            await victim.until(lambda: b"second" in letters(victim))
            stranger = next(peer for peer, _, frame in victim.received if frame == b"second")
            assert victim.transport.send(stranger, b"answer", Lane.CONTROL)
            async with asyncio.timeout(TIME_LIMIT_S):
                assert await honest[0].readexactly(10) == framed(b"answer")
            assert victim.transport.connected(member.me)
            for streams in (*flood, honest):
                streams[1].transport.abort()
            await victim.until(lambda: victim.transport.unauthenticated == 0)

    asyncio.run(scenario())


def test_many_callers_leave_neither_memory_nor_open_files_behind() -> None:
    async def scenario() -> None:
        async with victim_of() as (victim, _):

            async def visit(times: int) -> None:
                for _ in range(times):
                    streams = await call(victim, hello() + framed(b"letter"))
                    await answered(streams, victim)
                    streams[1].transport.abort()
                await victim.until(lambda: victim.transport.unauthenticated == 0)
                gc.collect()

            await visit(5)
            files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
            tracemalloc.start()
            await visit(3)
            before, _ = tracemalloc.get_traced_memory()
            await visit(40)
            # If each connection left its link behind, that would be 40 buffers of 65,536 bytes.
            await victim.until(lambda: tracemalloc.get_traced_memory()[0] - before < 4 * 65_536)
            tracemalloc.stop()
            assert not victim.transport._letterbox._links
            if files:
                await victim.until(lambda: len(os.listdir("/proc/self/fd")) <= files + 2)

    asyncio.run(scenario())
