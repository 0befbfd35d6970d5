"""Which process of a key has its place at a peer: the rules alone, and over imagined wires."""

import asyncio
from dataclasses import dataclass

import pytest

from defl.ids import NodeId
from defl.node.net.challenge import second_process
from defl.node.net.contact import Contact
from defl.node.net.framing import Lane, Link
from defl.node.net.hello import PROTOCOL_VERSION, Hello
from defl.node.net.refusal import Refusal
from defl.node.net.route import Route, RouteKind
from defl.node.net.sessions import (
    ANSWER_S,
    CLAIM_S,
    LIVES_S,
    PAST_SESSIONS_MAX,
    SESSION_BYTES,
    KeySeat,
    SeatVerdict,
    TakenClaim,
    key_in_use,
    place_is_taken,
)
from defl.node.setup.identity import make_card
from support.transports import IDENTITIES, ORIGIN
from support.virtual_links import End, clock, run_virtually, wired


def session(number: int) -> bytes:
    return number.to_bytes(SESSION_BYTES, "big")


FIRST, SECOND, THIRD = map(session, (1, 2, 3))


def held(by: bytes = FIRST, at: float = 0.0) -> KeySeat:
    seat = KeySeat()
    seat.admit(by, at)
    return seat


def settled(seat: KeySeat, session: bytes, signs: int) -> SeatVerdict:
    """After the first process was asked."""
    return seat.settle(session, FIRST, signs, 10.0 + ANSWER_S, relayed=False)


@dataclass(frozen=True)
class Case:
    name: str
    hello: bytes = SECOND
    now: float = 100.0
    linked: bool = True
    relayed: bool = False
    lost: float | None = None
    verdict: SeatVerdict = SeatVerdict.ASK


@pytest.mark.parametrize(
    "case",
    [
        Case("the process itself reconnects", hello=FIRST, verdict=SeatVerdict.ADMIT),
        Case("it reconnects after a cut", hello=FIRST, linked=False, verdict=SeatVerdict.ADMIT),
        Case("another one, while the holder has a link"),
        Case("another one, at the same moment", now=0.0),
        Case("another one through a relay", relayed=True),
        Case(
            "a restart: the links are closed",
            linked=False,
            lost=99.9,
            verdict=SeatVerdict.ADMIT,
        ),
        Case(
            "through a relay, which cut the holder",
            linked=False,
            lost=99.9,
            relayed=True,
            verdict=SeatVerdict.LATER,
        ),
        Case(
            "through a relay, long after the holder's end",
            linked=False,
            lost=100.0 - LIVES_S,
            relayed=True,
            verdict=SeatVerdict.ADMIT,
        ),
    ],
    ids=lambda case: case.name,
)
def test_who_is_admitted_at_once(case: Case) -> None:
    seat = held()
    if case.lost is not None:
        seat.lost(case.lost)
    verdict = seat.judge(case.hello, case.now, linked=case.linked, relayed=case.relayed)
    assert verdict is case.verdict
    assert not seat.refused(case.now)


def test_the_first_process_needs_no_answer() -> None:
    assert KeySeat().judge(FIRST, 0.0, linked=False, relayed=False) is SeatVerdict.ADMIT


def test_a_holder_that_answers_keeps_its_place_and_its_rival_is_told() -> None:
    seat = held()
    assert seat.judge(SECOND, 10.0, linked=True, relayed=False) is SeatVerdict.ASK
    seat.lived(10.6)
    assert settled(seat, SECOND, 1) is SeatVerdict.REFUSE
    assert seat.refused(10.6) == SECOND
    assert not seat.refused(10.6 + LIVES_S)  # it may have ended since


def test_what_the_holder_did_before_its_rival_came_proves_nothing() -> None:
    """Else a node that was killed and started again would be locked out."""
    seat = held()
    seat.lived(9.9)
    assert seat.judge(SECOND, 10.0, linked=True, relayed=False) is SeatVerdict.ASK
    assert settled(seat, SECOND, 2) is SeatVerdict.ADMIT


def test_a_rival_is_refused_at_once_while_the_holder_is_known_to_live() -> None:
    seat = held()
    seat.judge(SECOND, 10.0, linked=True, relayed=False)
    seat.lived(11.0)
    assert seat.judge(SECOND, 12.0, linked=False, relayed=True) is SeatVerdict.REFUSE
    assert seat.judge(SECOND, 11.0 + LIVES_S, linked=True, relayed=False) is SeatVerdict.ASK
    assert (
        seat.judge(THIRD, 12.0, linked=True, relayed=False) is SeatVerdict.ASK
    )  # it is another one


def test_a_process_that_lost_its_place_never_gets_it_back() -> None:
    """The other one may have signed, and has perhaps ended since."""
    seat = held()
    seat.judge(SECOND, 10.0, linked=True, relayed=False)
    seat.admit(SECOND, 13.0)
    assert seat.judge(FIRST, 20.0, linked=True, relayed=False) is SeatVerdict.REFUSE
    assert seat.judge(FIRST, 1e6, linked=False, relayed=False) is SeatVerdict.REFUSE
    assert seat.refused(1e6) == FIRST
    assert seat.judge(THIRD, 1e6, linked=False, relayed=False) is SeatVerdict.ADMIT


def test_both_lanes_of_a_process_get_one_answer() -> None:
    seat = held()
    assert seat.judge(SECOND, 10.0, linked=True, relayed=False) is SeatVerdict.ASK
    assert seat.judge(SECOND, 10.1, linked=True, relayed=False) is SeatVerdict.ASK
    assert settled(seat, SECOND, 1) is SeatVerdict.ADMIT
    seat.admit(SECOND, 12.5)
    assert settled(seat, SECOND, 1) is SeatVerdict.ADMIT


def test_of_two_rivals_that_wait_for_a_dead_holder_one_gets_the_place() -> None:
    seat = held()
    seat.judge(SECOND, 10.0, linked=True, relayed=False)
    seat.judge(THIRD, 10.1, linked=True, relayed=False)
    assert settled(seat, SECOND, 1) is SeatVerdict.ADMIT
    seat.admit(SECOND, 12.5)
    assert settled(seat, THIRD, 1) is SeatVerdict.LATER


def test_a_new_holder_is_asked_before_a_rival_that_was_heard_earlier_is_refused() -> None:
    """After a power cut a node is started, killed while the dead process is asked, and started
    again: the hello of the killed one proves nothing against the third."""
    seat = held()
    seat.judge(SECOND, 10.0, linked=True, relayed=False)
    seat.judge(THIRD, 11.5, linked=True, relayed=False)
    seat.admit(SECOND, 12.5)
    assert settled(seat, THIRD, 1) is SeatVerdict.LATER
    assert not seat.refused(14.0)
    assert seat.judge(THIRD, 14.5, linked=True, relayed=False) is SeatVerdict.ASK
    assert seat.judge(THIRD, 14.5, linked=False, relayed=False) is SeatVerdict.ADMIT


def test_sessions_of_the_past_are_bounded() -> None:
    seat = KeySeat()
    for number in range(1000):
        seat.admit(session(number), float(number))
    assert len(seat._past) == PAST_SESSIONS_MAX


def test_a_claim_holds_for_a_while_and_until_we_are_admitted() -> None:
    claim = TakenClaim()
    assert not claim.holds(0.0)
    claim.heard(5.0)
    assert claim.holds(5.0 + CLAIM_S - 0.1)
    assert not claim.holds(5.0 + CLAIM_S)
    claim.heard(50.0)
    claim.withdraw()
    assert not claim.holds(50.0)


@pytest.mark.parametrize("n", [4, 7, 10, 100])
def test_liars_alone_never_stop_a_node_and_one_honest_member_is_among_those_who_do(n: int) -> None:
    f = (n - 1) // 3
    assert not place_is_taken(f, f)
    assert place_is_taken(f + 1, f)


@pytest.mark.parametrize("n", [4, 7, 10])
def test_however_honest_members_are_split_between_two_processes_one_stops(n: int) -> None:
    f = (n - 1) // 3
    for with_first in range(n):
        with_second = n - 1 - with_first
        assert place_is_taken(with_first, f) or place_is_taken(with_second, f)


def test_the_sentence_says_what_to_do() -> None:
    assert "bob, carol are connected with another process" in key_in_use(["bob", "carol"])
    assert "bob is connected" in key_in_use(["bob"])
    assert "stop the other one" in key_in_use(["bob"])
    assert "bob, carol, dave and 30 more are connected" in key_in_use(
        ["bob", "carol", "dave", *"e" * 30]
    )


# ---------------------------------------------------------------------- over imagined wires


def member_on(*ends: End, by: bytes = FIRST) -> Contact:
    """A contact whose process `by` has these links, control first."""
    contact = Contact(NodeId(1), make_card(IDENTITIES[1], "127.0.0.1:1"))
    contact.seat.admit(by, clock().time())
    for lane, end in zip(Lane, ends, strict=False):
        contact.channels[lane].link = end.link
    return contact


def hello_of(session: bytes, lane: Lane = Lane.CONTROL) -> Hello:
    return Hello(PROTOCOL_VERSION, ORIGIN, 0, IDENTITIES[1].public_key, lane, session)


def opened(delay_s: float) -> tuple[End, End]:
    here, there = wired(delay_s)
    here.open()
    there.open()
    return here, there


@pytest.mark.parametrize("delay_s", [0.0, 0.3, 0.6])
def test_a_process_that_answers_slowly_keeps_its_place(delay_s: float) -> None:
    async def scenario() -> None:
        here, _ = opened(delay_s)
        refused = await second_process(member_on(here), hello_of(SECOND), Link())
        assert refused is not None
        assert refused.kind is Refusal.SECOND
        assert clock().time() <= 2 * delay_s + 0.01

    run_virtually(scenario)


def test_a_pong_that_was_on_its_way_is_no_answer() -> None:
    """The process wrote it and was killed by a power cut."""

    async def scenario() -> None:
        here, there = opened(0.3)
        await asyncio.sleep(0.5)  # its pong to the first ping arrives at 0.6
        there.wire.cut = True
        began = clock().time()
        assert await second_process(member_on(here), hello_of(SECOND), Link()) is None
        assert clock().time() == pytest.approx(began + ANSWER_S)
        assert here.link.round_trip_s is None or here.link.round_trip_s > 0

    run_virtually(scenario)


def test_a_process_that_follows_a_dead_one_waits_for_a_bounded_time() -> None:
    async def scenario() -> None:
        control, weights = opened(0.0), opened(0.0)
        for _, there in (control, weights):
            there.wire.cut = True
        contact = member_on(control[0], weights[0])
        answers = [second_process(contact, hello_of(SECOND, lane), Link()) for lane in Lane]
        assert await asyncio.gather(*answers) == [None, None]
        assert clock().time() == pytest.approx(ANSWER_S)

    run_virtually(scenario)


def test_an_answer_on_either_lane_is_enough() -> None:
    async def scenario() -> None:
        control, weights = opened(0.0), opened(0.1)
        control[1].wire.cut = True
        contact = member_on(control[0], weights[0])
        assert await second_process(contact, hello_of(SECOND), Link()) is not None

    run_virtually(scenario)


def test_links_that_end_while_they_are_asked_do_not_delay_the_next_process() -> None:
    async def scenario() -> None:
        here, there = opened(0.1)
        there.wire.abort()
        assert await second_process(member_on(here), hello_of(SECOND), Link()) is None
        assert clock().time() < ANSWER_S

    run_virtually(scenario)


def test_many_rivals_do_not_keep_the_answer_from_being_seen() -> None:
    """Each hello makes a ping of its own, and an answer to a later one counts for earlier ones."""

    async def scenario() -> None:
        here, _ = opened(0.3)
        contact = member_on(here)

        async def rival(number: int) -> Refusal | None:
            await asyncio.sleep(0.05 * number)
            refused = await second_process(contact, hello_of(session(number)), Link())
            return None if refused is None else refused.kind

        answers = await asyncio.gather(*(rival(number) for number in range(10, 60)))
        assert set(answers) == {Refusal.SECOND}

    run_virtually(scenario)


def test_a_holder_that_was_cut_at_a_relay_may_come_back() -> None:
    """A relay ends the connection of a key that calls again: the rival itself has cut it."""

    async def scenario() -> None:
        contact = member_on()
        contact.seat.lost(clock().time())
        newcomer = Link()
        newcomer.route = Route(RouteKind.RELAY, "relay")
        assert await second_process(contact, hello_of(SECOND), newcomer) is not None
        assert not contact.seat.refused(clock().time())  # nothing is known yet
        await asyncio.sleep(1.0)
        contact.seat.admit(FIRST, clock().time())
        contact.seat.lost(clock().time())  # the rival calls again
        assert await second_process(contact, hello_of(SECOND), newcomer) is not None
        assert contact.seat.refused(clock().time()) == SECOND

    run_virtually(scenario)


def test_a_process_that_follows_a_dead_one_at_a_relay_is_admitted_soon() -> None:
    async def scenario() -> None:
        contact = member_on()
        contact.seat.lost(clock().time())
        newcomer = Link()
        newcomer.route = Route(RouteKind.RELAY, "relay")
        assert await second_process(contact, hello_of(SECOND), newcomer) is not None
        await asyncio.sleep(ANSWER_S)
        assert await second_process(contact, hello_of(SECOND), newcomer) is None

    run_virtually(scenario)


def test_a_node_that_is_started_twice_after_a_power_cut_is_told_nothing_false() -> None:
    async def scenario() -> None:
        here, there = opened(0.0)
        there.wire.cut = True
        contact = member_on(here)

        async def started(session: bytes, at_s: float) -> Refusal | None:
            await asyncio.sleep(at_s)
            refused = await second_process(contact, hello_of(session), Link())
            if refused is None:
                contact.channels[Lane.CONTROL].link = None
                contact.seat.admit(session, clock().time())
                contact.seat.lost(clock().time())  # only now its end is seen
            assert not contact.seat.refused(clock().time())
            return None if refused is None else refused.kind

        answers = await asyncio.gather(started(SECOND, 0.0), started(THIRD, 1.5))
        assert list(answers) == [None, Refusal.SECOND]
        assert await started(THIRD, 0.5) is None

    run_virtually(scenario)
