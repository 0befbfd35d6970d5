"""Pending connections: who loses its place when there are too many."""

from collections.abc import Callable
from itertools import count
from random import Random

import pytest

from defl.ids import NodeId
from defl.node.net.pending import (
    COUNTED_ADDRESSES_MAX,
    KNOWN_ADDRESSES,
    Caller,
    PendingConnections,
    PendingLimits,
    RelayCaller,
    Stranger,
)

LIMITS = PendingLimits(silent=4, unmarked=3, per_member=2, letterbox=3, reserved=2)
MEMBER = NodeId(1)
KEY = b"the member's key"
NOW = 1000.0
SIXTEEN = PendingLimits(silent=16)
TRIALS = 200


def pending_with(
    *connections: tuple[str, str], limits: PendingLimits = LIMITS, seed: int = 0
) -> PendingConnections[str]:
    pending: PendingConnections[str] = PendingConnections(limits, Random(seed))  # noqa: S311
    for connection, host in connections:
        assert pending.add(connection, host, NOW) is None
    return pending


def call(pending: PendingConnections[str], name: str, host: str, caller: Caller) -> set[str | None]:
    """Connects, and sends its first record if it still has a place; returns who lost theirs."""
    lost = {pending.add(name, host, NOW)}
    return lost if name in lost else {*lost, pending.classify(name, caller)}


def test_silent_connections_evict_silent_connections_only() -> None:
    pending = pending_with(("member", "10.0.0.1"), ("stranger", "10.0.0.2"))
    assert pending.classify("member", MEMBER) is None
    assert pending.classify("stranger", Stranger.UNMARKED) is None

    evicted = {pending.add(f"silent {i}", "10.0.0.2", NOW) for i in range(100)}

    assert len(evicted - {None}) == 100 - LIMITS.silent
    assert not evicted & {"member", "stranger"}
    assert len(pending) == 2 + LIMITS.silent


@pytest.mark.parametrize(
    ("mark", "flood"),
    [
        (Stranger.UNMARKED, Stranger.LETTERBOX),
        (Stranger.LETTERBOX, Stranger.UNMARKED),
        (Stranger.LETTERBOX, NodeId(2)),
        (MEMBER, Stranger.UNMARKED),
        (MEMBER, Stranger.LETTERBOX),
        (MEMBER, NodeId(2)),
    ],
)
def test_a_flood_of_one_class_evicts_nobody_of_another(mark: Caller, flood: Caller) -> None:
    pending = pending_with(("first", "10.0.0.1"))
    pending.classify("first", mark)

    evicted: set[str | None] = set()
    for i in range(100):
        evicted |= call(pending, f"other {i}", "10.0.0.1", flood)

    assert len(evicted) > 50
    assert "first" not in evicted


@pytest.mark.parametrize("caller", [MEMBER, RelayCaller(KEY)])
def test_nothing_evicts_a_handshake_with_a_contacts_mark(caller: Caller) -> None:
    """More callers with the same mark wait among the strangers."""
    pending = pending_with(("lane 1", "10.0.0.1"), ("lane 2", "10.0.0.1"))
    pending.classify("lane 1", caller)
    pending.classify("lane 2", caller)

    evicted: set[str | None] = set()
    for i in range(100):
        evicted |= call(pending, f"more {i}", f"10.0.1.{i}", caller)

    assert not evicted & {"lane 1", "lane 2"}
    assert len(pending) == 2 + LIMITS.unmarked


def survivals(member_calls: int, stranger_calls: int, arrivals: int, strangers: int = 30) -> int:
    """Count the trials in which a connection is still pending after this many others, in a class
    that was full; each address has called this often before."""
    survived = 0
    for seed in range(TRIALS):
        pending = pending_with(limits=SIXTEEN, seed=seed)
        hosts = [f"10.1.{i // 250}.{i % 250}" for i in range(strangers)]
        earlier = [*hosts * stranger_calls, *["10.0.0.1"] * member_calls]
        for i, host in enumerate(earlier):
            pending.add(f"earlier {i}", host, NOW)
            pending.remove(f"earlier {i}")
        for i in range(20):
            pending.add(f"other {i}", hosts[i % strangers], NOW)
        evicted = [pending.add("member", "10.0.0.1", NOW)]
        evicted += [
            pending.add(f"more {i}", hosts[(20 + i) % strangers], NOW) for i in range(arrivals)
        ]
        survived += "member" not in evicted
    return survived


def test_a_slow_member_keeps_its_place_while_others_call_ten_times_as_often() -> None:
    """The member needs longer than a class takes to fill with others."""
    assert survivals(member_calls=2, stranger_calls=20, arrivals=32) > 0.85 * TRIALS


def test_a_slow_member_keeps_its_place_by_luck_if_all_call_equally_often() -> None:
    """(1 - 1/17)^17 = 0.36."""
    kept = survivals(member_calls=0, stranger_calls=0, arrivals=16, strangers=100)

    assert 0.25 * TRIALS < kept < 0.5 * TRIALS


def test_strangers_that_call_a_little_less_often_than_a_member_do_not_shut_it_out() -> None:
    assert survivals(member_calls=12, stranger_calls=9, arrivals=6) > 0.3 * TRIALS


def test_calls_of_long_ago_are_forgotten() -> None:
    lost = 0
    for seed in range(TRIALS):
        pending = pending_with(limits=PendingLimits(silent=1, reserved=0), seed=seed)
        for i in range(50):
            pending.add(f"earlier {i}", "10.0.0.1", NOW)
            pending.remove(f"earlier {i}")
        pending.add("member", "10.0.0.1", NOW + 600.0)
        lost += pending.add("other", "10.0.0.2", NOW + 600.0) == "member"

    assert 0.4 * TRIALS < lost < 0.6 * TRIALS


@pytest.mark.parametrize(
    "crowd",
    [
        lambda _: "10.0.0.2",
        lambda i: f"2001:db8::{i:x}",  # one network
        lambda i: f"fe80::{i:x}%eth0",
        lambda _: "::ffff:10.0.0.2",
    ],
)
def test_an_address_that_calls_often_loses_to_one_that_calls_once(
    crowd: Callable[[int], str],
) -> None:
    kept = 0
    for seed in range(TRIALS):
        pending = pending_with(limits=SIXTEEN, seed=seed)
        evicted = [pending.add(f"crowd {i}", crowd(i), NOW) for i in range(40)]
        evicted.append(pending.add("single", "10.0.0.1", NOW))
        evicted += [pending.add(f"more {i}", crowd(i), NOW) for i in range(40)]
        kept += "single" not in evicted

    assert kept > 0.97 * TRIALS


def test_the_number_of_counted_addresses_is_bounded() -> None:
    pending = pending_with()
    for i in range(COUNTED_ADDRESSES_MAX + 100):
        pending.add(f"stranger {i}", f"10.{i // 62500}.{i // 250 % 250}.{i % 250}", NOW)
        pending.remove(f"stranger {i}")

    assert len(pending._calls) == COUNTED_ADDRESSES_MAX


def admitted(pending: PendingConnections[str], host: str, key: bytes = KEY) -> None:
    """A contact connects from there and proves itself, however many it has to try."""
    for attempt in count():
        if f"proof {attempt}" not in call(pending, f"proof {attempt}", host, MEMBER):
            pending.admitted(f"proof {attempt}", key)
            pending.remove(f"proof {attempt}")
            return


@pytest.mark.parametrize("mark", [None, Stranger.UNMARKED, Stranger.UNMARKED_AT_RELAY])
@pytest.mark.parametrize("host", ["10.0.0.1", "2001:db8::7"])
def test_an_address_from_which_a_contact_proved_itself_has_two_places_that_nobody_takes(
    host: str, mark: Stranger | None
) -> None:
    """Strangers call from everywhere, and the contact has no valid mark."""
    pending = pending_with()
    admitted(pending, "10.0.0.1")
    admitted(pending, "2001:db8::1")
    evicted: set[str | None] = set()
    for i in range(100):
        evicted |= call(pending, f"before {i}", f"10.0.1.{i}", Stranger.UNMARKED)
        evicted |= {pending.add(f"silent {i}", f"10.0.1.{i}", NOW)}

    for lane in ("lane 1", "lane 2"):
        evicted.add(pending.add(lane, host, NOW))
        if mark is not None:
            evicted.add(pending.classify(lane, mark))
    for i in range(100):
        evicted |= call(pending, f"after {i}", f"10.0.1.{i}", Stranger.UNMARKED)
        evicted |= {pending.add(f"silent after {i}", f"10.0.1.{i}", NOW)}

    assert not evicted & {"lane 1", "lane 2"}


def test_strangers_behind_a_members_address_cost_nobody_else_a_place() -> None:
    pending = pending_with(limits=PendingLimits())
    admitted(pending, "10.0.0.1")
    for i in range(50):
        pending.add(f"neighbour {i}", "10.0.0.1", NOW)

    assert len(pending) == 50
    assert pending.add("other", "10.0.0.2", NOW) is None


def test_reserved_places_are_those_of_a_contacts_last_addresses() -> None:
    pending = pending_with()
    for i in range(10):
        admitted(pending, f"10.0.0.{i}")
    for i in range(4):
        pending.add(f"stranger {i}", f"10.0.1.{i}", NOW)

    kept = [pending.add(f"member {i}", f"10.0.0.{i}", NOW) is None for i in range(10)]

    assert kept == (10 - KNOWN_ADDRESSES) * [False] + KNOWN_ADDRESSES * [True]


def test_a_contact_that_is_gone_has_no_reserved_places() -> None:
    pending = pending_with()
    admitted(pending, "10.0.0.1")
    admitted(pending, "10.0.0.2", b"another key")
    pending.expect({b"another key"})
    for i in range(4):
        pending.add(f"stranger {i}", f"10.0.1.{i}", NOW)

    assert pending.add("member", "10.0.0.1", NOW) is not None
    assert pending.add("other member", "10.0.0.2", NOW) is None


def test_the_letterbox_has_no_reserved_places() -> None:
    pending = pending_with(limits=PendingLimits())
    admitted(pending, "10.0.0.1")
    for i in range(20):
        call(pending, f"caller {i}", "10.0.0.1", Stranger.LETTERBOX)

    assert len(pending) == PendingLimits().letterbox


def test_a_removed_connection_makes_room_in_any_class() -> None:
    pending = pending_with(("a", "10.0.0.1"), ("b", "10.0.0.1"), ("c", "10.0.0.1"))
    pending.classify("b", Stranger.UNMARKED)
    pending.classify("c", MEMBER)
    for connection in ("a", "b", "c", "unknown"):
        pending.remove(connection)
    assert len(pending) == 0
