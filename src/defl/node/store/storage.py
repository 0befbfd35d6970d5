"""One node's state folder, held by one process: records in SQLite, blobs as files.

Nobody else may enter it (private.py). A start closes what others could read of an older one.
A folder becomes a node's state by one rename, that of its database, once all else is in place.
A folder without a database is not a state yet, unless `used` says that it was one.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from msgspec.structs import replace

from defl.committee import Federation
from defl.errors import LocalFault, UserError
from defl.ids import Digest
from defl.messages import Manifest
from defl.node.store.blobs import Blobs, is_blob_file
from defl.node.store.database import NO_OLD_COPY
from defl.node.store.disk import Payload, disk_faults, sync_folder
from defl.node.store.private import (
    IsOurs,
    close_to_others,
    exposed,
    make_folder,
    open_to_others,
    own_files,
    require_real,
)
from defl.node.store.records import DATABASE, Records
from defl.output import Durable

BLOBS = "blobs"
WORK = "work"  # where workers write their results; on the same disk, so that these can be moved
LOCK = "lock"
USED = "used"  # written at the first start: this node may have signed something

# Everything that a node keeps directly in its state folder; docs/OPERATING.md lists it.
_STATE_FILE = re.compile(
    r"lock|mark|used|state\.db(\.new)?(-wal|-shm|-journal)?|(worker|arithmetic)\.log(\.1)?"
    r"|client-local\.npz(\.new)?"
)
_STATE_FOLDERS = frozenset({BLOBS, WORK, "compiled", "lost+found"})  # the last: a disk of its own
_WORK_FILE = re.compile(r"output-[0-9]+")  # what worker.py names its results

# Blobs leave this much free, and records, which are small, a quarter of it. So a disk that fills up
# stops the weights first and the signing later, and never in between.
RESERVE_BYTES = 64 * 2**20


class Storage:
    """Owns the folder's lock, its records and its blobs."""

    def __init__(self, folder: Path, lock: int, reserve_bytes: int) -> None:
        self.folder = folder
        self.work = folder / WORK
        self._lock_file = lock
        self.notes: tuple[str, ...] = ()  # what the last recovery changed, for the operator
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
            make_folder(folder)
            _close_folders(folder)
            for inside in (BLOBS, WORK):
                make_folder(folder / inside)
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
        require_real_state(folder)
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

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            self.close()
        except LocalFault:
            if error is None:
                raise  # else the first error is the one to report

    def recovered(self) -> Durable:
        """Everything persisted and stored. Blobs come last: damaged records leave them alone."""
        with disk_faults(f"close {self.folder} to other users"):
            self.notes = _close_folders(self.folder)
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
            make_folder(self.work)
            for path in own_files(self.work, is_work_file):
                path.unlink()


# --- Who may read it -------------------------------------------------------------------------


def is_state_file(name: str) -> bool:
    return _STATE_FILE.fullmatch(name) is not None


def is_work_file(name: str) -> bool:
    return _WORK_FILE.fullmatch(name) is not None


def _folders(state: Path) -> Iterator[tuple[Path, IsOurs]]:
    yield state, is_state_file
    yield state / BLOBS, is_blob_file
    yield state / WORK, is_work_file


def require_real_state(state: Path) -> None:
    """Refuse links at the state folder and at the folders in which the node deletes files."""
    for folder, _ in _folders(state):
        require_real(folder)


def exposed_to_others(state: Path) -> list[Path]:
    """Return the parts of a state that other users can read; none if there is no state yet."""
    return [path for folder, is_ours in _folders(state) for path in exposed(folder, is_ours)]


def _close_folders(state: Path) -> tuple[str, ...]:
    """Close a state of an older version to other users. Returns what to tell the operator."""
    if mode := open_to_others(state):
        _require_own_content(state, mode)
    open_paths = exposed_to_others(state)
    for path in open_paths:
        close_to_others(path)
    if not open_paths:
        return ()
    example = open_paths[0].name
    note = (
        f"other users could read {len(open_paths)} files and folders of {state}, such as {example};"
        " it is closed to them now (modes 0700 and 0600)"
    )
    return (note,)


def _require_own_content(state: Path, mode: int) -> None:
    """Others may need a folder that holds more than a node's state, so it is not closed to them."""
    for path in sorted(state.iterdir()):
        if path.name not in _STATE_FOLDERS and not is_state_file(path.name):
            raise UserError(
                f"{state}: others may enter it (mode {mode:04o}), but it holds all members' "
                f"updates. It also holds {path.name}, which is not the node's, so the mode is left "
                f"to you: chmod 700 {state}, or name a folder for the state alone in node.toml"
            )


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
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
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
