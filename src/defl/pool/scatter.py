"""Scatter, then pass on: which member fetches which chunks of an update from its author first.

Every receiver fetches its share from the author and announces it; the others fetch it from there.
So a slow author sends about one copy in all, not one to each member.
"""

from dataclasses import dataclass

from defl.ids import NodeId


@dataclass(frozen=True, slots=True)
class Scatter:
    author: NodeId
    receivers: tuple[NodeId, ...]  # in cyclic order after the author
    chunks: int

    def share_of(self, member: NodeId) -> int:
        """A bitmap, never empty for a receiver: if there are fewer chunks than receivers, some
        have the same one."""
        if member not in self.receivers:
            return 0
        place, step = self.receivers.index(member), len(self.receivers)
        if place >= self.chunks:
            return 1 << place % self.chunks
        return sum(1 << index for index in range(place, self.chunks, step))


def scatter_of(author: NodeId, members: tuple[NodeId, ...], chunks: int) -> Scatter:
    after = [member for member in members if member > author]
    before = [member for member in members if member < author]
    return Scatter(author, (*after, *before), chunks)
