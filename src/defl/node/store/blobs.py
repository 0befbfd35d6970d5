"""Blobs as files named by their digest, and what a crash may leave of them.

    <digest>.manifest   the blob's manifest; its hash is its name, so it proves itself
    <digest>.part       an incomplete blob; each chunk is at its final offset
    <digest>.blob       a whole blob: exactly the payload, ready to be mapped
    *.new               being written, or free to be overwritten; deleted at the next start

There is no list of held chunks: a chunk is held if its bytes hash to what the manifest says. That
is checked once at start, and again when a peer requests a chunk that was written a while ago. A
torn or rotten chunk therefore counts as missing and is fetched again.
"""

import contextlib
import itertools
import mmap
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from defl.errors import ChunkRotten, DiskFull, LocalFault
from defl.ids import Digest, digest_of
from defl.messages import Manifest
from defl.node.store.disk import (
    Payload,
    allocate,
    disk_faults,
    read_at,
    require_room,
    sync,
    sync_folder,
    write_at,
)
from defl.node.store.private import create_file, own_files
from defl.node.store.spares import Spares
from defl.output import StoreChunk
from defl.pool.weights import chunk_size

Head = Callable[[int], bytes]  # from a chunk's size

_BLOB_FILE = re.compile(
    r"[0-9a-f]{64}\.(manifest|part|blob|((manifest|part|blob|[0-9]+\.dropped)\.new))"
)


def is_blob_file(name: str) -> bool:
    """Whether a file in the folder of blobs is ours by its name; no other is ever deleted."""
    return _BLOB_FILE.fullmatch(name) is not None


def no_head(_size: int) -> bytes:
    return b""


# Most chunks are served within seconds of being written. Hashing those too would cost a node about
# 4 % of its processor time: 2.8 ms for each of 7 chunks in 0.51 s per round of a 28 MB model.
SOUND_FOR_S = 600.0


@dataclass(slots=True)
class StoredFile:
    manifest: Manifest
    chunks: set[int]
    sound_at: float = field(default_factory=time.monotonic)  # first chunk written, or all checked
    readers: int = 0  # while there are any, its file must not be overwritten

    @property
    def whole(self) -> bool:
        return len(self.chunks) == len(self.manifest.chunks)

    @property
    def stale(self) -> bool:
        """Written or checked so long ago that it may have rotted."""
        return time.monotonic() >= self.sound_at + SOUND_FOR_S


class Blobs:
    """One folder of blobs; safe to call from several threads."""

    def __init__(self, folder: Path, chunk_bytes: int, reserve_bytes: int) -> None:
        self._folder = folder
        self._chunk_bytes = chunk_bytes
        self._reserve_bytes = reserve_bytes
        self._stored: dict[Digest, StoredFile] = {}
        self._lock = threading.RLock()
        self._serial = itertools.count()
        self._freeing = ThreadPoolExecutor(1, "defl-freeing")
        self._spares = Spares()
        self.faults: list[str] = []  # damage that the last recovery detected, for the operator

    # --- Recovery --------------------------------------------------------------------------

    def recover(self) -> None:
        """Hash every byte, delete leftovers, and learn which chunks are held."""
        with self._lock, disk_faults(f"read the blobs in {self._folder}"):
            self._stored = {}
            self.faults = []
            manifests = {}
            ours = list(own_files(self._folder, is_blob_file))
            for path in ours:
                manifest = self._read_manifest(path) if path.suffix == ".manifest" else None
                if manifest is not None:
                    manifests[path.stem] = manifest
            for path in ours:
                if path.suffix == ".new" or path.stem not in manifests:
                    path.unlink()
            self._report_strangers(set(ours))
            with ThreadPoolExecutor(max_workers=os.cpu_count()) as threads:
                present = threads.map(self._present, manifests.values())
                for manifest, chunks in zip(manifests.values(), present, strict=True):
                    self._restore(manifest, chunks)

    def _report_strangers(self, ours: set[Path]) -> None:
        strange = sorted(path.name for path in self._folder.iterdir() if path not in ours)
        if strange:
            self.faults.append(
                f"{self._folder} holds {len(strange)} things that are not this node's, for example "
                f"{strange[0]!r}: they are left alone; move them away"
            )

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
        if path.is_symlink() or not path.is_file():
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
        digest, stored = manifest.digest, StoredFile(manifest, chunks)
        whole, part = self._path(digest, "blob"), self._path(digest, "part")
        if whole.exists() and not stored.whole:
            missing = sorted(set(range(len(manifest.chunks))) - chunks)
            self.faults.append(
                f"blob {digest.hex()} is corrupt in {_chunks_named(missing)}: "
                "the missing chunks are fetched again"
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
        """Write a chunk of another member's blob: in place on return, but not synced."""
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
                    write_at(part.fileno(), chunk.data, chunk.index * self._chunk_bytes)
            except OSError:
                with self._lock, contextlib.suppress(OSError):
                    if digest not in self._stored:
                        self._unlink(digest)
                raise
            self._count_chunk(manifest, chunk.index)

    def _count_chunk(self, manifest: Manifest, index: int) -> None:
        digest = manifest.digest
        with self._lock:
            stored = self._stored.setdefault(digest, StoredFile(manifest, set()))
            if stored.whole:
                return  # this node computed the same blob in the meantime
            stored.chunks.add(index)
            if stored.whole:
                self._path(digest, "part").replace(self._path(digest, "blob"))

    def _begin(self, manifest: Manifest) -> None:
        """Allocate the whole blob now, so that a fetch does not run out of room half-way."""
        new = self._path(manifest.digest, "part.new")
        try:
            if not self._spares.take(manifest.size, new):
                self._require_room(manifest.size)
                with create_file(new) as file:
                    allocate(file.fileno(), manifest.size)
            self._write_manifest(manifest)
            new.replace(self._path(manifest.digest, "part"))
        except OSError:
            with contextlib.suppress(OSError):  # the first error is the one to report
                new.unlink(missing_ok=True)
                self._unlink(manifest.digest)
            raise

    def store_blob(self, manifest: Manifest, payload: Payload) -> None:
        """Write a blob of this node's own: whole and synced on return."""
        new = self._path(manifest.digest, "blob.new")
        with disk_faults(f"store blob {manifest.digest.hex()}"):
            self._require_room(manifest.size)
            try:
                with create_file(new) as file:
                    write_at(file.fileno(), payload, 0)
                self.place(manifest, new)
            except (OSError, LocalFault):
                with contextlib.suppress(OSError):
                    new.unlink(missing_ok=True)
                raise
        self.sync(manifest.digest)

    def place(self, manifest: Manifest, payload: Path) -> None:
        """Move a blob of this node's own, already a file on this disk, into place: whole on return,
        but not synced. An equal blob that is here stays, since it may be synced."""
        digest = manifest.digest
        with disk_faults(f"store blob {digest.hex()}"):
            _require_size(digest, payload.stat().st_size, manifest.size)
            with self._lock:
                held = self._stored.get(digest)
                if held is not None and held.whole:
                    payload.unlink()
                    return
                self._write_manifest(manifest)
                payload.replace(self._path(digest, "blob"))
                self._path(digest, "part").unlink(missing_ok=True)
                self._stored[digest] = StoredFile(manifest, set(range(len(manifest.chunks))))

    def sync(self, digest: Digest) -> None:
        """On return the held chunks of a blob survive a power cut, unless it was dropped."""
        with disk_faults(f"sync blob {digest.hex()}"), contextlib.ExitStack() as opened:
            with self._lock:
                stored = self._stored.get(digest)
                if stored is None:
                    return
                files = [
                    opened.enter_context(self._path(digest, kind).open("rb"))
                    for kind in ("blob" if stored.whole else "part", "manifest")
                ]
            for file in files:
                sync(file.fileno(), f"blob {digest.hex()}")
            sync_folder(self._folder)

    def _write_manifest(self, manifest: Manifest) -> None:
        new = self._path(manifest.digest, "manifest.new")
        try:
            with create_file(new) as file:
                write_at(file.fileno(), msgspec.msgpack.encode(manifest), 0)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            raise
        new.replace(self._path(manifest.digest, "manifest"))

    def drop(self, digest: Digest) -> None:
        """Forget a blob. Its readers keep its bytes.

        The room is freed in the background, since that takes a while for a large file. The next
        start deletes what a crash leaves of it.
        """
        with self._lock, disk_faults(f"delete blob {digest.hex()}"):
            stored = self._stored.pop(digest, None)
            if stored is not None:
                dropped = self._path(digest, f"{next(self._serial)}.dropped.new")
                self._path(digest, "blob" if stored.whole else "part").replace(dropped)
                self._unlink(digest)
                reusable = stored.whole and not stored.readers and _has_one_name(dropped)
                if not (reusable and self._spares.give(stored.manifest.size, dropped)):
                    self._freeing.submit(dropped.unlink)

    def take_spare(self, size: int, to: Path) -> bool:
        """Move a spare file of this size there, to be overwritten; False if there is none."""
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
        """Room that blobs take on the disk, counting spares, and incomplete blobs as whole."""
        with self._lock:
            held = sum(stored.manifest.size for stored in self._stored.values())
        return held + self._spares.bytes_used

    @contextlib.contextmanager
    def reading(self, digests: Iterable[Digest]) -> Iterator[None]:
        """Keeps the files of these blobs from being overwritten, even if they are dropped."""
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

    def stale(self, digests: Iterable[Digest]) -> list[Digest]:
        """Those that were written or checked so long ago that they may have rotted."""
        with self._lock:
            return [d for d in digests if d in self._stored and self._stored[d].stale]

    def check(self, digests: Iterable[Digest]) -> None:
        """Hash these blobs again; raises ChunkRotten for the first damage."""
        for digest in digests:
            with self._lock:
                stored = self._stored.get(digest)
            if stored is not None:
                for index in sorted(stored.chunks):
                    self.read_chunk(digest, index)
                stored.sound_at = time.monotonic()

    def path(self, digest: Digest) -> Path:
        """The file of a whole blob, for a worker to map."""
        with self._lock:
            stored = self._stored.get(digest)
            if stored is None or not stored.whole:
                raise LocalFault(f"blob {digest.hex()} is not complete here")
            return self._path(digest, "blob")

    def read(self, digest: Digest) -> memoryview:
        """The payload, mapped: pages are read on access. While the node runs, call it within
        `reading`."""
        action = f"read blob {digest.hex()}"
        with self._lock, disk_faults(action), self.path(digest).open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def read_chunk(self, digest: Digest, index: int, head: Head = no_head) -> memoryview:
        """The chunk, preceded by a head for its size: a whole frame without another copy."""
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
            sound = read_at(file.fileno(), data, index * self._chunk_bytes)
        if sound and stored.stale:
            sound = digest_of(data) == stored.manifest.chunks[index]
        if not sound:
            raise self._discard(stored, index)
        return frame.toreadonly()

    def _discard(self, stored: StoredFile, index: int) -> LocalFault:
        """Stop holding a damaged chunk. Returns the error to raise: ChunkRotten the first time."""
        digest = stored.manifest.digest
        with self._lock, disk_faults(f"discard chunk {index} of blob {digest.hex()}"):
            if self._stored.get(digest) is stored and index in stored.chunks:
                if stored.whole:
                    self._path(digest, "blob").replace(self._path(digest, "part"))
                stored.chunks.discard(index)
                return ChunkRotten(digest, index)
        return _not_here(digest, index)

    def _path(self, digest: Digest, kind: str) -> Path:
        return self._folder / f"{digest.hex()}.{kind}"


def _has_one_name(path: Path) -> bool:
    """Whether no hard link keeps these bytes elsewhere, such as a copy made with `cp -l`."""
    return path.stat().st_nlink == 1


def _not_here(digest: Digest, index: int) -> LocalFault:
    return LocalFault(f"chunk {index} of blob {digest.hex()} is not held")


def _require_size(digest: Digest, size: int, expected: int) -> None:
    if size != expected:
        raise LocalFault(f"{size} bytes for blob {digest.hex()}, its manifest says {expected}")


def _chunks_named(indexes: list[int]) -> str:
    shown = ", ".join(str(index) for index in indexes[:5])
    more = f" and {len(indexes) - 5} more" if len(indexes) > 5 else ""
    return f"chunk {shown}{more}"
