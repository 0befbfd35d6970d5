"""Which node of a pair dials the other."""

from enum import Enum

from defl.cards import Reach
from defl.contacts import FORMER_FROM
from defl.fields import MEMBERS_MAX
from defl.ids import NodeId


class Part(Enum):
    """What a node does to be connected to a peer."""

    DIAL = "dial"
    EXPECT = "expect"  # the peer dials, and is called if it does not
    LISTEN = "listen"  # the peer may dial
    MEET = "meet"  # neither can be dialled: both go to a relay


def is_member(peer: NodeId) -> bool:
    """In this node's epoch; guests and former members are numbered above."""
    return peer < MEMBERS_MAX


def part_of(me: NodeId, my_reach: Reach, peer: NodeId, its_reach: Reach) -> Part:
    """Of two members that both can be dialled the lower id dials. A guest or former member dials
    every member. Nobody dials a former member, which may be gone for good; a guest is dialled only
    by members that cannot be dialled themselves."""
    if not is_member(me) and not is_member(peer):
        return Part.LISTEN  # outsiders have nothing to tell each other
    if is_member(me) and peer >= FORMER_FROM:
        return Part.LISTEN
    if its_reach is Reach.DIAL:
        return Part.MEET if my_reach is Reach.DIAL else Part.LISTEN
    if my_reach is Reach.DIAL or not is_member(me):
        return Part.DIAL
    if not is_member(peer):
        return Part.LISTEN
    return Part.DIAL if me < peer else Part.EXPECT
