"""Two processes with one key, over real transports: one keeps its place, the other one is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from defl.ids import NodeId
from defl.node.net import challenge
from defl.node.net.dialler import DialLimits
from defl.node.net.refusal import Refusal
from defl.node.setup.identity import make_card
from support import transports
from support.relays import HIGH, LOW, RELAY, DiallingPeer, dialling_cards, relay_at
from support.transports import (
    IDENTITIES,
    Peer,
    TransportLimits,
    address_of,
    cards_of,
    listener,
    running,
)

pytestmark = pytest.mark.usefixtures("on_both_loops")

# A member that is not called calls soon, so that no test waits for it.
SOON = TransportLimits(dial=DialLimits(backoff_first_s=0.001, backoff_max_s=0.01, uncalled_s=0.3))


class Copy:
    """What a process learns about its key."""

    def __init__(self) -> None:
        self.claims: list[list[NodeId]] = []

    @property
    def options(self) -> dict[str, Any]:
        return {"on_elsewhere": self.claims.append}


@asynccontextmanager
async def two_of(member: int) -> AsyncIterator[tuple[Peer, Peer, Peer, Copy, Copy]]:
    """The other member of a pair, connected with the first of two processes of this one."""
    listeners = [listener() for _ in range(2)]
    other = 1 - member
    cards = cards_of(listeners, IDENTITIES[:2])
    peer = Peer(other, cards, listeners[other])
    known_first, known_second = Copy(), Copy()
    first = Peer(member, cards, listeners[member], limits=SOON, **known_first.options)
    second = Peer(member, cards, listener(), limits=SOON, **known_second.options)
    async with running(peer, first):
        await peer.until_connected(first)
        await first.until_connected(peer)
        yield peer, first, second, known_first, known_second


@pytest.mark.parametrize("member", [0, 1], ids=["that dials", "that is dialled"])
def test_a_copy_of_a_member_is_refused_and_told(member: int) -> None:
    async def scenario() -> None:
        async with two_of(member) as (peer, first, second, known_first, known_second):
            before = list(peer.events)
            async with running(second):
                await second.until(lambda: known_second.claims)
                assert known_second.claims[0] == [peer.me]
                trouble = second.transport.stats.trouble[peer.me]
                assert "another process that has this node's key" in trouble
                assert not second.transport.connected(peer.me)
            assert peer.events == before  # it has noticed nothing
            assert not known_first.claims
            assert peer.transport.stats.refusals[Refusal.SECOND] >= 1
            assert "is connected from 127.0.0.1 port" in peer.transport.stats.trouble[first.me]
            peer.send(first, b"still here")
            await first.until(lambda: first.received)

    asyncio.run(scenario())


@pytest.mark.parametrize("member", [0, 1], ids=["that dials", "that is dialled"])
def test_a_copy_takes_the_place_of_a_process_that_hangs_and_that_one_is_told_when_it_wakes(
    member: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(challenge, "ANSWER_S", 0.1)

    async def scenario() -> None:
        async with two_of(member) as (peer, first, second, known_first, known_second):
            contact = first.transport._contacts[peer.me]
            for link in contact.links:
                link._hold()  # it does not read, so it answers no ping
            async with running(second):
                await second.until_connected(peer)
                await peer.until_connected(second)
                assert peer.transport.stats.replaced[first.me] == 0  # its links were dropped
                for link in contact.links:
                    link._release()
                await first.until(lambda: known_first.claims)
                assert known_first.claims[0] == [peer.me]
                assert not known_second.claims
            # The first one is not admitted even now: the other one may have signed.
            claims = len(known_first.claims)
            await first.until(lambda: len(known_first.claims) > claims)
            assert not peer.transport.connected(first.me)

    asyncio.run(scenario())


def test_a_process_that_follows_a_closed_one_is_admitted_at_once() -> None:
    async def scenario() -> None:
        async with two_of(0) as (peer, first, second, _, known_second):
            await first.transport.close()
            await peer.until(lambda: not peer.transport.connected(first.me))
            async with running(second):
                await second.until_connected(peer)
            assert not known_second.claims

    asyncio.run(scenario())


@pytest.mark.parametrize("copied", [0, 1], ids=["the caller", "the parked one"])
def test_of_two_processes_that_meet_a_peer_at_a_relay_one_stays(
    copied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "TIME_LIMIT_S", 60.0)  # it takes a few turns

    async def scenario() -> None:
        identities = (LOW, HIGH)
        cards = dialling_cards(*identities)
        bound = listener()
        relays = [make_card(RELAY, address_of(bound))]
        known = [Copy(), Copy()]

        def process(place: int, **options: Any) -> DiallingPeer:
            identity = identities[place]
            # With pauses like a real node's: the two end each other's calls at the relay.
            limits = TransportLimits()
            return DiallingPeer(place, cards, identity, relays=relays, limits=limits, **options)

        peer = process(1 - copied)
        first, second = (process(copied, **copy.options) for copy in known)
        async with relay_at(bound, cards), running(peer, first):
            await peer.until_connected(first)
            async with running(second):
                await peer.until(lambda: known[0].claims or known[1].claims)
                refused = first if known[0].claims else second
                stays = second if known[0].claims else first
                await refused.transport.close()
                await peer.until(lambda: stays.transport.connected(peer.me))
                assert not known[stays is second].claims

    asyncio.run(scenario())
