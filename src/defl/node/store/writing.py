"""Writes, each kind in a thread of its own: records, others' blobs, and what this node made.

So a vote's record never waits behind megabytes. Within a kind writes stay in order. A full disk and
a lack of file descriptors are waited out: whoever awaits a write goes on only when it is done.
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

# What the operator is told when the machine runs out of something, and when it has some again.
BEGIN: dict[type[Exhausted], str] = {
    DiskFull: "disk full: nothing that needs it is signed until there is room",
    NoDescriptors: "too many open files: nothing that needs one is signed until one is closed",
}
END: dict[type[Exhausted], str] = {
    DiskFull: "there is room on the disk again",
    NoDescriptors: "files can be opened again",
}


class Writing:
    def __init__(self, storage: Storage, log: Log) -> None:
        self._storage = storage
        self._log = log
        self._records = ThreadPoolExecutor(1, "defl-records")
        self._blobs = ThreadPoolExecutor(1, "defl-blobs")
        self._made = ThreadPoolExecutor(1, "defl-made")
        self._syncing: asyncio.Future[None] | None = None  # of the newest aggregate
        self._waiting: Counter[type[Exhausted]] = Counter()  # writes, by what they wait for

    @property
    def disk_full(self) -> bool:
        return self._waiting[DiskFull] > 0

    @property
    def no_descriptors(self) -> bool:
        return self._waiting[NoDescriptors] > 0

    async def persist(self, persists: Sequence[Persist]) -> None:
        await self._with_room(self._records, partial(self._storage.records.persist, *persists))

    async def store_chunk(self, chunk: StoreChunk) -> None:
        await self._with_room(self._blobs, partial(self._storage.blobs.store_chunk, chunk))

    async def place_aggregate(self, manifest: Manifest, path: Path) -> None:
        """In place when this returns, and synced in time: before the update that is trained from
        it. Until then the updates that it was made of are enough to make it again."""
        await self._finish_sync()
        await self._with_room(self._made, partial(self._storage.blobs.place, manifest, path))
        sync = partial(self._storage.blobs.sync, manifest.digest)
        self._syncing = asyncio.ensure_future(self._with_room(self._made, sync))

    async def place_update(self, manifest: Manifest, path: Path) -> None:
        """In place and synced when this returns."""
        await self._finish_sync()
        await self._with_room(self._made, partial(self._storage.blobs.place, manifest, path))
        await self._with_room(self._made, partial(self._storage.blobs.sync, manifest.digest))

    async def _finish_sync(self) -> None:
        """A sync that failed stays failed: what the disk lost would not be found by another one."""
        if self._syncing is not None:
            await asyncio.shield(self._syncing)

    async def drop(self, digest: Digest) -> None:
        """After the chunks that were stored before; it needs no room."""
        await self._in(self._blobs, partial(self._storage.blobs.drop, digest))

    def close(self) -> None:
        for threads in (self._records, self._blobs, self._made):
            threads.shutdown()

    async def _in(self, threads: ThreadPoolExecutor, write: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(threads, write)

    async def _with_room(self, threads: ThreadPoolExecutor, write: Callable[[], None]) -> None:
        """Written when this returns, however long the machine lacks what that needs."""
        lacking: Exhausted | None = None
        try:
            await self._in(threads, write)
        except Exhausted as exhausted:
            lacking = exhausted
        while lacking is not None:
            with self._waiting_for(lacking):
                lacking = await self._tried_again(threads, write, type(lacking))

    async def _tried_again(
        self, threads: ThreadPoolExecutor, write: Callable[[], None], kind: type[Exhausted]
    ) -> Exhausted | None:
        """None: it is written. Otherwise the machine now lacks something else."""
        while True:
            await asyncio.sleep(RETRY_S)
            try:
                await self._in(threads, write)
            except Exhausted as exhausted:
                if type(exhausted) is not kind:
                    return exhausted
            else:
                return None

    @contextlib.contextmanager
    def _waiting_for(self, lacking: Exhausted) -> Iterator[None]:
        kind = type(lacking)
        if not self._waiting[kind]:
            self._log.warning(BEGIN[kind], why=lacking)
        self._waiting[kind] += 1
        try:
            yield
        finally:
            self._waiting[kind] -= 1
        if not self._waiting[kind]:
            self._log.info(END[kind])
