"""What a node tells a peer of another epoch: to an older one how it ended, to a newer one where
it is itself. Neither is a fault, and neither is repeated often: a handover is far longer than the
frame that asks for it."""

from defl.ids import NodeId

# Peers that are remembered: members, guests, former members and a few strangers.
PEERS_MAX = 512


class OtherEpochs:
    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        # The newest epoch that each peer has shown, and when it was told something.
        self._told: dict[NodeId, tuple[int, float]] = {}

    def may_tell(self, peer: NodeId, epoch: int, now: float) -> bool:
        """Once per peer and period; a peer that has moved on is told at once. One that shows an
        older epoch than before has lost its disk, or lies, and can wait."""
        newest, at = self._told.pop(peer, (-1, now - self._period_s))
        may = epoch > newest or not 0 <= now - at < self._period_s
        self._told[peer] = (max(newest, epoch), now if may else at)
        if len(self._told) > PEERS_MAX:
            del self._told[next(iter(self._told))]
        return may
