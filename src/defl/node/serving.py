"""Chunks on their way to peers: how many each peer may have under way, and one copy for all.

A small question has a large answer. An honest node asks one source for two chunks of a blob at a
time; whoever asks for more at once than several blobs need gets no answer to the rest, and asks
again. The members want the same chunks at about the same time, so a frame is read once and its
bytes are shared. A chunk that is found rotten goes to nobody, and is reported once.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable

from defl.errors import ChunkRotten, LocalFault
from defl.ids import Digest, NodeId

# Two under way for each of eight blobs; with 4 MiB chunks this is 64 MiB in memory per peer.
CHUNKS_PER_PEER_MAX = 16
# Frames that stay in memory after they were sent: what the slower members still want.
FRAMES_KEPT_MAX = 4

Read = Callable[[Digest, int], memoryview]  # the chunk as a frame
OnRotten = Callable[[Digest, int, ChunkRotten], None]


class Serving:
    def __init__(self, read: Read, on_rotten: OnRotten) -> None:
        self._read = read
        self._on_rotten = on_rotten
        self._under_way: Counter[NodeId] = Counter()
        self._recent: OrderedDict[tuple[Digest, int], asyncio.Future[memoryview]] = OrderedDict()

    def begin(self, peer: NodeId) -> bool:
        """False: this peer has asked for enough already."""
        if self._under_way[peer] >= CHUNKS_PER_PEER_MAX:
            return False
        self._under_way[peer] += 1
        return True

    def end(self, peer: NodeId) -> None:
        self._under_way[peer] -= 1

    async def frame(self, digest: Digest, index: int) -> memoryview:
        """The frame, read in a thread unless it was read a moment ago."""
        key = (digest, index)
        reading = self._recent.get(key)
        if reading is None:
            reading = asyncio.ensure_future(self._reading(digest, index))
            self._recent[key] = reading
            while len(self._recent) > FRAMES_KEPT_MAX:
                self._recent.popitem(last=False)
        try:
            return await asyncio.shield(reading)
        except LocalFault:
            self._recent.pop(key, None)  # what failed is tried anew
            raise

    async def _reading(self, digest: Digest, index: int) -> memoryview:
        try:
            return await asyncio.to_thread(self._read, digest, index)
        except ChunkRotten as rotten:
            self._on_rotten(digest, index, rotten)
            raise
