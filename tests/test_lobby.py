"""Callers that have not proved who they are: who waits, and who goes when there are too many."""

import pytest

from defl.ids import NodeId
from defl.node.net.lobby import Lobby, Places

PLACES = Places(silent=4, strangers=3, per_member=2)
MEMBER = NodeId(1)


def lobby_with(*guests: tuple[str, str]) -> Lobby[str]:
    lobby: Lobby[str] = Lobby(PLACES)
    for guest, host in guests:
        assert lobby.enter(guest, host) is None
    return lobby


def test_silent_callers_push_out_silent_callers_only() -> None:
    lobby = lobby_with(("member", "10.0.0.1"), ("stranger", "10.0.0.2"))
    assert lobby.speak("member", MEMBER) is None
    assert lobby.speak("stranger", None) is None

    leaving = {lobby.enter(f"silent {i}", "10.0.0.2") for i in range(100)}

    assert leaving == {None} | {f"silent {i}" for i in range(100 - PLACES.silent)}
    assert len(lobby) == 2 + PLACES.silent


def test_strangers_who_speak_push_out_strangers_only() -> None:
    lobby = lobby_with(("member", "10.0.0.1"))
    lobby.speak("member", MEMBER)
    leaving = set()
    for i in range(100):
        assert lobby.enter(f"stranger {i}", "10.0.0.1") is None
        leaving.add(lobby.speak(f"stranger {i}", None))

    assert leaving == {None} | {f"stranger {i}" for i in range(100 - PLACES.strangers)}


def test_callers_with_one_members_mark_push_nobody_out_of_another_members_room() -> None:
    lobby = lobby_with(("honest", "10.0.0.1"))
    lobby.speak("honest", MEMBER)
    leaving = set()
    for i in range(10):
        assert lobby.enter(f"liar {i}", "10.0.0.1") is None
        leaving.add(lobby.speak(f"liar {i}", NodeId(2)))

    assert leaving == {None} | {f"liar {i}" for i in range(10 - PLACES.per_member)}


@pytest.mark.parametrize(
    "crowd",
    [
        lambda _: "10.0.0.2",
        lambda i: f"2001:db8::{i:x}",  # one network
        lambda i: f"fe80::{i:x}%eth0",
        lambda _: "::ffff:10.0.0.2",
    ],
)
def test_the_address_with_the_most_places_loses_its_oldest(crowd) -> None:  # type: ignore[no-untyped-def]
    lobby = lobby_with(("modest", "10.0.0.1"))

    leaving = [lobby.enter(f"crowd {i}", crowd(i)) for i in range(6)]

    assert leaving == [None, None, None, "crowd 0", "crowd 1", "crowd 2"]


def test_two_connections_of_one_address_are_no_crowd() -> None:
    """A member dials two lanes; strangers from many addresses must not outweigh it by that."""
    lobby = lobby_with(
        ("stranger", "10.0.0.9"), ("lane 1", "10.0.0.1"), ("lane 2", "10.0.0.1"), ("b", "10.0.0.2")
    )
    assert lobby.enter("c", "10.0.0.3") == "stranger"


def test_a_caller_that_leaves_makes_room_wherever_it_was() -> None:
    lobby = lobby_with(("a", "10.0.0.1"), ("b", "10.0.0.1"), ("c", "10.0.0.1"))
    lobby.speak("b", None)
    lobby.speak("c", MEMBER)
    for guest in ("a", "b", "c", "nobody"):
        lobby.leave(guest)
    assert len(lobby) == 0
