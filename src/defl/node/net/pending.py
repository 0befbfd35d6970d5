"""Pending connections: how many callers may wait to prove their identity, and who loses its place.

Connecting costs a stranger nothing, so a single bounded queue would let strangers evict a member in
the middle of its handshake. Each pending connection belongs to one class, and each class has
a limit of its own:

    silent     nothing was received yet. A member's first bytes follow its connection at once.
    unmarked   something was received, but no contact's mark (dial_hints.py).
    marked     one class for each contact. Nobody else can make its marks, and nothing evicts it.
    relayed    one class for each key that may call the relay of this node, if it is one.
    letterbox  bears the mark of a letterbox (letterbox.py), and stays pending as long as it lives:
               such a caller never proves who it is.

A full class of strangers loses one connection at random, the new one included: never the oldest,
since a caller that needs longer than others would then never get in. The more often an address has
called of late, the more likely it loses. An address from which a contact has proved itself has
places that nobody takes from it. Nothing here waits or reads; acceptor.py does.
"""

import random
from collections import OrderedDict
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Generic, TypeVar

from defl.ids import NodeId

# The owner of one IPv6 address has the 2^64 addresses of its network.
NETWORK_BYTES = 8
# Of each contact: one with IPv4 and one with IPv6, or a site's two lines.
KNOWN_ADDRESSES = 2
# Recent calls of an address count half after this long: longer than a member's pause before it
# dials again (3 s), so that a flood stands out.
CALLS_HALF_LIFE_S = 30.0
# Addresses whose calls are counted, the newest ones: 1 MB. One that is not counted has called once.
COUNTED_ADDRESSES_MAX = 4096

Connection = TypeVar("Connection", bound=Hashable)
Address = str | bytes


@dataclass(frozen=True, slots=True)
class PendingLimits:
    """Connections at a time; each costs a descriptor and, once it has sent something, buffers."""

    silent: int = 128
    unmarked: int = 64
    per_member: int = 8  # both lanes, and some that a restart left behind
    letterbox: int = 4  # each may hold a control frame
    # For each known address, silent and unmarked, beyond those above: both lanes of a member.
    reserved: int = 2


class Stranger(Enum):
    SILENT = "silent"
    UNMARKED = "unmarked"
    UNMARKED_AT_RELAY = "unmarked, at the relay"  # pending like any other unmarked caller
    LETTERBOX = "letterbox"


@dataclass(frozen=True, slots=True)
class RelayCaller:
    """A member that calls the relay of this node, not the node."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Reserved:
    """The places of one known address in one class of strangers."""

    stranger: Stranger
    address: Address


Caller = NodeId | RelayCaller | Stranger  # whose mark a connection bears
PendingClass = Caller | Reserved


class PendingConnections(Generic[Connection]):
    def __init__(self, limits: PendingLimits, rng: random.Random | None = None) -> None:
        self._limits = limits
        self._rng = rng or random.SystemRandom()  # nobody can foresee who loses its place
        self._classes: dict[PendingClass, dict[Connection, Address]] = {}
        self._places: dict[Connection, tuple[PendingClass, Address]] = {}
        self._calls: OrderedDict[Address, tuple[float, float]] = OrderedDict()  # and when
        self._proved: dict[bytes, OrderedDict[Address, None]] = {}  # by the contact's key
        self._known: frozenset[Address] = frozenset()

    def __len__(self) -> int:
        return len(self._places)

    def expect(self, keys: Collection[bytes]) -> None:
        """Forget the addresses of everybody but the owners of these keys."""
        self._proved = {key: known for key, known in self._proved.items() if key in keys}
        self._known = frozenset(address for known in self._proved.values() for address in known)

    def admitted(self, connection: Connection, key: bytes) -> None:
        """Reserve places for the address of this connection, from which the key's owner has proved
        itself; its last few addresses have some."""
        if connection not in self._places:
            return
        _, address = self._places[connection]
        known = self._proved.setdefault(key, OrderedDict())
        known[address] = None
        known.move_to_end(address)
        if len(known) > KNOWN_ADDRESSES:
            known.popitem(last=False)
        self.expect(self._proved.keys())

    def add(
        self, connection: Connection, host: str, now: float, caller: Caller = Stranger.SILENT
    ) -> Connection | None:
        """Add a new connection, whose first bytes may be there already; return the one that loses
        its place, which may be it."""
        address = _network(host)
        self._count_call(address, now)
        return self._place(connection, address, caller)

    def classify(self, connection: Connection, caller: Caller) -> Connection | None:
        """Move a silent connection whose first bytes bear this caller's mark; return the one that
        loses its place, which may be it."""
        _, address = self._places[connection]
        self.remove(connection)
        return self._place(connection, address, caller)

    def remove(self, connection: Connection) -> None:
        place = self._places.pop(connection, None)
        if place is not None:
            pending_class, _ = place
            connections = self._classes[pending_class]
            del connections[connection]
            if not connections:
                del self._classes[pending_class]

    def _place(self, connection: Connection, address: Address, caller: Caller) -> Connection | None:
        if caller is Stranger.UNMARKED_AT_RELAY:
            caller = Stranger.UNMARKED
        if not isinstance(caller, Stranger) and self._is_full(caller):
            caller = Stranger.UNMARKED  # rather than to evict a contact's handshake
        has_reserved = caller in (Stranger.SILENT, Stranger.UNMARKED) and address in self._known
        pending_class: PendingClass = caller
        if isinstance(caller, Stranger) and has_reserved:
            reserved = Reserved(caller, address)
            pending_class = caller if self._is_full(reserved) else reserved
        is_full = self._is_full(pending_class)
        self._places[connection] = pending_class, address
        self._classes.setdefault(pending_class, {})[connection] = address
        if not is_full:
            return None
        loser = self._loser(self._classes[pending_class])
        self.remove(loser)
        return loser

    def _is_full(self, pending_class: PendingClass) -> bool:
        return len(self._classes.get(pending_class, ())) >= self._limit(pending_class)

    def _limit(self, pending_class: PendingClass) -> int:
        match pending_class:
            case Stranger.SILENT:
                return self._limits.silent
            case Stranger.UNMARKED:
                return self._limits.unmarked
            case Stranger.LETTERBOX:
                return self._limits.letterbox
            case Reserved():
                return self._limits.reserved
            case _:
                return self._limits.per_member

    def _loser(self, connections: dict[Connection, Address]) -> Connection:
        """Draw the connection that loses its place. An address that calls ten times as often as
        another loses a hundred times as often: there is no threshold to stay just below."""
        once = (1.0, 0.0)
        weights = [self._calls.get(address, once)[0] ** 2 for address in connections.values()]
        return self._rng.choices(list(connections), weights)[0]

    def _count_call(self, address: Address, now: float) -> None:
        calls, at = self._calls.pop(address, (0.0, now))
        self._calls[address] = 1 + calls * 2.0 ** ((at - now) / CALLS_HALF_LIFE_S), now
        if len(self._calls) > COUNTED_ADDRESSES_MAX:
            self._calls.popitem(last=False)


def _network(host: str) -> Address:
    try:
        address: IPv4Address | IPv6Address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv4Address):
        return address.packed
    return address.ipv4_mapped.packed if address.ipv4_mapped else address.packed[:NETWORK_BYTES]
