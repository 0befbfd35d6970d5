"""Blobs as files named by their digest, and what a crash may leave of them.

    <digest>.manifest   what the blob is made of; its hash is its name, so it proves itself
    <digest>.part       a blob of which chunks are missing; each chunk stands at its place
    <digest>.blob       a whole blob: exactly the payload, to be mapped
    *.new               being written, or to be written over; swept away at the next start

No list of chunks is kept: a chunk is there if its bytes hash to what the manifest says, which is
looked at once, at start, and when a peer wants a chunk that has lain here for a while. A torn or
rotten chunk is thereby a missing one and is fetched again.
"""

import contextlib
import errno
import itertools
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from defl.errors import ChunkRotten, DiskFull, LocalFault, NoDescriptors
from defl.ids import Digest, digest_of
from defl.messages import Manifest
from defl.node.store.spares import Spares
from defl.output import StoreChunk
from defl.pool.weights import chunk_size

Payload = bytes | bytearray | memoryview
Head = Callable[[int], bytes]  # from a chunk's size


def no_head(_size: int) -> bytes:
    return b""


# Most chunks are served within seconds of being written. Hashing those too would cost a node about
# 4 % of its processor time: 2.8 ms for each of 7 chunks in 0.51 s per round of a 28 MB model.
SOUND_FOR_S = 600.0
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


@contextlib.contextmanager
def disk_faults(what: str) -> Iterator[None]:
    """The system's errors as ours, named by what could not be done."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DiskFull(f"no room on the disk to {what}: {error}") from error
        if error.errno in NO_DESCRIPTORS:
            raise NoDescriptors(f"too many files are open to {what}: {error}") from error
        raise LocalFault(f"cannot {what}: {error}") from error


def require_room(folder: Path, size: int, reserve_bytes: int) -> None:
    """Refuse before the first byte is written, while there is still room for what matters more."""
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free - size < reserve_bytes:
        raise DiskFull(
            f"{free} bytes are free in {folder}; {size} more would leave less than the "
            f"{reserve_bytes} that are held in reserve"
        )


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class Stored:
    manifest: Manifest
    chunks: set[int]
    sound_at: float = field(default_factory=time.monotonic)  # the first was written, or all checked
    readers: int = 0  # who reads it now; its file must not be written over

    @property
    def whole(self) -> bool:
        return len(self.chunks) == len(self.manifest.chunks)


class Blobs:
    """One folder of blobs; safe to call from several threads."""

    def __init__(self, folder: Path, chunk_bytes: int, reserve_bytes: int) -> None:
        self._folder = folder
        self._chunk_bytes = chunk_bytes
        self._reserve_bytes = reserve_bytes
        self._stored: dict[Digest, Stored] = {}
        self._lock = threading.RLock()
        self._serial = itertools.count()
        self._freeing = ThreadPoolExecutor(1, "defl-freeing")
        self._spares = Spares()
        self.faults: list[str] = []  # what the last recovery found damaged, for a person

    # --- Recovery --------------------------------------------------------------------------

    def recover(self) -> None:
        """Look at every byte, sweep away leftovers, and know again which chunks are here."""
        with self._lock, disk_faults(f"read the blobs in {self._folder}"):
            self._stored = {}
            self.faults = []
            manifests = {}
            for path in sorted(self._folder.glob("*.manifest")):
                manifest = self._read_manifest(path)
                if manifest is not None:
                    manifests[path.stem] = manifest
            for path in sorted(self._folder.iterdir()):
                if path.suffix == ".new" or path.stem not in manifests:
                    path.unlink()
            with ThreadPoolExecutor(max_workers=os.cpu_count()) as threads:
                found = threads.map(self._present, manifests.values())
                for manifest, chunks in zip(manifests.values(), found, strict=True):
                    self._restore(manifest, chunks)

    def _read_manifest(self, path: Path) -> Manifest | None:
        try:
            manifest = msgspec.msgpack.decode(path.read_bytes(), type=Manifest)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            manifest = None
        if manifest is None or manifest.digest.hex() != path.stem:
            self.faults.append(f"the manifest of blob {path.stem} is corrupt: the blob is dropped")
            return None
        return manifest

    def _present(self, manifest: Manifest) -> set[int]:
        path = self._path(manifest.digest, "blob")
        if not path.exists():
            path = self._path(manifest.digest, "part")
        if not path.exists():
            return set()
        present = set()
        with path.open("rb", buffering=0) as file:
            for index, expected in enumerate(manifest.chunks):
                size = chunk_size(manifest, index, self._chunk_bytes)
                data = os.pread(file.fileno(), size, index * self._chunk_bytes)
                if digest_of(data) == expected:
                    present.add(index)
        return present

    def _restore(self, manifest: Manifest, chunks: set[int]) -> None:
        digest, stored = manifest.digest, Stored(manifest, chunks)
        whole, part = self._path(digest, "blob"), self._path(digest, "part")
        if whole.exists() and not stored.whole:
            missing = sorted(set(range(len(manifest.chunks))) - chunks)
            self.faults.append(
                f"blob {digest.hex()} is corrupt in {_chunks_named(missing)}: "
                "what is missing is fetched again"
            )
            whole.replace(part)
        elif part.exists() and stored.whole:
            part.replace(whole)
        if chunks:
            self._stored[digest] = stored
        else:
            self._unlink(digest)

    # --- Writing ---------------------------------------------------------------------------

    def store_chunk(self, chunk: StoreChunk) -> None:
        """A chunk of another's blob: in place when this returns, but not synced."""
        manifest, digest = chunk.manifest, chunk.manifest.digest
        _require_size(digest, len(chunk.data), chunk_size(manifest, chunk.index, self._chunk_bytes))
        with disk_faults(f"store chunk {chunk.index} of blob {digest.hex()}"):
            with self._lock:
                held = self._stored.get(digest)
                if held is not None and chunk.index in held.chunks:
                    return
                if held is None:
                    self._begin(manifest)
                part = self._path(digest, "part").open("r+b", buffering=0)
            try:
                with part:
                    _write_at(part.fileno(), chunk.data, chunk.index * self._chunk_bytes)
            except OSError:
                with self._lock:
                    if digest not in self._stored:
                        self._unlink(digest)
                raise
            self._count_chunk(manifest, chunk.index)

    def _count_chunk(self, manifest: Manifest, index: int) -> None:
        digest = manifest.digest
        with self._lock:
            stored = self._stored.setdefault(digest, Stored(manifest, set()))
            if stored.whole:
                return  # this node made the same blob meanwhile
            stored.chunks.add(index)
            if stored.whole:
                self._path(digest, "part").replace(self._path(digest, "blob"))

    def _begin(self, manifest: Manifest) -> None:
        """Take the blob's whole room now, so that a fetch does not run out of it half-way."""
        new = self._path(manifest.digest, "part.new")
        try:
            if not self._spares.take(manifest.size, new):
                self._require_room(manifest.size)
                with new.open("wb", buffering=0) as file:
                    _allocate(file.fileno(), manifest.size)
            self._write_manifest(manifest)
            new.replace(self._path(manifest.digest, "part"))
        except OSError:
            new.unlink(missing_ok=True)
            self._unlink(manifest.digest)
            raise

    def store_blob(self, manifest: Manifest, payload: Payload) -> None:
        """A blob that this node made itself: whole and synced when this returns."""
        new = self._path(manifest.digest, "blob.new")
        with disk_faults(f"store blob {manifest.digest.hex()}"):
            self._require_room(manifest.size)
            try:
                with new.open("wb", buffering=0) as file:
                    _write_at(file.fileno(), payload, 0)
                self.place(manifest, new)
            except (OSError, LocalFault):
                new.unlink(missing_ok=True)
                raise
        self.sync(manifest.digest)

    def place(self, manifest: Manifest, payload: Path) -> None:
        """A blob that this node made itself, already a file on the same disk: it is moved, and
        whole when this returns, but not synced."""
        digest = manifest.digest
        with disk_faults(f"store blob {digest.hex()}"):
            _require_size(digest, payload.stat().st_size, manifest.size)
            with self._lock:
                self._write_manifest(manifest)
                payload.replace(self._path(digest, "blob"))
                self._path(digest, "part").unlink(missing_ok=True)
                self._stored[digest] = Stored(manifest, set(range(len(manifest.chunks))))

    def sync(self, digest: Digest) -> None:
        """A whole blob survives a power cut when this returns; one that was dropped need not."""
        with disk_faults(f"sync blob {digest.hex()}"), contextlib.ExitStack() as opened:
            with self._lock:
                if digest not in self._stored:
                    return
                files = [
                    opened.enter_context(self._path(digest, kind).open("rb"))
                    for kind in ("blob", "manifest")
                ]
            for file in files:
                os.fsync(file.fileno())
            sync_folder(self._folder)

    def _write_manifest(self, manifest: Manifest) -> None:
        new = self._path(manifest.digest, "manifest.new")
        try:
            with new.open("wb", buffering=0) as file:
                _write_at(file.fileno(), msgspec.msgpack.encode(manifest), 0)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        new.replace(self._path(manifest.digest, "manifest"))

    def drop(self, digest: Digest) -> None:
        """Forget a blob; who reads it keeps its bytes.

        Nobody waits for its room to become free, which takes a while for a large file; what a
        crash leaves of it is swept away at the next start.
        """
        with self._lock, disk_faults(f"delete blob {digest.hex()}"):
            stored = self._stored.pop(digest, None)
            if stored is not None:
                gone = self._path(digest, f"{next(self._serial)}.dropped.new")
                self._path(digest, "blob" if stored.whole else "part").replace(gone)
                self._unlink(digest)
                unread = stored.whole and not stored.readers
                if not (unread and self._spares.give(stored.manifest.size, gone)):
                    self._freeing.submit(gone.unlink)

    def take_spare(self, size: int, to: Path) -> bool:
        """A file of this size to write over, if there is one."""
        return self._spares.take(size, to)

    def _require_room(self, size: int) -> None:
        try:
            require_room(self._folder, size, self._reserve_bytes)
        except DiskFull:
            if not self._spares.free():
                raise
            require_room(self._folder, size, self._reserve_bytes)

    def close(self) -> None:
        self._freeing.shutdown()

    def _unlink(self, digest: Digest) -> None:
        for kind in ("blob", "part", "manifest"):
            self._path(digest, kind).unlink(missing_ok=True)

    # --- Reading ---------------------------------------------------------------------------

    @property
    def held(self) -> tuple[tuple[Manifest, frozenset[int]], ...]:
        with self._lock:
            return tuple((s.manifest, frozenset(s.chunks)) for s in self._stored.values())

    @property
    def bytes_used(self) -> int:
        """What blobs take on the disk; one that is being fetched counts whole, and spares too."""
        with self._lock:
            held = sum(stored.manifest.size for stored in self._stored.values())
        return held + self._spares.bytes_used

    @contextlib.contextmanager
    def reading(self, digests: Iterable[Digest]) -> Iterator[None]:
        """As long as this lasts, the files of these blobs are not written over, dropped or not."""
        with self._lock:
            read = [self._stored[digest] for digest in digests if digest in self._stored]
            for stored in read:
                stored.readers += 1
        try:
            yield
        finally:
            with self._lock:
                for stored in read:
                    stored.readers -= 1

    def path(self, digest: Digest) -> Path:
        """The file of a whole blob, for a worker to map."""
        with self._lock:
            stored = self._stored.get(digest)
            if stored is None or not stored.whole:
                raise LocalFault(f"blob {digest.hex()} is not here whole")
            return self._path(digest, "blob")

    def read(self, digest: Digest) -> memoryview:
        """The payload, mapped: pages come from the disk when they are looked at. While the node
        runs, within `reading`."""
        what = f"read blob {digest.hex()}"
        with self._lock, disk_faults(what), self.path(digest).open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def read_chunk(self, digest: Digest, index: int, head: Head = no_head) -> memoryview:
        """The chunk behind the head that its size asks for: a frame, without another copy."""
        with self.reading((digest,)):
            return self._read_chunk(digest, index, head)

    def _read_chunk(self, digest: Digest, index: int, head: Head) -> memoryview:
        with self._lock, disk_faults(f"read chunk {index} of blob {digest.hex()}"):
            stored = self._stored.get(digest)
            if stored is None or index not in stored.chunks:
                raise _not_here(digest, index)
            path = self._path(digest, "blob" if stored.whole else "part")
            size = chunk_size(stored.manifest, index, self._chunk_bytes)
            front = head(size)
            frame = np.empty(len(front) + size, np.uint8).data
            frame[: len(front)] = front
            file = path.open("rb", buffering=0)
        data = frame[len(front) :]
        with file, disk_faults(f"read chunk {index} of blob {digest.hex()}"):
            sound = _read_at(file.fileno(), data, index * self._chunk_bytes)
        if sound and time.monotonic() >= stored.sound_at + SOUND_FOR_S:
            sound = digest_of(data) == stored.manifest.chunks[index]
        if not sound:
            raise self._discard(stored, index)
        return frame.toreadonly()

    def _discard(self, stored: Stored, index: int) -> LocalFault:
        """What is damaged is no longer held; the error that says so, the first time."""
        digest = stored.manifest.digest
        with self._lock, disk_faults(f"discard chunk {index} of blob {digest.hex()}"):
            if self._stored.get(digest) is stored and index in stored.chunks:
                if stored.whole:
                    self._path(digest, "blob").replace(self._path(digest, "part"))
                stored.chunks.discard(index)
                return ChunkRotten(f"blob {digest.hex()} is corrupt in {_chunks_named([index])}")
        return _not_here(digest, index)

    def _path(self, digest: Digest, kind: str) -> Path:
        return self._folder / f"{digest.hex()}.{kind}"


def _allocate(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)


def _write_at(descriptor: int, data: Payload, offset: int) -> None:
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _read_at(descriptor: int, view: memoryview, offset: int) -> bool:
    """False if the file is too short or the disk cannot read it."""
    while view:
        try:
            read = os.preadv(descriptor, [view], offset)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            read = 0
        if read == 0:
            return False
        view, offset = view[read:], offset + read
    return True


def _not_here(digest: Digest, index: int) -> LocalFault:
    return LocalFault(f"chunk {index} of blob {digest.hex()} is not here")


def _require_size(digest: Digest, size: int, expected: int) -> None:
    if size != expected:
        raise LocalFault(f"{size} bytes for blob {digest.hex()}, its manifest says {expected}")


def _chunks_named(indexes: list[int]) -> str:
    shown = ", ".join(str(index) for index in indexes[:5])
    more = f" and {len(indexes) - 5} more" if len(indexes) > 5 else ""
    return f"chunk {shown}{more}"
