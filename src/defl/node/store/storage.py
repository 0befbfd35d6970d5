"""What a node must not lose: SQLite for what is small and signed, files for blobs.

A persist is one SQLite transaction, synced before it returns; every record carries a checksum over
itself and its place. `recovered` gives back what was persisted, or says by name what is damaged. A
database that has lost writes (`mark.py` shows it) gives back a record that signs nothing any more.
What is kept and what is forgotten is as `output.Persist` says.

A new node's folder becomes a state with one rename, that of its database, when all else is there.
A folder without a database is no state yet, unless `used` says that there was one.
"""

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from defl.committee import Federation
from defl.errors import DiskFull, LocalFault, UserError
from defl.ids import Digest, Round, digest_of
from defl.messages import Block, Evidence, Manifest, Offer, Snapshot, StoreAck
from defl.node.store.blobs import (
    Blobs,
    Head,
    Payload,
    disk_faults,
    no_head,
    require_room,
    sync_folder,
)
from defl.node.store.database import NO_OLD_COPY, connect, database_faults, transaction
from defl.node.store.mark import Mark
from defl.output import Durable, Persist, SafetyRecord, StoreChunk
from defl.participant import first_durable

__all__ = ["DiskFull", "Storage"]

DATABASE = "state.db"
BLOBS = "blobs"
WORK = "work"  # where workers put what they make; on the same disk, so that it can be moved
LOCK = "lock"
USED = "used"  # from the first start on: this node may have signed something
MARK = "mark"  # how many writes the database has taken

# Blobs leave this much free; the log, which is small, may go on until a quarter of it is left. So
# a disk that fills up stops the weights first and the signing later, and never in between.
RESERVE_BYTES = 64 * 2**20

_TABLE = """
CREATE TABLE records (
    kind TEXT NOT NULL,
    slot BLOB NOT NULL,       -- what it is about: one record of a kind for each
    number INTEGER NOT NULL,  -- height or round, by which it is forgotten
    data BLOB NOT NULL,
    checksum BLOB NOT NULL,
    PRIMARY KEY (kind, slot)
);
CREATE INDEX by_number ON records (kind, number);
"""
_PUT = """
INSERT INTO records (kind, slot, number, data, checksum) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (kind, slot) DO UPDATE
SET number = excluded.number, data = excluded.data, checksum = excluded.checksum
"""
_FORGET = "DELETE FROM records WHERE kind = ? AND number <= ?"
_ALL = "SELECT slot, number, data, checksum FROM records WHERE kind = ? ORDER BY rowid"

T = TypeVar("T")
Row = tuple[str, bytes, int, bytes, bytes]


class Facts(Struct, frozen=True, array_like=True):
    """Whose storage this is; it never changes."""

    chain: Digest
    epoch: int
    chunk_bytes: int


def _encoded(thing: object) -> bytes:
    return msgspec.msgpack.encode(thing)


def _row(kind: str, slot: bytes, number: int, thing: object) -> Row:
    data = _encoded(thing)
    return kind, slot, number, data, _checksum(kind, slot, number, data)


def _checksum(kind: str, slot: bytes, number: int, data: bytes) -> bytes:
    return digest_of(_encoded((kind, slot, number, data)))


class Storage:
    """One node's folder, held by one process; safe to call from several threads."""

    def __init__(self, folder: Path, lock: int, reserve_bytes: int) -> None:
        self.folder = folder
        self.work = folder / WORK
        self._lock_file = lock
        self._reserve_bytes = reserve_bytes
        self._using = threading.RLock()
        self._mark_fault: str | None = None
        self._database = connect(folder / DATABASE)
        try:
            self.facts = self._read_facts()
            counted = self._one("writes", int)  # None: made by a version without a mark
            self._mark = Mark(folder / MARK)
        except LocalFault:
            self._database.close()
            raise
        marked = self._mark.read()
        if marked is None and counted is not None:
            self._mark_fault = (
                f"{folder / MARK} is missing or damaged: this time nothing shows whether "
                f"{DATABASE} has lost writes; it is written again"
            )
        self._writes = max(counted or 0, marked or 0)
        self._writes_lost = self._writes - (counted or 0)
        self._blobs = Blobs(folder / BLOBS, self.facts.chunk_bytes, reserve_bytes)

    # --- Making and opening ----------------------------------------------------------------

    @staticmethod
    def create(
        folder: Path,
        federation: Federation,
        manifest: Manifest,
        payload: Payload,
        *,
        observer: bool = False,
    ) -> None:
        """A new node's storage: a record that nothing was signed, and the initial weights.

        An observer gets no record: a node that may have signed and lost its disk follows without
        signing.
        """
        _require_new(folder, observer=observer)
        with disk_faults(f"make {folder}"):
            (folder / BLOBS).mkdir(parents=True, exist_ok=True)
            (folder / WORK).mkdir(exist_ok=True)
        lock = _take_lock(folder)
        try:
            _require_new(folder, observer=observer)  # another process may have been quicker
            blobs = Blobs(folder / BLOBS, federation.chunk_bytes, 0)
            blobs.store_blob(manifest, payload)
            _make_database(folder, federation, manifest, observer=observer)
        finally:
            os.close(lock)

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether there is a state, whole: what a killed creation leaves is none."""
        return (folder / DATABASE).exists()

    @staticmethod
    def was_used(folder: Path) -> bool:
        """Whether a node ran on this folder, so that it may have signed something."""
        return (folder / USED).exists()

    @classmethod
    def open(
        cls, folder: Path, *, chain: Digest | None = None, reserve_bytes: int = RESERVE_BYTES
    ) -> Self:
        """The storage in this folder, for this process alone."""
        if not cls.exists(folder):
            if cls.was_used(folder):
                raise LocalFault(
                    f"{folder / DATABASE} is gone, and with it the record of what this node "
                    f"signed; {NO_OLD_COPY}"
                )
            raise UserError(
                f"{folder} holds no node's state; a node's first start makes it: defl node start"
            )
        lock = _take_lock(folder)
        try:
            _mark_used(folder)
            storage = cls(folder, lock, reserve_bytes)
        except LocalFault:
            os.close(lock)
            raise
        if chain is not None and storage.facts.chain != chain:
            found = storage.facts.chain.hex()
            storage.close()
            raise UserError(
                f"{folder} is the state of federation {found[:16]}, not of {chain.hex()[:16]}; "
                "start the node with the federation's file that it was made for"
            )
        return storage

    def close(self) -> None:
        with self._using:
            if self._lock_file < 0:
                return
            self._database.close()
            self._blobs.close()
            try:
                self._mark.close()
            finally:
                os.close(self._lock_file)
                self._lock_file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- Recovery --------------------------------------------------------------------------

    def _read_facts(self) -> Facts:
        facts = self._one("facts", Facts)
        if facts is None:
            raise LocalFault(f"{self.folder / DATABASE} does not say which federation it is of")
        return facts

    def recovered(self) -> Durable:
        """Everything that was acknowledged: first what was signed, then the log, then the blobs."""
        with self._using:
            self._observe_if_writes_were_lost()
            record = self._one("safety", SafetyRecord)
            snapshot = self._one("snapshot", Snapshot)
            blocks = tuple(self._many("block", Block))
            acks = tuple(self._many("ack", StoreAck))
            offers = tuple(self._many("offer", Offer))
            models = tuple(self._many("model", tuple[Round, Manifest]))
            evidence = tuple(self._many("evidence", Evidence))
            self._sweep_work()
            self._blobs.recover()
        return Durable(
            record=record,
            snapshot=snapshot,
            blocks=blocks,
            acks=acks,
            offers=offers,
            models=models,
            evidence=evidence,
            held=self._blobs.held,
        )

    @property
    def faults(self) -> tuple[str, ...]:
        """Damage that does not stop the node: it is mended by fetching or writing again."""
        mark = (self._mark_fault,) if self._mark_fault is not None else ()
        return (*mark, *self._blobs.faults)

    def observe(self, reason: str) -> None:
        """From now on this node signs nothing; it stays so after a restart."""
        with self._using:
            record = self._one("safety", SafetyRecord)
            if record is not None and record.observing is None:
                self.persist(Persist(record=replace(record, observing=reason)))

    def _observe_if_writes_were_lost(self) -> None:
        if self._writes_lost:
            self.observe(
                f"{self.folder / DATABASE} is older than its high-water mark: {self._writes_lost} "
                "of its writes are lost (an old copy, or one without its -wal file), so what this "
                "node signed is not known"
            )

    def _one(self, kind: str, type_: type[T]) -> T | None:
        return next(iter(self._many(kind, type_)), None)

    def _many(self, kind: str, type_: type[T]) -> list[T]:
        with database_faults(f"read the records of kind {kind!r}"):
            rows = self._database.execute(_ALL, (kind,)).fetchall()
        return [self._checked(kind, row, type_) for row in rows]

    def _checked(self, kind: str, row: tuple[Any, ...], type_: type[T]) -> T:
        slot, number, data, checksum = row
        which = slot.hex() if isinstance(slot, bytes) else repr(slot)
        where = f"the {kind} record {which or '(only one)'} in {self.folder / DATABASE}"
        if checksum != _checksum(kind, slot, number, data):
            raise LocalFault(f"{where} is corrupt: its checksum is wrong; {NO_OLD_COPY}")
        try:
            return msgspec.msgpack.decode(data, type=type_)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise LocalFault(f"{where} cannot be read by this version: {error}") from error

    def _sweep_work(self) -> None:
        with disk_faults(f"sweep {self.work}"):
            self.work.mkdir(exist_ok=True)
            for path in self.work.iterdir():
                path.unlink()

    # --- Records ---------------------------------------------------------------------------

    def persist(self, *persists: Persist) -> None:
        """All of them, in this order, or nothing; synced when this returns."""
        changes = [(list(_rows(persist)), list(_forgets(persist))) for persist in persists]
        size = sum(len(row[3]) for rows, _ in changes for row in rows)
        with self._using:
            require_room(self.folder, size, self._reserve_bytes // 4)
            writes = self._writes + 1
            with database_faults("persist"), transaction(self._database):
                for rows, forgets in changes:
                    self._database.executemany(_PUT, rows)
                    self._database.executemany(_FORGET, forgets)
                self._database.execute(_PUT, _row("writes", b"", 0, writes))
            self._writes = writes
            self._mark.write(writes)  # only now: a mark ahead of the database means lost writes

    # --- Blobs -----------------------------------------------------------------------------

    def store_chunk(self, chunk: StoreChunk) -> None:
        self._blobs.store_chunk(chunk)

    def store_blob(self, manifest: Manifest, payload: Payload) -> None:
        self._blobs.store_blob(manifest, payload)

    def place(self, manifest: Manifest, path: Path) -> None:
        self._blobs.place(manifest, path)

    def sync(self, digest: Digest) -> None:
        self._blobs.sync(digest)

    def path(self, digest: Digest) -> Path:
        return self._blobs.path(digest)

    def read(self, digest: Digest) -> memoryview:
        return self._blobs.read(digest)

    def read_chunk(self, digest: Digest, index: int, head: Head = no_head) -> memoryview:
        return self._blobs.read_chunk(digest, index, head)

    def reading(self, digests: Iterable[Digest]) -> AbstractContextManager[None]:
        return self._blobs.reading(digests)

    def take_spare(self, size: int, to: Path) -> bool:
        return self._blobs.take_spare(size, to)

    def drop(self, digest: Digest) -> None:
        self._blobs.drop(digest)

    @property
    def bytes_used(self) -> int:
        files = (self.folder / f"{DATABASE}{suffix}" for suffix in ("", "-wal", "-shm"))
        return self._blobs.bytes_used + sum(f.stat().st_size for f in files if f.exists())


# --- What a persist changes ------------------------------------------------------------------


def _rows(persist: Persist) -> Iterator[Row]:
    if persist.record is not None:
        yield _row("safety", b"", 0, persist.record)
    for block in persist.blocks:
        yield _row("block", block.id, block.height, block)
    if persist.snapshot is not None:
        yield _row("snapshot", b"", persist.snapshot.block.height, persist.snapshot)
    for ack in persist.acks:
        yield _row("ack", _encoded((ack.round, ack.author)), ack.round, ack)
    if persist.offer is not None:
        yield _row("offer", _encoded(persist.offer.round), persist.offer.round, persist.offer)
    if persist.model is not None:
        yield _row("model", _encoded(persist.model[0]), persist.model[0], persist.model)
    for evidence in persist.evidence:
        yield _row("evidence", digest_of(_encoded(evidence)), 0, evidence)


def _forgets(persist: Persist) -> Iterator[tuple[str, int]]:
    if persist.snapshot is not None:
        yield "block", persist.snapshot.block.height
    if persist.forget_round is not None:
        for kind in ("ack", "offer", "model"):
            yield kind, persist.forget_round


# --- The database and the lock ---------------------------------------------------------------


def _make_database(
    folder: Path, federation: Federation, initial: Manifest, *, observer: bool
) -> None:
    """Under another name first: a node's database is there with its first record, or not at all.

    What lies around of a lost database goes before that: SQLite would read its log into this one.
    """
    new = folder / f"{DATABASE}.new"
    first = first_durable(federation, initial)
    facts = Facts(federation.chain, federation.epoch, federation.chunk_bytes)
    rows: Iterable[Row] = (
        _row("facts", b"", 0, facts),
        _row("writes", b"", 0, 0),
        *_rows(Persist(record=None if observer else first.record, model=(Round(0), initial))),
    )
    with disk_faults(f"make {folder / DATABASE}"), database_faults(f"make {folder / DATABASE}"):
        new.unlink(missing_ok=True)
        database = sqlite3.connect(new, isolation_level=None)
        try:
            database.execute("PRAGMA synchronous = FULL")
            database.executescript(_TABLE)
            with transaction(database):
                database.executemany(_PUT, rows)
        finally:
            database.close()
        for leftover in (f"{DATABASE}-wal", f"{DATABASE}-shm", MARK):
            (folder / leftover).unlink(missing_ok=True)
        mark = Mark(folder / MARK)
        mark.write(0)
        mark.close()
        new.replace(folder / DATABASE)
        sync_folder(folder)
        sync_folder(folder.parent)


def _require_new(folder: Path, *, observer: bool) -> None:
    if Storage.exists(folder) or (Storage.was_used(folder) and not observer):
        raise UserError(
            f"{folder} already is a node's, whose record must not be made anew: a node that "
            "forgets what it signed could contradict itself; choose another folder"
        )


def _mark_used(folder: Path) -> None:
    if not Storage.was_used(folder):
        with disk_faults(f"write {folder / USED}"):
            (folder / USED).touch(mode=0o600)
            sync_folder(folder)


def lock_holder(folder: Path) -> int | None:
    """The process that holds this state now; None if there is none, whatever pid a file names."""
    try:
        lock = os.open(folder / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        number = os.read(lock, 32).strip()
        return int(number) if number.isdigit() else None
    else:
        return None
    finally:
        os.close(lock)


def _take_lock(folder: Path) -> int:
    with disk_faults(f"lock {folder}"):
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise UserError(
                f"{folder} is in use by another process (pid {holder}); stop that one first: two "
                "processes with one key would contradict each other"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock
