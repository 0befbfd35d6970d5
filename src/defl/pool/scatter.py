"""Scatter, then pass on: which member fetches which chunks of an update from its author first.

Every receiver fetches its share from the author and announces it; the others fetch it from there.
So a slow author sends about one copy in all, not one to each member.
"""

from collections.abc import Collection
from dataclasses import dataclass

from defl.ids import NodeId


@dataclass(frozen=True, slots=True)
class Scatter:
    author: NodeId
    receivers: tuple[NodeId, ...]  # in cyclic order after the author
    chunks: int

    def share_of(self, member: NodeId, away: Collection[NodeId] = ()) -> int:
        """A bitmap. The chunks of those that are away are divided among the others. A receiver has
        at least one chunk: if there are fewer chunks than receivers, some have the same one."""
        place, width = self.receivers.index(member), len(self.receivers)
        if place >= self.chunks:
            return 1 << place % self.chunks
        rows = -(-self.chunks // width)
        present = [r for r in self.receivers if r not in away or r == member]
        share = _every(width, rows) << place
        # Row by row the present ones take turns.
        turns = _every(width * len(present), -(-rows // len(present)))
        turns <<= width * present.index(member)
        for column, owner in enumerate(self.receivers):
            if owner in away and owner != member:
                share |= turns << column
        return share & (1 << self.chunks) - 1


def _every(step: int, times: int) -> int:
    """A bitmap of so many bits, each `step` above the one before."""
    return ((1 << step * times) - 1) // ((1 << step) - 1)


def scatter_of(
    author: NodeId, members: tuple[NodeId, ...], me: NodeId, chunks: int
) -> Scatter | None:
    """None if this node is not among the receivers."""
    if me not in members or me == author:
        return None
    after = [member for member in members if member > author]
    before = [member for member in members if member < author]
    return Scatter(author, (*after, *before), chunks)
