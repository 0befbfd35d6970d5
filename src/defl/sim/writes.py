"""When a simulated node's writes reach its disk.

As in node/store/writing.py, each of four threads does its writes one after the other, and they
overtake each other: records, chunks (with drops), this node's own blobs, and syncs. On a full disk
a write is retried until there is room. A dying process leaves each write under way done or not.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from defl.duty import (
    Completion,
    DropBlob,
    Dropped,
    Persisted,
    PlaceBlob,
    Placed,
    Stored,
    SyncBlob,
    Synced,
    SyncFailed,
    WriteRecords,
)
from defl.ids import Digest
from defl.output import StoreChunk
from defl.sim.conditions import WriteTimes
from defl.sim.disk import Disk

RETRY_S = 1.0
HALF = 0.5

Write = WriteRecords | StoreChunk | PlaceBlob | SyncBlob | DropBlob


@dataclass(frozen=True, slots=True)
class WritesWorld:
    """What the writes need of the world around them."""

    after: Callable[[float, Callable[[], None]], None]  # seconds from now, what to do then
    rng: Random
    sync_fails: Callable[[], bool]
    written: Callable[[], None]  # the disk has changed
    complete: Callable[[Completion], None]


Thread = deque[Write]  # the first one is under way


class Writes:
    """The writes of one process."""

    def __init__(self, disk: Disk, times: WriteTimes, chunk_bytes: int, world: WritesWorld) -> None:
        self._disk = disk
        self._times = times
        self._chunk_bytes = chunk_bytes
        self._world = world
        self._records: Thread = deque()
        self._chunks: Thread = deque()
        self._own_blobs: Thread = deque()
        self._syncs: Thread = deque()
        self._dead = False
        self._results: dict[Digest, list[bytes]] = {}  # payloads of the worker's results

    def add(self, write: Write) -> None:
        thread = self._thread(write)
        thread.append(write)
        if len(thread) == 1:
            self._begin(thread)

    def add_result(self, digest: Digest, payload: bytes) -> None:
        """A payload that waits for its PlaceBlob."""
        self._results.setdefault(digest, []).append(payload)

    def die(self) -> None:
        """The process is killed now; what the system had begun to write may be written."""
        self._dead = True
        for thread in (self._records, self._chunks, self._own_blobs, self._syncs):
            under_way = bool(thread) and not self._blocked(thread[0])
            if under_way and self._world.rng.random() < HALF:
                self._apply(thread[0])

    def _thread(self, write: Write) -> Thread:
        match write:
            case WriteRecords():
                return self._records
            case StoreChunk() | DropBlob():
                return self._chunks
            case PlaceBlob():
                return self._own_blobs
            case SyncBlob():
                return self._syncs

    def _begin(self, thread: Thread) -> None:
        mean_s = self._mean_s(thread[0])
        takes_s = self._world.rng.expovariate(1.0) * mean_s if mean_s else 0.0
        self._world.after(takes_s, lambda: self._end(thread))

    def _mean_s(self, write: Write) -> float:
        times = self._times
        match write:
            case WriteRecords():
                return times.record_s
            case StoreChunk():
                return times.chunk_s
            case PlaceBlob():
                return times.place_s
            case SyncBlob():
                return times.sync_s
            case DropBlob():
                return times.drop_s

    def _blocked(self, write: Write) -> bool:
        return self._disk.full and not isinstance(write, SyncBlob | DropBlob)

    def _end(self, thread: Thread) -> None:
        if self._dead:
            return
        if self._blocked(thread[0]):
            self._world.after(RETRY_S, lambda: self._end(thread))
            return
        completion = self._apply(thread.popleft())
        if thread:
            self._begin(thread)
        self._world.complete(completion)

    def _apply(self, write: Write) -> Completion:
        completion: Completion
        match write:
            case WriteRecords(persists=persists):
                for persist in persists:
                    self._disk.apply(persist)
                completion = Persisted()
            case StoreChunk(manifest=manifest, index=index):
                self._disk.store_chunk(write)
                completion = Stored(manifest.digest, index)
            case PlaceBlob(manifest=manifest):
                payloads = self._results.pop(manifest.digest)
                self._disk.place(manifest, payloads[0], self._chunk_bytes)
                if len(payloads) > 1:
                    self._results[manifest.digest] = payloads[1:]
                completion = Placed(manifest.digest)
            case SyncBlob(digest=digest):
                completion = self._sync(digest)
            case DropBlob(digest=digest):
                self._disk.drop(digest)
                completion = Dropped(digest)
        self._world.written()
        return completion

    def _sync(self, digest: Digest) -> Synced | SyncFailed:
        """The system reports a failure once. A second sync reports success and changes nothing.
        A sync that has nothing to write cannot fail."""
        blob = self._disk.blobs.get(digest)
        dirty = blob is not None and not (blob.sync_failed or blob.synced)
        if blob is not None and dirty and self._world.sync_fails():
            blob.sync_failed = True
            return SyncFailed(digest, f"sync blob {digest.hex()}: input/output error")
        self._disk.sync(digest)
        return Synced(digest)
