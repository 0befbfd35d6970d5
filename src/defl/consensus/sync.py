"""The one missing block that a certificate names: which member to ask, and when to ask the next.

Only the newest certified block, or its nearest missing ancestor, is ever needed. At least f + 1
honest signers of its QC hold it; requests go to the signers in turn.
"""

from defl.ids import Digest, NodeId


class Sync:
    def __init__(self, me: NodeId, retry_s: float) -> None:
        self._me = me
        self._retry_s = retry_s
        self._sources: tuple[NodeId, ...] = ()
        self._asked = 0
        self.wanted: Digest | None = None
        self.next_at: float | None = None

    def want(self, block_id: Digest | None, signers: tuple[NodeId, ...] = ()) -> None:
        """Replace the wanted block; wanting the same one again keeps its place in the turn."""
        if block_id == self.wanted:
            return
        self.wanted = block_id
        self._sources = tuple(member for member in signers if member != self._me)
        self._asked = 0
        self.next_at = float("-inf") if self._sources else None

    def due(self, now: float) -> tuple[NodeId, Digest] | None:
        """The source to ask now and the block to ask for; one source per retry period."""
        if self.wanted is None or self.next_at is None or now < self.next_at:
            return None
        source = self._sources[self._asked % len(self._sources)]
        self._asked += 1
        self.next_at = now + self._retry_s
        return source, self.wanted
