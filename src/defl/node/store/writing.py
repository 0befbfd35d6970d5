"""Writes in three threads: records, others' chunks, and this node's own blobs.

So a vote's record never waits behind megabytes. Writes of one kind stay in order. A full disk or a
lack of file descriptors delays a write and never fails it: the caller resumes when it is done.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from defl.errors import DiskFull, Exhausted, NoDescriptors
from defl.ids import Digest
from defl.messages import Manifest
from defl.node.report.log import Log
from defl.node.store.storage import Storage
from defl.output import Persist, StoreChunk

RETRY_S = 1.0

# Log lines for the operator, when the machine runs out of a resource and when it recovers.
EXHAUSTED: dict[type[Exhausted], str] = {
    DiskFull: "disk full: nothing that needs it is signed until there is room",
    NoDescriptors: "too many open files: nothing that needs one is signed until one is closed",
}
RECOVERED: dict[type[Exhausted], str] = {
    DiskFull: "there is room on the disk again",
    NoDescriptors: "files can be opened again",
}


class Writing:
    def __init__(self, storage: Storage, log: Log) -> None:
        self._storage = storage
        self._log = log
        self._records = ThreadPoolExecutor(1, "defl-records")
        self._chunks = ThreadPoolExecutor(1, "defl-chunks")
        self._own_blobs = ThreadPoolExecutor(1, "defl-own-blobs")
        self._syncing: asyncio.Future[None] | None = None  # of the newest aggregate
        self._waiting: Counter[type[Exhausted]] = Counter()  # writes, by what they lack

    @property
    def disk_full(self) -> bool:
        return self._waiting[DiskFull] > 0

    @property
    def no_descriptors(self) -> bool:
        return self._waiting[NoDescriptors] > 0

    async def persist(self, persists: Sequence[Persist]) -> None:
        await self._write(self._records, partial(self._storage.records.persist, *persists))

    async def store_chunk(self, chunk: StoreChunk) -> None:
        await self._write(self._chunks, partial(self._storage.blobs.store_chunk, chunk))

    async def place_aggregate(self, manifest: Manifest, path: Path) -> None:
        """In place on return, and synced before the update that is trained from it. Until then it
        can be computed again from its updates."""
        await self._finish_sync()
        await self._write(self._own_blobs, partial(self._storage.blobs.place, manifest, path))
        sync = partial(self._storage.blobs.sync, manifest.digest)
        self._syncing = asyncio.ensure_future(self._write(self._own_blobs, sync))

    async def place_update(self, manifest: Manifest, path: Path) -> None:
        """In place and synced on return."""
        await self._finish_sync()
        await self._write(self._own_blobs, partial(self._storage.blobs.place, manifest, path))
        await self._write(self._own_blobs, partial(self._storage.blobs.sync, manifest.digest))

    async def _finish_sync(self) -> None:
        """A failed sync stays failed: a second one would not bring back what the disk lost."""
        if self._syncing is not None:
            await asyncio.shield(self._syncing)

    async def drop(self, digest: Digest) -> None:
        """Drop a blob, after the chunks that were stored before; this takes no room."""
        await self._in(self._chunks, partial(self._storage.blobs.drop, digest))

    def close(self) -> None:
        for thread in (self._records, self._chunks, self._own_blobs):
            thread.shutdown()

    async def _in(self, thread: ThreadPoolExecutor, write: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(thread, write)

    async def _write(self, thread: ThreadPoolExecutor, write: Callable[[], None]) -> None:
        """Written on return, however long the machine is exhausted."""
        fault: Exhausted | None = None
        try:
            await self._in(thread, write)
        except Exhausted as exhausted:
            fault = exhausted
        while fault is not None:
            with self._waiting_out(fault):
                fault = await self._retry(thread, write, type(fault))

    async def _retry(
        self, thread: ThreadPoolExecutor, write: Callable[[], None], kind: type[Exhausted]
    ) -> Exhausted | None:
        """Retry until the write is done (None) or the machine lacks another resource."""
        while True:
            await asyncio.sleep(RETRY_S)
            try:
                await self._in(thread, write)
            except Exhausted as exhausted:
                if type(exhausted) is not kind:
                    return exhausted
            else:
                return None

    @contextlib.contextmanager
    def _waiting_out(self, fault: Exhausted) -> Iterator[None]:
        kind = type(fault)
        if not self._waiting[kind]:
            self._log.warning(EXHAUSTED[kind], why=fault)
        self._waiting[kind] += 1
        try:
            yield
        finally:
            self._waiting[kind] -= 1
        if not self._waiting[kind]:
            self._log.info(RECOVERED[kind])
