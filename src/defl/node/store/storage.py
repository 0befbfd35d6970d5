"""One node's state folder, held by one process: records in SQLite, blobs as files.

A folder becomes a node's state by one rename, that of its database, once all else is in place.
A folder without a database is not a state yet, unless `used` says that it was one.
"""

import fcntl
import os
from pathlib import Path
from typing import Self

from msgspec.structs import replace

from defl.committee import Federation
from defl.errors import LocalFault, UserError
from defl.ids import Digest
from defl.messages import Manifest
from defl.node.store.blobs import Blobs
from defl.node.store.database import NO_OLD_COPY
from defl.node.store.disk import Payload, disk_faults, sync_folder
from defl.node.store.records import DATABASE, Records
from defl.output import Durable

BLOBS = "blobs"
WORK = "work"  # where workers write their results; on the same disk, so that these can be moved
LOCK = "lock"
USED = "used"  # written at the first start: this node may have signed something

# Blobs leave this much free, and records, which are small, a quarter of it. So a disk that fills up
# stops the weights first and the signing later, and never in between.
RESERVE_BYTES = 64 * 2**20


class Storage:
    """Owns the folder's lock, its records and its blobs."""

    def __init__(self, folder: Path, lock: int, reserve_bytes: int) -> None:
        self.folder = folder
        self.work = folder / WORK
        self._lock_file = lock
        self.records = Records(folder, reserve_bytes // 4)
        self.blobs = Blobs(folder / BLOBS, self.records.facts.chunk_bytes, reserve_bytes)

    @staticmethod
    def create(
        folder: Path,
        federation: Federation,
        initial: tuple[Manifest, Payload] | None,
        *,
        observing: str | None = None,
    ) -> None:
        """A new node's storage: a record that nothing was signed, and the initial weights, which a
        node that joins later does not need.

        `observing` says why the node must never sign: it may have signed before.
        """
        _require_new(folder, observer=observing is not None)
        with disk_faults(f"make {folder}"):
            (folder / BLOBS).mkdir(parents=True, exist_ok=True)
            (folder / WORK).mkdir(exist_ok=True)
        lock = _take_lock(folder)
        try:
            # Another process may have been quicker.
            _require_new(folder, observer=observing is not None)
            manifest = None
            if initial is not None:
                manifest, payload = initial
                Blobs(folder / BLOBS, federation.chunk_bytes, 0).store_blob(manifest, payload)
            Records.create(folder, federation, manifest, observing=observing)
        finally:
            os.close(lock)

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether the folder holds a whole state; an interrupted `create` leaves none."""
        return (folder / DATABASE).exists()

    @staticmethod
    def was_used(folder: Path) -> bool:
        """Whether a node ran on this folder, so that it may have signed something."""
        return (folder / USED).exists()

    @classmethod
    def open(
        cls, folder: Path, *, chain: Digest | None = None, reserve_bytes: int = RESERVE_BYTES
    ) -> Self:
        """The storage in this folder, for this process alone. `chain`: the federation's origin."""
        if not cls.exists(folder):
            if cls.was_used(folder):
                raise LocalFault(
                    f"{folder / DATABASE} is gone, and with it the record of what this node "
                    f"signed; {NO_OLD_COPY}"
                )
            raise UserError(
                f"{folder} holds no node's state; a node's first start creates it: defl node start"
            )
        lock = _take_lock(folder)
        try:
            _mark_used(folder)
            storage = cls(folder, lock, reserve_bytes)
        except LocalFault:
            os.close(lock)
            raise
        actual = storage.records.facts.chain
        if chain is not None and actual != chain:
            storage.close()
            raise UserError(
                f"{folder} is the state of federation {actual.hex()[:16]}, not of "
                f"{chain.hex()[:16]}; start the node with its own federation.toml, and with the "
                "release of DeFL that wrote the state: other releases hash the facts differently"
            )
        return storage

    def close(self) -> None:
        if self._lock_file < 0:
            return
        lock, self._lock_file = self._lock_file, -1
        try:
            self.blobs.close()
            self.records.close()
        finally:
            os.close(lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def recovered(self) -> Durable:
        """Everything persisted and stored. Blobs come last: damaged records leave them alone."""
        durable = self.records.recovered()
        self._sweep_work()
        self.blobs.recover()
        return replace(durable, held=self.blobs.held)

    @property
    def faults(self) -> tuple[str, ...]:
        """Damage that does not stop the node: it is repaired by fetching or writing again."""
        mark = () if self.records.fault is None else (self.records.fault,)
        return (*mark, *self.blobs.faults)

    @property
    def bytes_used(self) -> int:
        return self.records.bytes_used + self.blobs.bytes_used

    def _sweep_work(self) -> None:
        with disk_faults(f"sweep {self.work}"):
            self.work.mkdir(exist_ok=True)
            for path in self.work.iterdir():
                path.unlink()


def _require_new(folder: Path, *, observer: bool) -> None:
    if Storage.exists(folder) or (Storage.was_used(folder) and not observer):
        raise UserError(
            f"{folder} already belongs to a node, and its record must not be recreated: a node "
            "that forgets what it signed could contradict itself; choose another folder"
        )


def _mark_used(folder: Path) -> None:
    if not Storage.was_used(folder):
        with disk_faults(f"write {folder / USED}"):
            (folder / USED).touch(mode=0o600)
            sync_folder(folder)


# --- The lock --------------------------------------------------------------------------------


def lock_holder(folder: Path) -> int | None:
    """The process that holds this state now, or None; a pid file alone proves nothing."""
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
