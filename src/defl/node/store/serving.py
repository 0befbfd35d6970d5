"""Serving chunks: one at a time per peer, and read from disk once for all peers.

A small request has a large answer. Only requests wait; a chunk is read when everything before it
has left the peer's send queue. A peer that reads slowly or never, or requests everything again and
again, therefore costs a few chunks of memory and one connection's share of the bandwidth.

Members want the same chunks at about the same time, so a frame is read once and its bytes are
shared. A rotten chunk is never sent, and is reported once.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from defl.errors import ChunkRotten, Exhausted, LocalFault
from defl.ids import Digest, NodeId
from defl.messages import NotHeld
from defl.node.net.send_queue import Frame
from defl.wire import encode

# An honest node has eight requests at one source at most. Those beyond this are dropped, and the
# peer repeats them.
REQUESTS_PER_PEER_MAX = 32
# Frames that stay in memory after they were sent, for slower members.
FRAMES_KEPT_MAX = 4

Chunk = tuple[Digest, int]
Read = Callable[[Digest, int], memoryview]  # the chunk as a frame
OnRotten = Callable[[ChunkRotten], None]
Send = Callable[[NodeId, Frame], object]
# Waits until the peer's send queue is empty; False if it is not connected.
Drained = Callable[[NodeId], Awaitable[bool]]


class Serving:
    def __init__(self, read: Read, on_rotten: OnRotten, send: Send, drained: Drained) -> None:
        self._read = read
        self._on_rotten = on_rotten
        self._send = send
        self._drained = drained
        self._requests: dict[NodeId, OrderedDict[Chunk, None]] = {}
        self._recent: OrderedDict[Chunk, asyncio.Future[memoryview]] = OrderedDict()

    def ask(self, peer: NodeId, digest: Digest, index: int) -> bool:
        """Queue a request. True if the peer had none, so the caller must start `feed`."""
        idle = peer not in self._requests
        requests = self._requests.setdefault(peer, OrderedDict())
        if len(requests) < REQUESTS_PER_PEER_MAX:
            requests[digest, index] = None
        return idle

    async def feed(self, peer: NodeId) -> None:
        """Answer the peer's requests one after the other until none is left."""
        requests = self._requests[peer]
        try:
            while requests and await self._drained(peer):
                chunk, _ = requests.popitem(last=False)  # from now on a repetition counts again
                answer = await self._answer(*chunk)
                if answer is not None:
                    self._send(peer, answer)
        finally:
            del self._requests[peer]

    async def _answer(self, digest: Digest, index: int) -> Frame | None:
        try:
            return await self.frame(digest, index)
        except Exhausted:
            return None  # it is here but cannot be read now: the peer repeats its request
        except LocalFault:
            return encode(NotHeld(digest))  # retention dropped it meanwhile, or it is rotten

    async def frame(self, digest: Digest, index: int) -> memoryview:
        """The frame, read in a thread unless it is among the recent ones."""
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
            self._recent.pop(key, None)  # so that the next request tries again
            raise

    async def _reading(self, digest: Digest, index: int) -> memoryview:
        try:
            return await asyncio.to_thread(self._read, digest, index)
        except ChunkRotten as rotten:
            self._on_rotten(rotten)
            raise
