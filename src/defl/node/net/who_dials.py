"""Which node of a pair dials the other."""

from defl.ids import NodeId
from defl.messages import MEMBERS_MAX


def is_member(peer: NodeId) -> bool:
    """In this node's epoch; guests and former members are numbered above."""
    return peer < MEMBERS_MAX


def dials(me: NodeId, peer: NodeId) -> bool:
    """Of two members the lower id dials. A guest or former member dials every member, and nobody
    dials it: it may be gone for good."""
    return is_member(peer) and (not is_member(me) or me < peer)
