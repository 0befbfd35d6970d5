"""What a node tells a peer of another epoch: to an older one how it ended, to a newer one where
it is itself. Neither is a fault, and neither is repeated often."""

from defl.ids import NodeId

# Peers that are remembered: members, guests, former members and a few strangers.
PEERS_MAX = 512


class OtherEpochs:
    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._told: dict[NodeId, tuple[int, float]] = {}  # about which epoch, and when

    def may_tell(self, peer: NodeId, epoch: int, now: float) -> bool:
        """Once per peer and period; a peer that has moved on is told at once. None moves back: a
        peer that names one epoch after the other must not be answered each time."""
        told = self._told.get(peer)
        if told is not None and epoch <= told[0] and 0 <= now - told[1] < self._period_s:
            return False
        self._told.pop(peer, None)
        self._told[peer] = (epoch, now)
        if len(self._told) > PEERS_MAX:
            del self._told[next(iter(self._told))]
        return True
