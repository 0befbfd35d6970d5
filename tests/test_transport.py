"""Frames between members over real TLS on loopback."""

import asyncio
import socket
from random import Random

import pytest
from msgspec.structs import replace

from defl.budget import TokenBucket
from defl.errors import Malformed, UserError
from defl.ids import NodeId
from defl.node.net.framing import PARSE_FRAMES, Link
from defl.node.net.send_queue import SendQueue, Traffic
from defl.node.net.sessions import SESSION_BYTES
from defl.node.net.transport import Frame, Lane, Refusal, Transport, TransportLimits
from defl.node.setup.identity import make_card, make_identity
from support.transports import (
    CONTROL_BYTES_MAX,
    FRAME_BYTES_MAX,
    IDENTITIES,
    ORIGIN,
    Peer,
    address_of,
    cards_of,
    listener,
    pair,
    running,
    shorter,
)

pytestmark = pytest.mark.usefixtures("on_both_loops")

MB = 2**20


def test_frames_of_every_size_arrive_whole_and_in_order() -> None:
    async def scenario() -> None:
        rng = Random(1)  # noqa: S311
        sizes = [1, 2, 3, 4, 5, 65_531, 65_532, 65_533, 65_536, 262_140, 262_141, CONTROL_BYTES_MAX]
        sizes += [rng.randrange(1, 200_000) for _ in range(60)]
        frames = [rng.randbytes(size) for size in sizes]
        async with pair() as (a, b):
            for lane in Lane:
                for frame in frames:
                    assert a.send(b, frame, lane)
                    assert b.send(a, frame, lane)
            for receiver, sender in ((a, b), (b, a)):
                await receiver.until(lambda r=receiver: len(r.received) == 2 * len(frames))
                for lane in Lane:
                    got = [frame for _, on, frame in receiver.received if on is lane]
                    assert got == frames
                    traffic = receiver.transport.stats.traffic[sender.me, lane]
                    assert traffic.frames_in == traffic.frames_out == len(frames)
                    assert traffic.bytes_in == sum(sizes) + 4 * len(frames)
                    assert traffic.bytes_out == traffic.bytes_in
                assert {peer for peer, _, _ in receiver.received} == {sender.me}

    asyncio.run(scenario())


def test_four_members_exchange_eight_megabytes_all_to_all() -> None:
    async def scenario() -> None:
        listeners = [listener() for _ in range(4)]
        cards = cards_of(listeners)
        peers = [Peer(i, cards, bound) for i, bound in enumerate(listeners)]
        blobs = [Random(i).randbytes(8 * MB) for i in range(4)]  # noqa: S311
        async with running(*peers):
            for peer in peers:
                others = [other for other in peers if other is not peer]
                await peer.until_connected(*others)
                for other in others:
                    for start in range(0, 8 * MB, 4 * MB):
                        assert peer.send(other, blobs[peer.me][start:][: 4 * MB], Lane.WEIGHTS)
            for peer in peers:
                await peer.until(lambda p=peer: len(p.received) == 6)
                for other in peers:
                    if other is not peer:
                        parts = [frame for sender, _, frame in peer.received if sender == other.me]
                        assert b"".join(parts) == blobs[other.me]

    asyncio.run(scenario())


def test_a_stalled_weights_lane_does_not_delay_control_frames() -> None:
    async def scenario() -> None:
        vote_came = asyncio.Event()

        async def handle(_: NodeId, lane: Lane, frame: Frame) -> None:
            if lane is Lane.CONTROL:
                vote_came.set()
            else:
                await vote_came.wait()

        limits = shorter(queue_bytes_max=64 * MB)
        async with pair(first={"limits": limits}, second={"on_frame": handle}) as (a, b):
            for _ in range(10):
                assert a.send(b, bytes(4 * MB), Lane.WEIGHTS)
            await b.until(lambda: b.received)
            assert a.send(b, b"vote")
            await b.until(lambda: len(b.received) == 11)
            lanes = [lane for _, lane, _ in b.received]
            assert lanes[:2] == [Lane.WEIGHTS, Lane.CONTROL]

    asyncio.run(scenario())


def test_a_small_frame_never_waits_for_an_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    connections: list[asyncio.BaseTransport] = []
    made = Link.connection_made

    def record(link: Link, connection: asyncio.BaseTransport) -> None:
        connections.append(connection)
        made(link, connection)

    monkeypatch.setattr(Link, "connection_made", record)

    async def scenario() -> None:
        async with pair():
            assert len(connections) == 4  # both ends of both lanes
            for connection in connections:
                end = connection.get_extra_info("socket")
                assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    asyncio.run(scenario())


def test_a_healthy_link_is_not_stalled() -> None:
    async def scenario() -> None:
        async with pair() as (a, b):
            for here, there in ((a, b), (b, a)):
                link = here.transport.control_link(there.me)
                assert link is not None
                assert not link.is_stalled
        assert not Link().is_stalled

    asyncio.run(scenario())


def test_the_way_to_a_peer_and_its_round_trip_are_known_soon_after_the_connection() -> None:
    async def scenario() -> None:
        async with pair() as (a, b):
            for here, there in ((a, b), (b, a)):
                link = here.transport.control_link(there.me)
                assert link is not None
                assert str(link.route) == "direct"
                await here.until(lambda link=link: link.round_trip_s is not None)
                assert not here.received
            assert a.transport.control_link(NodeId(3)) is None

    asyncio.run(scenario())


def test_a_burst_of_frames_leaves_turns_for_other_connections() -> None:
    async def scenario() -> None:
        handled_before_turn: list[int] = []

        def handle(_peer: NodeId, _lane: Lane, _frame: Frame) -> None:
            if not handled_before_turn:
                turn = lambda: handled_before_turn.append(len(b.received))  # noqa: E731
                asyncio.get_running_loop().call_soon(turn)

        async with pair(second={"on_frame": handle}) as (a, b):
            for i in range(100):  # they leave together
                assert a.send(b, bytes([i]))
            await b.until(lambda: len(b.received) == 100)
            assert handled_before_turn[0] <= PARSE_FRAMES
            assert [frame[0] for _, _, frame in b.received] == list(range(100))

    asyncio.run(scenario())


def test_a_busy_receiver_slows_the_sender_and_its_queue_stays_bounded() -> None:
    async def scenario() -> None:
        free = asyncio.Event()

        async def handle(_peer: NodeId, _lane: Lane, _frame: Frame) -> None:
            await free.wait()

        limits = shorter(queue_bytes_max=8 * MB)
        async with pair(first={"limits": limits}, second={"on_frame": handle}) as (a, b):
            accepted = 0
            for _ in range(200):  # far more than the kernel buffers
                accepted += a.send(b, bytes(MB), Lane.WEIGHTS)
                assert a.transport.queued_bytes(b.me, Lane.WEIGHTS) <= 8 * MB
                await asyncio.sleep(0)
            assert accepted < 60
            await b.until(lambda: b.received)
            assert len(b.received) == 1
            dropped = a.transport.stats.traffic[b.me, Lane.WEIGHTS].dropped
            assert dropped == 200 - accepted
            free.set()
            await b.until(lambda: len(b.received) == accepted)

    asyncio.run(scenario())


def test_a_peer_over_its_message_rate_is_read_more_slowly_and_loses_nothing() -> None:
    async def scenario() -> None:
        limits = shorter(messages_per_s=200.0, messages_burst=10.0)
        async with pair(second={"limits": limits}) as (a, b):
            loop = asyncio.get_running_loop()
            began = loop.time()
            for i in range(60):
                assert a.send(b, bytes([i]))
            await b.until(lambda: len(b.received) == 60)
            assert loop.time() - began > 0.2  # (60 - 10) / 200 s, less what rounding gives
            assert [frame[0] for _, _, frame in b.received] == list(range(60))

    asyncio.run(scenario())


def test_a_token_bucket_lets_a_burst_through_and_then_its_rate() -> None:
    bucket = TokenBucket(per_s=10, burst=5, now=100.0)
    assert bucket.take(5, 100.0) == 0
    assert bucket.take(1, 100.0) == pytest.approx(0.1)
    assert bucket.take(1, 100.1) == pytest.approx(0.1)
    assert bucket.take(5, 1000.0) == 0  # idle time saves up a burst, no more
    assert bucket.take(20, 1000.0) == pytest.approx(2.0)


def test_the_newest_frames_are_kept_for_an_absent_peer() -> None:
    traffic = Traffic()
    queue = SendQueue(traffic)
    for i in range(10):
        queue.push(bytes([i]), frames_max=3, bytes_max=100)
    assert [queue.pop()[0] for _ in range(3)] == [7, 8, 9]
    assert traffic.dropped >= 7
    queue.push(bytes(200), frames_max=3, bytes_max=100)
    assert len(queue) == 1
    queue.push(bytes(60), frames_max=3, bytes_max=100)
    assert queue.bytes == 60


def test_frames_queued_for_an_absent_peer_are_delivered_when_it_connects() -> None:
    async def scenario() -> None:
        listeners = [listener() for _ in range(4)]
        cards = cards_of(listeners)
        for bound in listeners[2:]:
            bound.close()
        a, b = Peer(0, cards, listeners[0]), Peer(1, cards, listeners[1])
        async with running(a):
            assert a.send(b, b"early")
            async with running(b):
                await b.until(lambda: b.received)
                assert b.received == [(a.me, Lane.CONTROL, b"early")]

    asyncio.run(scenario())


@pytest.mark.parametrize("restarted", [0, 1])
def test_a_restarted_member_is_reconnected_by_the_dialling_side(restarted: int) -> None:
    async def scenario() -> None:
        listeners = [listener() for _ in range(4)]
        cards = cards_of(listeners)
        spare = listeners[restarted].dup()  # the restarted member listens at the same address
        for bound in listeners[2:]:
            bound.close()
        remaining, leaving = (Peer(i, cards, listeners[i]) for i in (1 - restarted, restarted))
        async with running(remaining):
            async with running(leaving):
                await remaining.until_connected(leaving)
            await remaining.until(lambda: not remaining.transport.connected(leaving.me))
            again = Peer(restarted, cards, spare)
            async with running(again):
                await remaining.until_connected(again)
                await again.until_connected(remaining)
                assert remaining.events[:3] == [
                    ("connected", leaving.me),
                    ("disconnected", leaving.me),
                    ("connected", leaving.me),
                ]
                remaining.send(again, b"to the second life")
                await again.until(lambda: again.received)
                assert remaining.transport.stats.reconnects[leaving.me] >= 2

    asyncio.run(scenario())


def test_a_newer_connection_of_a_member_replaces_a_dead_one() -> None:
    async def scenario() -> None:
        listeners = [listener() for _ in range(4)]
        cards = cards_of(listeners)
        elsewhere = listener()
        b = Peer(1, cards, listeners[1])
        same = {"session": bytes(SESSION_BYTES)}  # as of one process
        first, second = Peer(0, cards, listeners[0], **same), Peer(0, cards, elsewhere, **same)
        for bound in listeners[2:]:
            bound.close()

        async def never(_: float) -> None:
            await asyncio.Event().wait()

        first.transport._dialler._wait = never  # the first connection hangs for good
        async with running(b, first):
            await b.until_connected(first)
            await first.until_connected(b)
            async with running(second):
                await b.until(lambda: b.transport.stats.replaced[first.me] == 2)
                await b.until_connected(second)
                await first.until(lambda: not first.transport.connected(b.me))
                b.send(second, b"hello")
                await second.until(lambda: second.received)
                assert not first.received

    asyncio.run(scenario())


def test_a_member_that_moved_is_reached_through_its_newer_card() -> None:
    async def scenario() -> None:
        listeners = [listener() for _ in range(4)]
        cards = cards_of(listeners)
        for bound in listeners[1:]:
            bound.close()
        moved_to = listener()
        waits: list[float] = []

        async def forever(seconds: float) -> None:
            waits.append(seconds)
            await asyncio.Event().wait()

        a = Peer(0, cards, listeners[0], wait=forever)
        b = Peer(1, cards, moved_to)
        async with running(a, b):
            await a.until(lambda: len(waits) == 6)  # two lanes to each of three
            assert "nobody listens at " in a.transport.stats.trouble[b.me]
            newer = make_card(IDENTITIES[1], address_of(moved_to), serial=1)
            assert a.transport.update_card(newer)
            await a.until_connected(b)
            assert b.me not in a.transport.stats.trouble
            assert not a.transport.update_card(newer)

    asyncio.run(scenario())


def test_an_older_altered_or_foreign_card_changes_nothing() -> None:
    async def scenario() -> None:
        bound = [listener() for _ in range(4)]
        cards = [make_card(i, "127.0.0.1:9", serial=5) for i in IDENTITIES]
        a = Peer(0, cards, bound[0])
        older = make_card(IDENTITIES[1], "127.0.0.1:10", serial=4)
        stranger = make_card(make_identity("member 1"), "127.0.0.1:10", serial=9)
        renamed = make_card(make_identity("me", key=IDENTITIES[1].key), "127.0.0.1:10", serial=9)
        newer = make_card(IDENTITIES[1], "127.0.0.1:10", serial=6)
        for card in (older, cards[1], stranger, renamed):
            assert not a.transport.update_card(card)
        assert not a.transport.update_card(replace(newer, address="127.0.0.1:11"))
        for sock in bound:
            sock.close()

    asyncio.run(scenario())


def test_a_renewed_certificate_of_the_same_key_is_accepted_by_its_card() -> None:
    async def scenario() -> None:
        listeners = [listener() for _ in range(4)]
        cards = cards_of(listeners)
        renewed = make_identity("member 0", key=IDENTITIES[0].key)
        a = Peer(0, cards, listeners[0], identity=renewed)
        b = Peer(1, cards, listeners[1])
        for bound in listeners[2:]:
            bound.close()
        async with running(a, b):
            refusals = b.transport.stats.refusals
            await b.until(lambda: refusals[Refusal.CERTIFICATE] >= 2)
            assert b.transport.update_card(make_card(renewed, cards[0].address, serial=1))
            await b.until_connected(a)

    asyncio.run(scenario())


def test_backoff_grows_to_its_bound_with_jitter() -> None:
    async def scenario() -> None:
        waits: list[float] = []
        enough = asyncio.Event()

        async def passing(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) >= 60:
                enough.set()
                await asyncio.Event().wait()

        listeners = [listener() for _ in range(4)]
        cards = cards_of(listeners)
        for bound in listeners[:3]:
            if bound is not listeners[2]:
                bound.close()
        listeners[3].close()  # no member answers there
        c = Peer(2, cards, listeners[2], limits=TransportLimits(), wait=passing)
        async with running(c):
            async with asyncio.timeout(10):
                await enough.wait()
        assert 0.05 <= waits[0] <= 0.1
        assert all(1.5 - 0.01 <= seconds <= 3.0 for seconds in waits[20:])
        assert len(set(waits)) == len(waits)

    asyncio.run(scenario())


@pytest.mark.parametrize("waits", [False, True])
def test_a_faulty_frame_is_counted_and_the_next_one_is_delivered(
    waits: bool,
) -> None:
    async def scenario() -> None:
        def judge(frame: Frame) -> None:
            if frame == b"rubbish":
                raise Malformed("not a message")

        async def handle_later(_peer: NodeId, _lane: Lane, frame: Frame) -> None:
            judge(frame)

        def handle(_peer: NodeId, _lane: Lane, frame: Frame) -> None:
            judge(frame)

        async with pair(second={"on_frame": handle_later if waits else handle}) as (a, b):
            a.send(b, b"rubbish")
            a.send(b, b"good")
            await b.until(lambda: len(b.received) == 2)
            assert b.transport.stats.refusals[Refusal.FAULT] == 1
            assert b.transport.connected(a.me)

    asyncio.run(scenario())


@pytest.mark.parametrize("waits", [False, True])
def test_a_failing_handler_is_reported_and_the_peer_reconnects(waits: bool) -> None:
    async def scenario() -> None:
        def judge(frame: Frame) -> None:
            if frame == b"ouch":
                raise ZeroDivisionError("our own bug")

        async def handle_later(_peer: NodeId, _lane: Lane, frame: Frame) -> None:
            judge(frame)

        def handle(_peer: NodeId, _lane: Lane, frame: Frame) -> None:
            judge(frame)

        async with pair(second={"on_frame": handle_later if waits else handle}) as (a, b):
            reported: list[type[BaseException]] = []
            asyncio.get_running_loop().set_exception_handler(
                lambda _, context: reported.append(type(context["exception"]))
            )
            a.send(b, b"ouch")
            await b.until(lambda: ("disconnected", a.me) in b.events)
            await a.until(lambda: ("disconnected", b.me) in a.events)
            assert reported == [ZeroDivisionError]
            a.send(b, b"good")
            await b.until(lambda: (a.me, Lane.CONTROL, b"good") in b.received)

    asyncio.run(scenario())


def test_sending_an_oversized_frame_is_an_error() -> None:
    async def scenario() -> None:
        async with pair() as (a, b):
            for lane, longest in (
                (Lane.CONTROL, CONTROL_BYTES_MAX),
                (Lane.WEIGHTS, FRAME_BYTES_MAX),
            ):
                for frame in (b"", bytes(longest + 1)):
                    with pytest.raises(ValueError, match=f"{lane} frame, 1 to {longest} allowed"):
                        a.send(b, frame, lane)

    asyncio.run(scenario())


def test_a_taken_port_is_a_user_error() -> None:
    async def scenario() -> None:
        taken = listener()
        transport = Transport(
            me=NodeId(0),
            identity=IDENTITIES[0],
            origin=ORIGIN,
            epoch=0,
            contacts={},
            listen=taken.getsockname(),
            frame_bytes_max=dict.fromkeys(Lane, 100),
            on_frame=lambda *_: None,
        )
        with pytest.raises(UserError, match="cannot listen on 127"):
            await transport.start()
        taken.close()

    asyncio.run(scenario())
