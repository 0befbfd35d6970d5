"""How many chunks are being read and sent for each peer: a small question has a large answer.

An honest node asks one source for two chunks of a blob at a time; whoever asks for more at once
than several blobs need gets no answer to the rest, and asks again.
"""

from collections import Counter

from defl.ids import NodeId

# Two under way for each of eight blobs; with 4 MiB chunks this is 64 MiB in memory per peer.
CHUNKS_PER_PEER_MAX = 16


class Serving:
    def __init__(self) -> None:
        self._under_way: Counter[NodeId] = Counter()

    def begin(self, peer: NodeId) -> bool:
        """False: this peer has asked for enough already."""
        if self._under_way[peer] >= CHUNKS_PER_PEER_MAX:
            return False
        self._under_way[peer] += 1
        return True

    def end(self, peer: NodeId) -> None:
        self._under_way[peer] -= 1
