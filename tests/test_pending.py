"""Pending connections: which ones are evicted when there are too many."""

import pytest

from defl.ids import NodeId
from defl.node.net.pending import Caller, PendingConnections, PendingLimits, Stranger

LIMITS = PendingLimits(silent=4, unmarked=3, per_member=2, letterbox=3)
MEMBER = NodeId(1)


def pending_with(*connections: tuple[str, str]) -> PendingConnections[str]:
    pending: PendingConnections[str] = PendingConnections(LIMITS)
    for connection, host in connections:
        assert pending.add(connection, host) is None
    return pending


def test_silent_connections_evict_silent_connections_only() -> None:
    pending = pending_with(("member", "10.0.0.1"), ("stranger", "10.0.0.2"))
    assert pending.classify("member", MEMBER) is None
    assert pending.classify("stranger", Stranger.UNMARKED) is None

    evicted = {pending.add(f"silent {i}", "10.0.0.2") for i in range(100)}

    assert evicted == {None} | {f"silent {i}" for i in range(100 - LIMITS.silent)}
    assert len(pending) == 2 + LIMITS.silent


def test_unmarked_connections_evict_unmarked_connections_only() -> None:
    pending = pending_with(("member", "10.0.0.1"))
    pending.classify("member", MEMBER)
    evicted = set()
    for i in range(100):
        assert pending.add(f"stranger {i}", "10.0.0.1") is None
        evicted.add(pending.classify(f"stranger {i}", Stranger.UNMARKED))

    assert evicted == {None} | {f"stranger {i}" for i in range(100 - LIMITS.unmarked)}


def test_callers_of_the_letterbox_evict_only_each_other() -> None:
    pending = pending_with(("member", "10.0.0.1"), ("stranger", "10.0.0.1"))
    pending.classify("member", MEMBER)
    pending.classify("stranger", Stranger.UNMARKED)
    evicted = set()
    for i in range(100):
        assert pending.add(f"caller {i}", "10.0.0.1") is None
        evicted.add(pending.classify(f"caller {i}", Stranger.LETTERBOX))

    assert evicted == {None} | {f"caller {i}" for i in range(100 - LIMITS.letterbox)}


@pytest.mark.parametrize("mark", [MEMBER, Stranger.UNMARKED])
def test_nobody_else_evicts_a_caller_of_the_letterbox(mark: Caller) -> None:
    pending = pending_with(("caller", "10.0.0.1"))
    pending.classify("caller", Stranger.LETTERBOX)
    evicted = set()
    for i in range(100):
        assert pending.add(f"other {i}", "10.0.0.1") is None
        evicted.add(pending.classify(f"other {i}", mark))

    assert "caller" not in evicted


def test_connections_with_one_members_mark_evict_none_of_another_member() -> None:
    pending = pending_with(("honest", "10.0.0.1"))
    pending.classify("honest", MEMBER)
    evicted = set()
    for i in range(10):
        assert pending.add(f"liar {i}", "10.0.0.1") is None
        evicted.add(pending.classify(f"liar {i}", NodeId(2)))

    assert evicted == {None} | {f"liar {i}" for i in range(10 - LIMITS.per_member)}


@pytest.mark.parametrize(
    "crowd",
    [
        lambda _: "10.0.0.2",
        lambda i: f"2001:db8::{i:x}",  # one network
        lambda i: f"fe80::{i:x}%eth0",
        lambda _: "::ffff:10.0.0.2",
    ],
)
def test_the_address_with_the_most_connections_loses_its_oldest(crowd) -> None:  # type: ignore[no-untyped-def]
    pending = pending_with(("single", "10.0.0.1"))

    evicted = [pending.add(f"crowd {i}", crowd(i)) for i in range(6)]

    assert evicted == [None, None, None, "crowd 0", "crowd 1", "crowd 2"]


def test_two_connections_of_one_address_are_not_a_crowd() -> None:
    """A member dials two lanes, and must not lose one to strangers from many addresses."""
    pending = pending_with(
        ("stranger", "10.0.0.9"), ("lane 1", "10.0.0.1"), ("lane 2", "10.0.0.1"), ("b", "10.0.0.2")
    )
    assert pending.add("c", "10.0.0.3") == "stranger"


def test_a_removed_connection_makes_room_in_any_class() -> None:
    pending = pending_with(("a", "10.0.0.1"), ("b", "10.0.0.1"), ("c", "10.0.0.1"))
    pending.classify("b", Stranger.UNMARKED)
    pending.classify("c", MEMBER)
    for connection in ("a", "b", "c", "unknown"):
        pending.remove(connection)
    assert len(pending) == 0
