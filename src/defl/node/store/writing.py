"""Writes in four threads: records, others' chunks (with drops), this node's own blobs, and syncs.

So a vote's record never waits behind megabytes. A full disk or a lack of file descriptors delays a
write and never fails it. duty.py says which write must wait for which: here they have no order.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from defl.duty import (
    Completion,
    DropBlob,
    Dropped,
    NotPlaced,
    Persisted,
    PlaceBlob,
    Placed,
    Stored,
    SyncBlob,
    Synced,
    SyncFailed,
    WriteRecords,
)
from defl.errors import DiskFull, Exhausted, LocalFault, NoDescriptors
from defl.messages import Manifest
from defl.node.report.log import Log
from defl.node.store.storage import Storage
from defl.output import StoreChunk

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

Write = WriteRecords | StoreChunk | PlaceBlob | SyncBlob | DropBlob
TakeResult = Callable[[Manifest], Path]  # the worker's file with this blob


class Job(NamedTuple):
    thread: ThreadPoolExecutor
    write: Callable[[], None]
    done: Completion
    refused: Callable[[str], Completion] | None = None  # None: a fault ends the node


class Writing:
    def __init__(self, storage: Storage, take_result: TakeResult, log: Log) -> None:
        self._storage = storage
        self._take_result = take_result
        self._log = log
        self._records = ThreadPoolExecutor(1, "defl-records")
        self._chunks = ThreadPoolExecutor(1, "defl-chunks")
        self._own_blobs = ThreadPoolExecutor(1, "defl-own-blobs")
        self._syncs = ThreadPoolExecutor(1, "defl-syncs")
        self._lacking: Counter[type[Exhausted]] = Counter()  # writes, by what they lack
        self._closed = False

    @property
    def disk_full(self) -> bool:
        return self._lacking[DiskFull] > 0

    @property
    def no_descriptors(self) -> bool:
        return self._lacking[NoDescriptors] > 0

    def start(
        self, complete: Callable[[Completion], None], fail: Callable[[BaseException], None]
    ) -> None:
        """Both are called on this loop; `fail` with a fault after which the node cannot go on."""
        self._loop = asyncio.get_running_loop()
        self._complete = complete
        self._fail = fail

    def begin(self, write: Write) -> None:
        self._attempt(self._job(write), None)

    def close(self) -> None:
        self._closed = True
        for thread in (self._records, self._chunks, self._own_blobs, self._syncs):
            thread.shutdown()

    def _job(self, write: Write) -> Job:
        storage = self._storage
        match write:
            case WriteRecords(persists=persists):
                return Job(self._records, partial(storage.records.persist, *persists), Persisted())
            case StoreChunk(manifest=manifest, index=index):
                done = Stored(manifest.digest, index)
                return Job(self._chunks, partial(storage.blobs.store_chunk, write), done)
            case PlaceBlob(manifest=manifest):
                digest = manifest.digest
                place = partial(self._place, manifest, self._take_result(manifest))
                return Job(self._own_blobs, place, Placed(digest), partial(NotPlaced, digest))
            case SyncBlob(digest=digest):
                sync = partial(storage.blobs.sync, digest)
                return Job(self._syncs, sync, Synced(digest), partial(SyncFailed, digest))
            case DropBlob(digest=digest):
                return Job(self._chunks, partial(storage.blobs.drop, digest), Dropped(digest))

    def _place(self, manifest: Manifest, payload: Path) -> None:
        try:
            self._storage.blobs.place(manifest, payload)
        except Exhausted:
            raise  # tried again
        except LocalFault:
            with contextlib.suppress(OSError):  # the first error is the one to report
                payload.unlink(missing_ok=True)
            raise

    def _attempt(self, job: Job, lacked: type[Exhausted] | None) -> None:
        """`lacked` is what an earlier attempt failed for."""
        if self._closed:
            return
        future = job.thread.submit(job.write)

        def in_thread(done: Future[None]) -> None:
            self._loop.call_soon_threadsafe(self._ended, job, lacked, done)

        future.add_done_callback(in_thread)

    def _ended(self, job: Job, lacked: type[Exhausted] | None, done: Future[None]) -> None:
        fault = done.exception()
        lacks = type(fault) if isinstance(fault, Exhausted) else None
        self._note(lacked, lacks, fault)
        if lacks is not None:
            self._loop.call_later(RETRY_S, self._attempt, job, lacks)
        elif fault is None:
            self._complete(job.done)
        elif isinstance(fault, LocalFault | OSError) and job.refused is not None:
            self._log.warning("not written", why=fault)
            self._complete(job.refused(str(fault)))
        else:
            self._fail(fault)

    def _note(
        self,
        lacked: type[Exhausted] | None,
        lacks: type[Exhausted] | None,
        fault: BaseException | None,
    ) -> None:
        """Log when the first write begins to lack something, and when the last has it again."""
        if lacks is lacked:
            return
        if lacked is not None:
            self._lacking[lacked] -= 1
            if not self._lacking[lacked]:
                self._log.info(RECOVERED[lacked])
        if lacks is not None:
            if not self._lacking[lacks]:
                self._log.warning(EXHAUSTED[lacks], why=fault)
            self._lacking[lacks] += 1
