"""Pending connections: how many callers may wait to prove their identity, and which one is evicted.

Connecting costs a stranger nothing, so a single bounded queue would let strangers evict a member in
the middle of its handshake. Each pending connection belongs to one class, and each class has
a limit of its own:

    silent     nothing was received yet. A member's first bytes follow its connection at once.
    unmarked   something was received, but no member's mark (`tls.mark_of`).
    marked     one class for each member. Only a caller that has the members' cards, or listens on
               the line, can send a member's mark.

A class over its limit evicts the oldest connection of the address that holds the most. Nothing here
waits or reads; acceptor.py does.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
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


class PendingConnections(Generic[Connection]):
    def __init__(self, limits: PendingLimits) -> None:
        self._limits = limits
        self._silent: OrderedDict[Connection, Address] = OrderedDict()
        self._unmarked: OrderedDict[Connection, Address] = OrderedDict()
        self._marked: dict[NodeId, OrderedDict[Connection, Address]] = {}

    def __len__(self) -> int:
        return len(self._silent) + len(self._unmarked) + sum(map(len, self._marked.values()))

    def add(self, connection: Connection, host: str) -> Connection | None:
        """A new, silent connection; returns the evicted one."""
        return _add(self._silent, self._limits.silent, connection, _network(host))

    def classify(self, connection: Connection, member: NodeId | None) -> Connection | None:
        """The first bytes of a silent connection bear this member's mark or none; returns the
        evicted one."""
        address = self._silent.pop(connection)
        if member is None:
            return _add(self._unmarked, self._limits.unmarked, connection, address)
        marked = self._marked.setdefault(member, OrderedDict())
        return _add(marked, self._limits.per_member, connection, address)

    def remove(self, connection: Connection) -> None:
        for connections in (self._silent, self._unmarked, *self._marked.values()):
            connections.pop(connection, None)


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
