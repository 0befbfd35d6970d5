"""Contacts join, leave and replace their keys while the transport runs."""

import asyncio
import gc
from collections.abc import Mapping
from itertools import count

import pytest
from msgspec.structs import replace

from defl.cards import Card
from defl.ids import NodeId
from defl.node.net.contact import Contact
from defl.node.net.tls import client_context
from defl.node.net.transport import Lane, Refusal
from defl.node.setup.identity import make_card, make_identity
from support.transports import IDENTITIES, Peer, listener, pair, running

pytestmark = pytest.mark.usefixtures("on_both_loops")

NEW = [make_identity(f"newcomer {i}") for i in range(3)]
OUTSIDER, GUEST = 999, 100
ABSENT = make_card(IDENTITIES[3], "127.0.0.1:9")  # nobody listens there


def set_of(peer: Peer, contacts: Mapping[int, Peer | Card], epoch: int = 1) -> None:
    """The peer's contacts from now on."""
    cards = {
        NodeId(id_): other.card if isinstance(other, Peer) else other
        for id_, other in contacts.items()
    }
    peer.transport.set_contacts(cards, epoch, peer.me)


def newcomer(me: int, contacts: Mapping[int, Peer], number: int = 0) -> Peer:
    cards = {NodeId(id_): peer.card for id_, peer in contacts.items()}
    return Peer(me, (), listener(), identity=NEW[number], contacts=cards, epoch=1)


def contacts_called_by(peer: Peer) -> list[NodeId]:
    """Filled from now on."""
    called: list[NodeId] = []
    call = peer.transport._greeter.call

    async def record(contact: Contact, lane: Lane, *, letterbox: bool = False) -> object:
        called.append(contact.peer)
        return await call(contact, lane, letterbox=letterbox)

    peer.transport._greeter.call = record  # type: ignore[assignment,method-assign]
    return called


async def talk(a: Peer, b: Peer) -> None:
    """Frames pass both ways, on both lanes."""
    for sender, receiver in ((a, b), (b, a)):
        before = len(receiver.received)
        for lane in Lane:
            assert sender.send(receiver, b"%d" % sender.me, lane)
        await receiver.until(lambda r=receiver, n=before: len(r.received) == n + len(Lane))
        assert {frame for _, _, frame in receiver.received[before:]} == {b"%d" % sender.me}
        assert {peer for peer, _, _ in receiver.received[before:]} == {sender.me}


def test_a_new_contact_is_connected_while_the_others_go_on_talking() -> None:
    async def scenario() -> None:
        async with pair() as (a, b):
            c = newcomer(2, {0: a, 1: b})
            for i in range(100):
                a.send(b, b"%d" % i)
            set_of(a, {1: b, 2: c})
            set_of(b, {0: a, 2: c})
            for i in range(100, 200):
                a.send(b, b"%d" % i)
            async with running(c):
                await c.until_connected(a, b)
                await b.until(lambda: len(b.received) == 200)
                assert [int(frame) for _, _, frame in b.received] == list(range(200))
                for one in (a, b):
                    await one.until_connected(c)
                    await talk(one, c)
            assert a.events.count(("connected", b.me)) == 1

    asyncio.run(scenario())


def test_traffic_in_total_does_not_sink_when_a_contact_goes() -> None:
    async def scenario() -> None:
        async with pair() as (a, b):
            await talk(a, b)
            before = a.transport.stats.totals()[Lane.CONTROL]
            assert min(before.bytes_in, before.bytes_out) > 0
            set_of(a, {GUEST: b})  # the same contact, with another number
            assert a.transport.stats.totals()[Lane.CONTROL].bytes_in == before.bytes_in
            set_of(a, {})
            set_of(a, {})
            after = a.transport.stats.totals()[Lane.CONTROL]
            assert (after.bytes_in, after.bytes_out) == (before.bytes_in, before.bytes_out)
            assert not a.transport.stats.traffic

    asyncio.run(scenario())


def test_this_node_among_its_contacts_is_neither_called_nor_trouble() -> None:
    """A guest is one of the guests in its own list, and a former member one of the former."""

    async def scenario() -> None:
        async with pair() as (a, b):
            set_of(a, {1: b, GUEST: a.card})
            await talk(a, b)
            assert set(a.transport.stats.traffic) == {(b.me, lane) for lane in Lane}
            assert not a.transport.stats.trouble

    asyncio.run(scenario())


def test_a_contact_that_is_gone_is_disconnected_and_refused_and_leaves_nothing() -> None:
    async def scenario() -> None:
        async with pair() as (a, b):
            await talk(a, b)
            heard = len(b.received)
            assert b.send(a, bytes(1000), Lane.WEIGHTS)  # waits in a queue
            set_of(b, {})
            assert b.events == [("connected", a.me), ("disconnected", a.me)]
            assert not b.transport.connected(a.me)
            assert not b.send(a, b"too late")
            assert not await b.transport.drained(a.me, Lane.WEIGHTS)
            assert b.transport.queued_bytes(a.me, Lane.WEIGHTS) == 0
            refusals = b.transport.stats.refusals
            await b.until(lambda: refusals[Refusal.CERTIFICATE] >= 4)  # it dials again and again
            await a.until(lambda: "refused us" in a.transport.stats.trouble.get(b.me, ""))
            a.send(b, b"still there?")
            await b.until(lambda: refusals[Refusal.CERTIFICATE] >= 8)
            assert len(b.received) == heard
            assert not b.transport.stats.traffic
            assert not b.transport.stats.trouble

    asyncio.run(scenario())


def test_frames_left_in_the_link_of_a_contact_that_is_gone_are_not_delivered() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def handle(*_: object) -> None:
            await gate.wait()

        async with pair(second={"on_frame": handle}) as (a, b):
            for i in range(10):
                a.send(b, b"%d" % i)
            await b.until(lambda: b.received)
            gone = next(each for each in b.transport._contacts if each.peer == a.me)
            gate.set()  # the link goes on with its buffer in the loop's next turn
            set_of(b, {})
            await a.until(lambda: ("disconnected", b.me) in a.events)
            assert b.transport._deliver_of(gone, Lane.CONTROL, b"late") is None
            assert len(b.received) == 1

    asyncio.run(scenario())


def test_a_replaced_key_is_refused_and_the_new_one_has_its_number() -> None:
    async def scenario() -> None:
        async with pair() as (old, b):
            new = newcomer(0, {1: b})
            set_of(b, {0: new})
            async with running(new):
                await b.until_connected(new)
                await new.until_connected(b)
                await talk(b, new)
                refusals = b.transport.stats.refusals
                await b.until(lambda: refusals[Refusal.CERTIFICATE] >= 4)
                old.send(b, b"I am still member 0")
                await b.until(lambda: refusals[Refusal.CERTIFICATE] >= 8)
                await talk(b, new)
                assert b.events == [
                    ("connected", old.me),
                    ("disconnected", old.me),
                    ("connected", new.me),
                ]
                assert not b.transport.stats.reconnects

    asyncio.run(scenario())


def test_a_handshake_that_began_before_its_key_was_removed_is_refused() -> None:
    """TLS already accepted the certificate; the hello does not."""

    async def scenario() -> None:
        async with pair() as (a, b):
            greeter = b.transport._greeter
            accept = greeter._accept

            async def remove_meanwhile(*arguments: object) -> object:
                hello = await accept(*arguments)  # type: ignore[arg-type]
                set_of(b, {})
                return hello

            greeter._accept = remove_meanwhile  # type: ignore[assignment,method-assign]
            set_of(b, {})
            set_of(b, {0: a})
            await b.until(lambda: b.transport.stats.refusals[Refusal.IDENTITY] >= 1)
            assert not b.transport.connected(a.me)

    asyncio.run(scenario())


def test_the_link_of_an_unchanged_contact_survives_fifty_changes() -> None:
    async def scenario() -> None:
        async with pair() as (a, b):
            numbers = count()
            for change in range(50):
                other = make_card(NEW[change % 3], "127.0.0.1:9")
                set_of(b, {0: a, 2 + change % 2: other, GUEST: ABSENT}, epoch=change)
                a.send(b, b"%d" % next(numbers))
                await asyncio.sleep(0)
                set_of(a, {1: b, 2: other}, epoch=change)
                a.send(b, b"%d" % next(numbers))
            await b.until(lambda: len(b.received) == 100)
            assert [int(frame) for _, _, frame in b.received] == list(range(100))
            assert a.events == [("connected", b.me)]
            assert b.events == [("connected", a.me)]
            assert not a.transport.stats.reconnects + b.transport.stats.reconnects
            assert a.transport.stats.traffic[b.me, Lane.CONTROL].frames_out == 100

    asyncio.run(scenario())


def test_a_guest_that_becomes_a_member_keeps_its_links() -> None:
    async def scenario() -> None:
        async with pair() as (a, b):
            guest = newcomer(OUTSIDER, {0: a})
            set_of(a, {1: b, GUEST: guest})
            async with running(guest):
                await guest.until_connected(a)
                await a.until(lambda: a.transport.connected(NodeId(GUEST)))
                guest.send(a, b"ready")
                await a.until(lambda: a.received)
                dialled = contacts_called_by(a)
                set_of(a, {1: b, 4: guest}, epoch=2)
                guest.send(a, b"in")
                await a.until(lambda: len(a.received) == 2)
                assert a.received == [
                    (NodeId(GUEST), Lane.CONTROL, b"ready"),
                    (NodeId(4), Lane.CONTROL, b"in"),
                ]
                assert a.transport.send(NodeId(4), b"welcome", Lane.CONTROL)
                await guest.until(lambda: guest.received)
                assert not a.transport.send(NodeId(GUEST), b"?", Lane.CONTROL)
                guest.me = NodeId(4)
                set_of(guest, {0: a, 1: b}, epoch=2)
                await talk(a, guest)
                assert a.events == [
                    ("connected", b.me),
                    ("connected", NodeId(GUEST)),
                    ("connected", NodeId(4)),
                ]
                assert guest.events == [("connected", a.me)]
                assert not dialled  # though it is now a's part
                assert (NodeId(GUEST), Lane.CONTROL) not in a.transport.stats.traffic

    asyncio.run(scenario())


def test_a_guest_that_becomes_a_member_is_missed_if_it_does_not_dial() -> None:
    async def scenario() -> None:
        b = Peer(7, (), listener(), identity=NEW[0], contacts={})
        async with running(b):
            set_of(b, {GUEST: ABSENT})
            guest = b.transport._contacts[NodeId(GUEST)]
            assert guest.calls == []
            set_of(b, {4: ABSENT}, epoch=2)
            assert len(guest.calls) == 1
            set_of(b, {8: ABSENT}, epoch=3)
            assert len(guest.calls) == len(Lane)

    asyncio.run(scenario())


def test_nobody_dials_a_guest() -> None:
    async def scenario() -> None:
        async with pair() as (a, b):
            guest = newcomer(OUTSIDER, {0: a, 1: b})
            set_of(a, {1: b, GUEST: guest})
            async with running(guest):
                await guest.until_connected(a)
                assert a.transport._contacts[NodeId(GUEST)].calls == []
                await guest.until(  # b does not know it yet
                    lambda: "refused us" in guest.transport.stats.trouble.get(b.me, "")
                )
                set_of(b, {0: a, GUEST: guest})
                await guest.until_connected(b)

    asyncio.run(scenario())


def test_peers_in_different_epochs_connect_whoever_dials() -> None:
    """One already sees the other as a member to be dialled, the other itself as a guest that
    dials."""

    async def scenario() -> None:
        async with pair() as (a, b):
            guest = newcomer(OUTSIDER, {0: a, 1: b})
            set_of(a, {1: b, 4: guest}, epoch=2)
            async with running(guest):
                for _ in range(3):
                    await a.until(lambda: a.transport.connected(NodeId(4)))
                    await guest.until_connected(a)
                    seen = len(guest.events)
                    for channel in a.transport._contacts[NodeId(4)].channels.values():
                        if channel.link is not None:
                            channel.link.abort()
                    await guest.until(lambda n=seen: len(guest.events) > n)
                await a.until(lambda: a.transport.connected(NodeId(4)))
                assert a.epochs[NodeId(4)] == 1
                await guest.until_connected(a)
                assert guest.epochs[a.me] == 2
                for peer in (a, guest):
                    assert not peer.transport.stats.refusals[Refusal.DIRECTION]

    asyncio.run(scenario())


def test_hellos_state_the_epoch_and_another_epoch_is_accepted_both_ways() -> None:
    async def scenario() -> None:
        async with pair(first={"epoch": 7}, second={"epoch": 2**40}) as (a, b):
            assert a.epochs == {b.me: 2**40}
            assert b.epochs == {a.me: 7}
            set_of(a, {}, epoch=8)
            set_of(a, {1: b}, epoch=8)
            await b.until(lambda: b.epochs == {a.me: 8})

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "defect",
    [
        {"certificate": b""},
        {"certificate": b"rubbish"},
        {"certificate": make_identity("another").certificate},
        {"certificate": ABSENT.certificate + b"more"},
        {"address": ""},
        {"address": "no port"},
        {"address": "a" * 64 + ".example.org:7400"},  # a label too long for a look-up
    ],
)
def test_a_defective_card_is_reported_and_harms_no_other(defect: dict[str, object]) -> None:
    async def scenario() -> None:
        async with pair() as (a, b):
            card = replace(ABSENT, **defect)
            set_of(a, {1: b, 3: card})
            assert "member 3's card cannot be used: " in a.transport.stats.trouble[NodeId(3)]
            assert not a.transport.send(NodeId(3), b"?", Lane.CONTROL)
            c = newcomer(2, {0: a})
            set_of(a, {1: b, 2: c, 3: card})
            async with running(c):
                await c.until_connected(a)
                await a.until_connected(c)
                await talk(a, b)
            set_of(a, {1: b})
            assert not a.transport.stats.trouble

    asyncio.run(scenario())


def test_a_key_that_stands_twice_is_reported() -> None:
    async def scenario() -> None:
        async with pair() as (a, b):
            set_of(a, {1: b, 2: b})
            await talk(a, b)
            assert "another contact's" in a.transport.stats.trouble[NodeId(2)]

    asyncio.run(scenario())


def test_of_two_cards_of_a_contact_the_newer_one_stays() -> None:
    async def scenario() -> None:
        async with pair() as (a, b):
            newer = make_card(b.identity, "127.0.0.1:10", serial=1)
            assert a.transport.update_card(newer)
            set_of(a, {1: b})  # the agreed card
            assert a.transport._contacts[b.me].card == newer
            await talk(a, b)

    asyncio.run(scenario())


def contacts_alive() -> int:
    gc.collect()
    return sum(type(thing) is Contact for thing in gc.get_objects())


def test_hundreds_of_changes_leave_no_memory_behind() -> None:
    async def scenario() -> None:
        async with pair() as (a, b):
            before = contacts_alive()
            for change in range(200):
                member = make_card(make_identity("member 2"), "127.0.0.1:9")
                identity = make_identity("guest")
                guest = make_card(identity, "127.0.0.1:9")
                set_of(a, {1: b, 2: member, GUEST: guest}, epoch=change)
                set_of(b, {0: a, 2: member, GUEST + change: guest}, epoch=change)
                a.transport.send(NodeId(2), bytes(1000), Lane.CONTROL)
                if change % 20 == 0:  # some fail to connect first, or call
                    await a.until(lambda: NodeId(2) in a.transport.stats.trouble)
                    _, caller = await asyncio.open_connection(
                        *b.transport.address,
                        ssl=client_context(identity, b.card),
                        server_hostname="",
                    )
                    caller.transport.abort()
                else:
                    await asyncio.sleep(0)
            for peer in (a, b):
                transport = peer.transport
                stats = transport.stats
                assert len(stats.traffic) == 6
                for known in (stats.reconnects, stats.replaced, stats.trouble):
                    assert len(known) <= 3
                assert len(transport._acceptor._marks._expected) == 3
                assert len(transport._acceptor._marks._used) == 3
                assert len(transport._acceptor._pending._proved) <= 3
                assert len(transport._acceptor._turns) <= 3 + 2
                await peer.until(lambda t=transport: len(t._tasks) <= 1 + 2 * 3)
            await a.until(lambda: contacts_alive() <= before)
            await talk(a, b)

    asyncio.run(scenario())


def test_a_node_without_contacts_accepts_nobody() -> None:
    async def scenario() -> None:
        lonely = Peer(OUTSIDER, (), listener(), identity=NEW[0], contacts={}, epoch=1)
        caller = newcomer(0, {1: lonely}, number=1)
        async with running(lonely, caller):
            await lonely.until(lambda: lonely.transport.stats.refusals[Refusal.CERTIFICATE] >= 2)
            assert not caller.events + lonely.events

    asyncio.run(scenario())


def test_contacts_may_change_before_the_start() -> None:
    async def scenario() -> None:
        a, b = (Peer(me, (), listener(), contacts={}) for me in (0, 1))
        set_of(a, {1: b})
        set_of(b, {0: a})
        async with running(a, b):
            await a.until_connected(b)
            await b.until_connected(a)
            await talk(a, b)

    asyncio.run(scenario())
