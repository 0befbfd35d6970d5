"""Members that only dial meet at relays: links like any others, whatever the relay does."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from msgspec import structs

from defl.cards import Card, Reach
from defl.ids import NodeId, digest_of
from defl.node.net import dial_hints
from defl.node.net.connecting import connected_socket
from defl.node.net.framing import HEADER_BYTES, Lane
from defl.node.net.relayed import RelayFault, _until_go, probe_relay
from defl.node.net.route import DIRECT, Route, RouteKind
from defl.node.net.tls import relay_client_context, server_context
from defl.node.relay.leg import Leg
from defl.node.relay.protocol import Notice, Request, Signal, encode
from defl.node.relay.server import NOTICES_BURST, NOTICES_PER_S
from defl.node.relay.service import Relay
from defl.node.relay.switchboard import Decision, Switchboard
from defl.node.setup.identity import Identity, make_card
from support.relays import (
    HIGH,
    LOW,
    MIDDLE,
    OTHER_RELAY,
    RELAY,
    DiallingPeer,
    dialling_cards,
    relay_at,
)
from support.strangers import SOURCES, connect_until, first_record
from support.transports import ORIGIN, QUICK, Peer, address_of, listener, running
from support.virtual_links import run_virtually

pytestmark = pytest.mark.usefixtures("on_both_loops")

IMPATIENT = replace(QUICK, connect_s=0.5)


def route_of(peer: Peer, other: Peer) -> Route:
    link = peer.transport.control_link(other.me)
    assert link is not None
    return link.route


def through(relay: Identity) -> Route:
    return Route(RouteKind.RELAY, relay.name)


def low_and_high(relays: Sequence[Card], **options: Any) -> tuple[DiallingPeer, DiallingPeer]:
    cards = dialling_cards(LOW, HIGH)
    return (
        DiallingPeer(0, cards, LOW, relays=relays, **options),
        DiallingPeer(1, cards, HIGH, relays=relays, **options),
    )


async def until_connected(*peers: Peer) -> None:
    for peer in peers:
        await peer.until_connected(*(other for other in peers if other is not peer))


def test_two_members_that_only_dial_talk_through_a_relay_on_both_lanes() -> None:
    async def scenario() -> None:
        bound = listener()
        low, high = low_and_high([make_card(RELAY, address_of(bound))])
        blob = bytes(range(256)) * 10_000
        async with relay_at(bound, dialling_cards(LOW, HIGH)), running(low, high):
            await until_connected(low, high)
            low.send(high, b"vote")
            high.send(low, blob, Lane.WEIGHTS)
            await high.until(lambda: high.received == [(low.me, Lane.CONTROL, b"vote")])
            await low.until(lambda: low.received == [(high.me, Lane.WEIGHTS, blob)])
            assert route_of(low, high) == route_of(high, low) == through(RELAY)
            assert str(route_of(low, high)) == "through the relay relay 0"
            assert not low.transport.stats.trouble
            assert not high.transport.stats.trouble

    asyncio.run(scenario())


def test_a_public_member_is_a_relay_on_its_own_port_and_a_member_as_before() -> None:
    async def scenario() -> None:
        bound = listener()
        public_card = make_card(MIDDLE, address_of(bound), relay=True)
        low, high = dialling_cards(LOW, HIGH)
        cards = [low, public_card, high]
        public = Peer(1, cards, bound, identity=MIDDLE, relay=True)
        members = [
            DiallingPeer(0, cards, LOW),
            public,
            DiallingPeer(2, cards, HIGH),
        ]
        async with running(*members):
            await until_connected(*members)
            assert route_of(members[0], members[2]) == through(MIDDLE)
            assert route_of(members[0], public) == route_of(members[2], public) == DIRECT
            assert public.transport.relay is not None
            assert public.transport.relay.spliced == 2

    asyncio.run(scenario())


def test_a_member_that_becomes_a_relay_is_used_at_once() -> None:
    async def scenario() -> None:
        bound = listener()
        no_relay = make_card(MIDDLE, address_of(bound))
        low, high = dialling_cards(LOW, HIGH)
        cards = [low, no_relay, high]
        members = [
            DiallingPeer(0, cards, LOW),
            Peer(1, cards, bound, identity=MIDDLE, relay=True),
            DiallingPeer(2, cards, HIGH),
        ]
        async with running(*members):
            await members[0].until_connected(members[1])
            await members[2].until_connected(members[1])
            assert "no relay is named" in members[0].transport.stats.trouble[members[2].me]
            newer = make_card(MIDDLE, address_of(bound), 1, relay=True)
            assert members[0].transport.update_card(newer)
            assert members[2].transport.update_card(newer)
            await until_connected(*members)

    asyncio.run(scenario())


def test_a_former_member_does_not_keep_a_pair_from_meeting_at_a_relay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has every card and listens on the line, and calls from many addresses."""

    async def scenario() -> None:
        bound = listener()
        card = make_card(RELAY, address_of(bound))
        async with relay_at(bound, dialling_cards(LOW, MIDDLE, HIGH)) as relay:
            relay.agree(dialling_cards(LOW, HIGH))
            copied = [
                first_record(relay_client_context(identity, card)) for identity in (LOW, HIGH)
            ]
            own = first_record(relay_client_context(MIDDLE, card))
            stop = threading.Event()
            words = (*copied, own, b"")
            flood = asyncio.to_thread(connect_until, stop, bound.getsockname(), words, SOURCES)
            flooding = asyncio.ensure_future(flood)
            while relay.turned_away < 300:
                await asyncio.sleep(0.01)
            low, high = low_and_high([card])
            async with running(low, high):
                await until_connected(low, high)
                stop.set()
                assert await flooding > 300
            assert relay.counts()["turned_away"] == relay.turned_away > 300

    asyncio.run(scenario())


def test_a_member_with_a_wrong_clock_is_served_by_a_member_that_relays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its mark is not valid, but says that the call is for the relay."""

    async def scenario() -> None:
        bound = listener()
        low, high = dialling_cards(LOW, HIGH)
        cards = [low, make_card(MIDDLE, address_of(bound), relay=True), high]
        members = [
            DiallingPeer(0, cards, LOW),
            Peer(1, cards, bound, identity=MIDDLE, relay=True),
            DiallingPeer(2, cards, HIGH),
        ]
        monkeypatch.setattr(dial_hints.time, "time", lambda: time.time_ns() / 1e9 - 86_400)
        async with running(*members):
            await until_connected(*members)
            assert members[1].transport._acceptor._marks._clock() - dial_hints.time.time() > 3600

    asyncio.run(scenario())


def test_when_a_relay_dies_its_links_move_to_the_other_one() -> None:
    async def scenario() -> None:
        bounds = {RELAY.name: listener(), OTHER_RELAY.name: listener()}
        identities = {RELAY.name: RELAY, OTHER_RELAY.name: OTHER_RELAY}
        cards = [make_card(identities[name], address_of(bounds[name])) for name in bounds]
        members = dialling_cards(LOW, HIGH)
        low, high = low_and_high(cards)
        relays = {}
        for name, bound in bounds.items():
            relays[name] = Relay(identities[name], ORIGIN, bound)
            relays[name].agree(members)
            await relays[name].start()
        async with running(low, high):
            await until_connected(low, high)
            used = route_of(low, high).via
            await relays.pop(used).close()
            await low.until(lambda: ("disconnected", high.me) in low.events)
            await until_connected(low, high)
            assert route_of(low, high).via == next(iter(relays))
        await relays.popitem()[1].close()

    asyncio.run(scenario())


def test_a_relay_that_is_started_again_is_found_again() -> None:
    async def scenario() -> None:
        bound = listener()
        members = dialling_cards(LOW, HIGH)
        low, high = low_and_high([make_card(RELAY, address_of(bound))])
        async with running(low, high):
            place = bound.getsockname()
            async with relay_at(bound, members):
                await until_connected(low, high)
            await low.until(lambda: not low.transport.connected(high.me))
            await low.until(lambda: "nobody listens" in low.transport.stats.trouble[high.me])
            async with relay_at(socket.create_server(place), members):
                await until_connected(low, high)
                assert low.transport.stats.reconnects[high.me] > 0

    asyncio.run(scenario())


def test_a_link_that_is_replaced_parks_again_where_it_was() -> None:
    """The caller restarts: the parked member still believes in its link."""

    async def scenario() -> None:
        bound = listener()
        relays = [make_card(RELAY, address_of(bound))]
        low, high = low_and_high(relays)
        async with relay_at(bound, dialling_cards(LOW, HIGH)), running(high):
            async with running(low):
                await until_connected(low, high)
            low_again, _ = low_and_high(relays)
            async with running(low_again):
                await until_connected(low_again, high)

    asyncio.run(scenario())


class Confused(Switchboard[Leg]):
    """Connects LOW with MIDDLE if it calls HIGH, and with nobody if it calls MIDDLE."""

    def request(self, connection: Leg, key: bytes, request: Request | None) -> Decision[Leg]:
        if request is not None and key == LOW.public_key:
            wanted = MIDDLE if request.peer == HIGH.public_key else HIGH
            request = structs.replace(request, peer=wanted.public_key)
        return super().request(connection, key, request)


class KeptTrouble(dict[NodeId, str]):
    """Remembers every trouble that there was."""

    def __init__(self, told: list[str]) -> None:
        super().__init__()
        self._told = told

    def __setitem__(self, peer: NodeId, text: str) -> None:
        self._told.append(text)
        super().__setitem__(peer, text)


def test_a_relay_that_connects_the_wrong_members_is_found_out_by_tls() -> None:
    async def scenario() -> None:
        bound = listener()
        relays = [make_card(RELAY, address_of(bound))]
        cards = dialling_cards(LOW, MIDDLE, HIGH)
        low = DiallingPeer(0, cards, LOW, relays=relays)
        middle = DiallingPeer(1, cards, MIDDLE, relays=relays)
        told: list[str] = []  # the next attempt soon tells something else
        object.__setattr__(low.transport.stats, "trouble", KeptTrouble(told))
        async with relay_at(bound, cards) as relay:
            relay.server._board = Confused(ORIGIN)
            relay.agree(cards)
            async with running(low, middle):
                found = f"somebody else than {HIGH.name}"
                await low.until(lambda: any(found in text for text in told))
                assert not low.transport.connected(NodeId(2))

    asyncio.run(scenario())


@asynccontextmanager
async def hostile_relay(
    bound: socket.socket, members: Sequence[Card], answer: bytes
) -> AsyncIterator[Callable[[], int]]:
    """Says this to every request, and nothing more; yields the count of its callers."""
    callers = count()
    seen = [0]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen[0] = next(callers) + 1
        try:
            length = int.from_bytes(await reader.readexactly(HEADER_BYTES), "big")
            await reader.readexactly(length)
            writer.write(answer)
            await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(
        serve, sock=bound, ssl=server_context(RELAY, members), ssl_shutdown_timeout=0.1
    )
    async with server:
        yield lambda: seen[0]


def frame(notice: Notice) -> bytes:
    encoded = encode(notice)
    return len(encoded).to_bytes(HEADER_BYTES, "big") + encoded


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        (b"\xff\xff\xff\xff", "ended the connection"),
        (b"\x00\x00\x00\x01\xc1", "does not follow the protocol"),
        (frame(Notice(Signal.PARKED)), "does not follow the protocol"),
        (frame(Notice(Signal.REFUSED, "no\x1b[2Jway")), "refuses us: no\\x1b[2Jway"),
        (frame(Notice(Signal.ABSENT)), "is not at the relay"),
        (frame(Notice(Signal.GO)), "did not answer through the relay"),
        (frame(Notice(Signal.GO)) + b"HTTP/1.1 200 OK\r\n\r\n", "did not answer through the relay"),
        (b"", "does not answer in time"),
    ],
)
def test_a_relay_that_answers_nonsense_is_named_and_costs_nothing_but_the_link(
    answer: bytes, trouble: str
) -> None:
    async def scenario() -> None:
        bound = listener()
        cards = dialling_cards(LOW, HIGH)
        relays = [make_card(RELAY, address_of(bound))]
        low = DiallingPeer(0, cards, LOW, relays=relays, limits=IMPATIENT)
        async with hostile_relay(bound, cards, answer), running(low):
            await low.until(lambda: trouble in low.transport.stats.trouble.get(NodeId(1), ""))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "answer",
    [frame(Notice(Signal.GO)), frame(Notice(Signal.PARKED)), b"\x00\x00\x00\x01\xc1", b""],
)
def test_beside_a_hostile_relay_an_honest_one_is_enough(answer: bytes) -> None:
    async def scenario() -> None:
        bad, good = listener(), listener()
        members = dialling_cards(LOW, HIGH)
        relays = [
            make_card(RELAY, address_of(bad)),
            make_card(OTHER_RELAY, address_of(good)),
        ]
        low, high = low_and_high(relays, limits=IMPATIENT)
        async with (
            hostile_relay(bad, members, answer) as callers,
            relay_at(good, members, OTHER_RELAY),
            running(low, high),
        ):
            await until_connected(low, high)
            assert route_of(low, high) == through(OTHER_RELAY)
            assert callers() > 0

    asyncio.run(scenario())


def test_one_call_asks_every_relay_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    relays = [make_card(RELAY, "127.0.0.1:1"), make_card(OTHER_RELAY, "127.0.0.1:2")]
    low, high = low_and_high(relays)
    calls, (contact,) = low.transport._relayed, low.transport._contacts
    asked: list[bytes] = []

    async def refuse(relay: Card, *_: object) -> None:
        asked.append(relay.key)
        raise OSError("nobody listens")

    monkeypatch.setattr(calls, "_called", refuse)
    asyncio.run(calls.call(contact, Lane.CONTROL))

    assert contact.peer == high.me
    assert sorted(asked) == sorted(relay.key for relay in relays)


class BeatingLeg(Leg):
    """Of a relay that sends beats as fast as they are read."""

    beats = 0

    async def frame(self) -> bytes:
        self.beats += 1
        assert self.beats < 1000, "they are read as fast as they come"
        return encode(Notice(Signal.BEAT))


def test_a_relay_that_floods_a_parked_member_with_beats_is_read_slowly() -> None:
    async def scenario() -> None:
        leg = BeatingLeg()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60.0):
                await _until_go(leg, make_card(RELAY, "127.0.0.1:1"))
        assert leg.beats <= NOTICES_BURST + 60.0 * NOTICES_PER_S + 1

    run_virtually(scenario)


def test_a_relay_that_did_not_answer_once_is_not_passed_over_for_ever() -> None:
    """Beside one that answers and then passes nothing on."""

    async def scenario() -> None:
        relays = [make_card(RELAY, "127.0.0.1:1"), make_card(OTHER_RELAY, "127.0.0.1:2")]
        low, high = low_and_high(relays)
        calls = low.transport._relayed
        contact = low.transport._contacts[high.me]
        channel = contact.channels[Lane.CONTROL]
        calls._failing.add(RELAY.public_key)
        channel.relays_called[OTHER_RELAY.public_key] = None
        first = set()
        for channel.calls in (1, 2):
            first.add(calls._in_order(contact, channel)[0].key)

        assert first == {RELAY.public_key, OTHER_RELAY.public_key}

    asyncio.run(scenario())


def test_a_pair_does_not_stay_at_a_relay_that_ends_its_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may also pass on both hellos and then nothing more."""

    async def scenario() -> None:
        relays = [make_card(RELAY, "127.0.0.1:1"), make_card(OTHER_RELAY, "127.0.0.1:2")]
        low, high = low_and_high(relays)
        calls = low.transport._relayed
        routes = []

        async def reach(*_: object) -> None:
            pass

        async def greet(_contact: object, lane: Lane, _: object, route: Route, **__: bool) -> str:
            routes.append((lane, route.via))
            return "a link that soon ends"

        monkeypatch.setattr(calls, "_called", reach)
        monkeypatch.setattr(calls._greeter, "greet_through", greet)
        for _ in range(4):
            for lane in Lane:
                await calls.call(low.transport._contacts[high.me], lane)

        for lane in Lane:
            first, *others = (via for used, via in routes if used is lane)
            assert others[0] != first
            assert others == [others[0], first, others[0]]

    asyncio.run(scenario())


def test_a_relay_with_another_certificate_than_its_cards_is_refused() -> None:
    async def scenario() -> None:
        bound = listener()
        low, high = low_and_high([make_card(RELAY, address_of(bound))])
        async with (
            relay_at(bound, dialling_cards(LOW, HIGH), OTHER_RELAY),
            running(low, high),
        ):
            await low.until(
                lambda: "certificate that is not its card's" in str(low.transport.stats.trouble)
            )
            await high.until(
                lambda: "certificate that is not its card's" in str(high.transport.stats.trouble)
            )

    asyncio.run(scenario())


def test_without_a_relay_the_members_say_what_is_missing() -> None:
    async def scenario() -> None:
        low, high = low_and_high([])
        async with running(low, high):
            await low.until(
                lambda: "no relay is named" in low.transport.stats.trouble.get(NodeId(1), "")
            )
            assert "no relay is named" in high.transport.stats.trouble[NodeId(0)]

    asyncio.run(scenario())


def test_a_link_that_works_is_kept_when_the_peers_network_opens() -> None:
    async def scenario() -> None:
        relay_bound, bound = listener(), listener()
        low, high = low_and_high([make_card(RELAY, address_of(relay_bound))])
        async with relay_at(relay_bound, dialling_cards(LOW, HIGH)), running(low, high):
            await until_connected(low, high)
            opened = make_card(HIGH, address_of(bound), 1, reach=Reach.BOTH)
            assert low.transport.update_card(opened)
            assert route_of(low, high) == through(RELAY)
        bound.close()

    asyncio.run(scenario())


def test_a_probe_says_whether_a_relay_serves_a_key_and_what_is_in_the_way() -> None:
    async def connect(address: str) -> tuple[socket.socket, Route]:
        return await connected_socket(address, None)

    async def scenario() -> None:
        bound = listener()
        card = make_card(RELAY, address_of(bound))
        async with relay_at(bound, dialling_cards(LOW)) as relay:
            assert await probe_relay(card, LOW, ORIGIN, connect, 5.0) == DIRECT
            with pytest.raises(RelayFault, match="lineage or cards"):
                await probe_relay(card, HIGH, ORIGIN, connect, 5.0)
            with pytest.raises(RelayFault, match="serves another federation"):
                await probe_relay(card, LOW, digest_of(b"another"), connect, 5.0)
            assert relay.server.connections == 0
        with pytest.raises(RelayFault, match="nobody listens at"):
            await probe_relay(card, LOW, ORIGIN, connect, 5.0)

    asyncio.run(scenario())
