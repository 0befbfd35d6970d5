"""Pending connections: how many callers may wait to prove their identity, and which one is evicted.

Connecting costs a stranger nothing, so a single bounded queue would let strangers evict a member in
the middle of its handshake. Each pending connection belongs to one class, and each class has
a limit of its own:

    silent     nothing was received yet. A member's first bytes follow its connection at once.
    unmarked   something was received, but no contact's mark (`tls.mark_of`).
    marked     one class for each contact. Only a caller that has the contacts' cards, or listens
               on the line, can send a contact's mark.
    relayed    one class for each key that may call the relay of this node, if it is one.
    letterbox  bears the mark of a letterbox (letterbox.py), and stays pending as long as it lives:
               such a caller never proves who it is.

A class over its limit evicts the oldest connection of the address that holds the most. Nothing here
waits or reads; acceptor.py does.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Generic, TypeVar

from defl.ids import NodeId

# A member dials twice, once for each lane: up to this many from one address are not a crowd.
NO_CROWD = 2
# The owner of one IPv6 address has the 2^64 addresses of its network.
NETWORK_BYTES = 8

Connection = TypeVar("Connection", bound=Hashable)
Address = str | bytes


@dataclass(frozen=True, slots=True)
class PendingLimits:
    """Connections at a time; each costs a descriptor and, once it has sent something, buffers."""

    silent: int = 128
    unmarked: int = 64
    per_member: int = 8  # both lanes, and some that a restart left behind
    letterbox: int = 4  # each may hold a control frame


class Stranger(Enum):
    UNMARKED = "unmarked"
    LETTERBOX = "letterbox"


@dataclass(frozen=True, slots=True)
class RelayCaller:
    """A member that calls the relay of this node, not the node."""

    key: bytes


Caller = NodeId | RelayCaller | Stranger  # whose mark a connection bears


class PendingConnections(Generic[Connection]):
    def __init__(self, limits: PendingLimits) -> None:
        self._limits = limits
        self._silent: OrderedDict[Connection, Address] = OrderedDict()
        self._marked: dict[Caller, OrderedDict[Connection, Address]] = {}

    def __len__(self) -> int:
        return len(self._silent) + sum(map(len, self._marked.values()))

    def add(self, connection: Connection, host: str) -> Connection | None:
        """A new, silent connection; returns the evicted one."""
        return _add(self._silent, self._limits.silent, connection, _network(host))

    def classify(self, connection: Connection, caller: Caller) -> Connection | None:
        """The first bytes of a silent connection bear this caller's mark; returns the evicted
        one."""
        address = self._silent.pop(connection)
        marked = self._marked.setdefault(caller, OrderedDict())
        return _add(marked, self._limit(caller), connection, address)

    def remove(self, connection: Connection) -> None:
        self._silent.pop(connection, None)
        for caller, connections in list(self._marked.items()):
            connections.pop(connection, None)
            if not connections:
                del self._marked[caller]

    def _limit(self, caller: Caller) -> int:
        match caller:
            case Stranger.UNMARKED:
                return self._limits.unmarked
            case Stranger.LETTERBOX:
                return self._limits.letterbox
            case _:
                return self._limits.per_member


def _add(
    connections: OrderedDict[Connection, Address],
    limit: int,
    connection: Connection,
    address: Address,
) -> Connection | None:
    connections[connection] = address
    if len(connections) <= limit:
        return None
    held = Counter(connections.values())
    most = max(held.values())
    evicted = next(
        other for other, its in connections.items() if most <= NO_CROWD or held[its] == most
    )
    del connections[evicted]
    return evicted


def _network(host: str) -> Address:
    try:
        address: IPv4Address | IPv6Address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv4Address):
        return address.packed
    return address.ipv4_mapped.packed if address.ipv4_mapped else address.packed[:NETWORK_BYTES]
