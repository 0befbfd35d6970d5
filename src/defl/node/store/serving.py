"""Chunks on their way to peers: read one at a time for each peer, and once for all of them.

A small question has a large answer. What waits for a peer is its questions; a chunk is read only
when everything before it has left the peer's queue. So a peer that reads slowly, never, or asks for
everything again and again makes us hold a few chunks, and takes one connection's share of the line.
The members want the same chunks at about the same time, so a frame is read once and its bytes are
shared. A chunk that is found rotten goes to nobody, and is reported once.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from defl.errors import ChunkRotten, Exhausted, LocalFault
from defl.ids import Digest, NodeId
from defl.messages import NotHeld
from defl.node.net.framing import Frame
from defl.wire import encode

# An honest node asks one source for two chunks of a blob at a time: this is two for each of eight
# blobs. The rest is not answered, and asked for again.
ASKED_PER_PEER_MAX = 16
# Frames that stay in memory after they were sent: what the slower members still want.
FRAMES_KEPT_MAX = 4

Chunk = tuple[Digest, int]
Read = Callable[[Digest, int], memoryview]  # the chunk as a frame
OnRotten = Callable[[Digest, int, ChunkRotten], None]
Send = Callable[[NodeId, Frame], object]
# Waits until nothing is queued for the peer; False if it is not connected.
Drained = Callable[[NodeId], Awaitable[bool]]


class Serving:
    def __init__(self, read: Read, on_rotten: OnRotten, send: Send, drained: Drained) -> None:
        self._read = read
        self._on_rotten = on_rotten
        self._send = send
        self._drained = drained
        self._asked: dict[NodeId, OrderedDict[Chunk, None]] = {}
        self._recent: OrderedDict[Chunk, asyncio.Future[memoryview]] = OrderedDict()

    def ask(self, peer: NodeId, digest: Digest, index: int) -> bool:
        """True: nothing of this peer's waited, so whoever calls has `feed` to start."""
        idle = peer not in self._asked
        asked = self._asked.setdefault(peer, OrderedDict())
        if len(asked) < ASKED_PER_PEER_MAX:
            asked[digest, index] = None
        return idle

    async def feed(self, peer: NodeId) -> None:
        """Answers the peer's questions one after the other, until none is left."""
        asked = self._asked[peer]
        try:
            while asked and await self._drained(peer):
                chunk = next(iter(asked))
                answer = await self._answer(*chunk)
                del asked[chunk]
                if answer is not None:
                    self._send(peer, answer)
        finally:
            del self._asked[peer]

    async def _answer(self, digest: Digest, index: int) -> Frame | None:
        try:
            return await self.frame(digest, index)
        except Exhausted:
            return None  # it is here, but cannot be read now: the peer asks again
        except LocalFault:
            return encode(NotHeld(digest))  # retention was quicker, or it rotted

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
