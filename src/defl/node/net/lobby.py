"""Callers that have not proved who they are: how many may wait, and who goes when there are more.

Connecting costs a stranger nothing, so places alone decide nothing: whoever comes last would push
out a member that is in the middle of its handshake. There are three kinds of places, and nobody
takes a place of another kind:

    silent      nothing was received yet. A member's first bytes follow its connection at once.
    strangers   something was received, but no member's mark (`tls.mark_of`).
    one room for each member whose mark was received: only someone who has the members' cards,
                or listens on the line, can make it.

Where a room is full, the address that has the most places in it loses its oldest one. Nothing here
waits or reads; the transport does.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Generic, TypeVar

from defl.ids import NodeId

# A member dials twice, once for each lane: so many from one address are no crowd.
NO_CROWD = 2
# Who has one IPv6 address has the 2^64 of its network.
NETWORK_BYTES = 8

Guest = TypeVar("Guest", bound=Hashable)
Address = str | bytes


@dataclass(frozen=True, slots=True)
class Places:
    """How many may wait at a time; each costs a descriptor and, once it has spoken, buffers."""

    silent: int = 128
    strangers: int = 64
    per_member: int = 8  # both lanes, and some of those that a restart left behind


class Lobby(Generic[Guest]):
    def __init__(self, places: Places) -> None:
        self._places = places
        self._silent: OrderedDict[Guest, Address] = OrderedDict()
        self._strangers: OrderedDict[Guest, Address] = OrderedDict()
        self._members: dict[NodeId, OrderedDict[Guest, Address]] = {}

    def __len__(self) -> int:
        return len(self._silent) + len(self._strangers) + sum(map(len, self._members.values()))

    def enter(self, guest: Guest, host: str) -> Guest | None:
        """A new caller; returns who has to go for it."""
        return _take_place(self._silent, self._places.silent, guest, _network(host))

    def speak(self, guest: Guest, marked: NodeId | None) -> Guest | None:
        """A silent caller's first bytes came, with a member's mark or none; who has to go?"""
        address = self._silent.pop(guest)
        if marked is None:
            return _take_place(self._strangers, self._places.strangers, guest, address)
        room = self._members.setdefault(marked, OrderedDict())
        return _take_place(room, self._places.per_member, guest, address)

    def leave(self, guest: Guest) -> None:
        for room in (self._silent, self._strangers, *self._members.values()):
            room.pop(guest, None)


def _take_place(
    room: OrderedDict[Guest, Address], places: int, guest: Guest, address: Address
) -> Guest | None:
    room[guest] = address
    if len(room) <= places:
        return None
    taken = Counter(room.values())
    most = max(taken.values())
    leaves = next(other for other, its in room.items() if most <= NO_CROWD or taken[its] == most)
    del room[leaves]
    return leaves


def _network(host: str) -> Address:
    try:
        address: IPv4Address | IPv6Address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv4Address):
        return address.packed
    return address.ipv4_mapped.packed if address.ipv4_mapped else address.packed[:NETWORK_BYTES]
