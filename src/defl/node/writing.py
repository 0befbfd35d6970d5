"""Writes, each kind in a thread of its own: records, others' blobs, and what this node made.

So a vote's record never waits behind megabytes. Within a kind writes stay in order. A full disk is
waited for: whoever awaits a write goes on only when it is done.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from defl.errors import DiskFull
from defl.ids import Digest
from defl.messages import Manifest
from defl.node.storage import Storage
from defl.node.telemetry import Log
from defl.output import Persist, StoreChunk

DISK_FULL_RETRY_S = 1.0


class Writing:
    def __init__(self, storage: Storage, log: Log) -> None:
        self._storage = storage
        self._log = log
        self._records = ThreadPoolExecutor(1, "defl-records")
        self._blobs = ThreadPoolExecutor(1, "defl-blobs")
        self._made = ThreadPoolExecutor(1, "defl-made")
        self._syncing: asyncio.Future[None] | None = None  # of the newest aggregate
        self._waiting = 0  # writes that found no room

    @property
    def disk_full(self) -> bool:
        return self._waiting > 0

    async def persist(self, persists: Sequence[Persist]) -> None:
        await self._with_room(self._records, partial(self._storage.persist, *persists))

    async def store_chunk(self, chunk: StoreChunk) -> None:
        await self._with_room(self._blobs, partial(self._storage.store_chunk, chunk))

    async def place_aggregate(self, manifest: Manifest, path: Path) -> None:
        """In place when this returns, and synced in time: before the update that is trained from
        it. Until then the updates that it was made of are enough to make it again."""
        await self._finish_sync()
        await self._with_room(self._made, partial(self._storage.place, manifest, path))
        sync = partial(self._storage.sync, manifest.digest)
        self._syncing = asyncio.ensure_future(self._with_room(self._made, sync))

    async def place_update(self, manifest: Manifest, path: Path) -> None:
        """In place and synced when this returns."""
        await self._finish_sync()
        await self._with_room(self._made, partial(self._storage.place, manifest, path))
        await self._with_room(self._made, partial(self._storage.sync, manifest.digest))

    async def _finish_sync(self) -> None:
        """A sync that failed stays failed: what the disk lost would not be found by another one."""
        if self._syncing is not None:
            await asyncio.shield(self._syncing)

    async def drop(self, digest: Digest) -> None:
        """After the chunks that were stored before; it needs no room."""
        await self._in(self._blobs, partial(self._storage.drop, digest))

    def close(self) -> None:
        for threads in (self._records, self._blobs, self._made):
            threads.shutdown()

    async def _in(self, threads: ThreadPoolExecutor, write: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(threads, write)

    async def _with_room(self, threads: ThreadPoolExecutor, write: Callable[[], None]) -> None:
        try:
            await self._in(threads, write)
        except DiskFull as full:
            if not self.disk_full:
                self._log.warning(
                    "disk full: nothing that needs it is signed until there is room", why=full
                )
            self._waiting += 1
            try:
                await self._until_there_is_room(threads, write)
            finally:
                self._waiting -= 1
            if not self.disk_full:
                self._log.info("there is room on the disk again")

    async def _until_there_is_room(
        self, threads: ThreadPoolExecutor, write: Callable[[], None]
    ) -> None:
        while True:
            await asyncio.sleep(DISK_FULL_RETRY_S)
            try:
                return await self._in(threads, write)
            except DiskFull:
                continue
