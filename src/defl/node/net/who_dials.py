"""Which node of a pair dials the other."""

from enum import Enum

from defl.fields import MEMBERS_MAX
from defl.ids import NodeId


class Part(Enum):
    """What a node does to be connected to a peer."""

    DIAL = "dial"
    EXPECT = "expect"  # the peer dials, and is missed if it does not
    LISTEN = "listen"  # the peer may dial


def is_member(peer: NodeId) -> bool:
    """In this node's epoch; guests and former members are numbered above."""
    return peer < MEMBERS_MAX


def dials(me: NodeId, peer: NodeId) -> bool:
    """Of two members the lower id dials. A guest or former member dials every member, and nobody
    dials it: it may be gone for good."""
    return is_member(peer) and (not is_member(me) or me < peer)


def part_of(me: NodeId, peer: NodeId) -> Part:
    if dials(me, peer):
        return Part.DIAL
    return Part.EXPECT if dials(peer, me) and is_member(peer) else Part.LISTEN
