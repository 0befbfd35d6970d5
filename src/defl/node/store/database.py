"""SQLite with synced, atomic transactions, and with damage detected when the file is opened."""

import contextlib
import os
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path

from defl.errors import DiskFull, LocalFault, NoDescriptors
from defl.node.store.disk import NO_DESCRIPTORS, disk_faults, lacks_room

# A checkpoint truncates SQLite's log to this size, so that disk use stays flat.
LOG_BYTES_MAX = 16 * 2**20
# Another reader of the file, such as a backup, may lock it for this long.
BUSY_S = 10.0

# Advice for a lost or damaged record. Restoring a backup is the one thing that does harm.
NO_OLD_COPY = (
    "never restore an older copy: the node would sign again what it has forgotten; move the state "
    "folder away and follow without signing: defl node start --observer"
)

# The fields used here of SQLite's documented write-ahead log format.
_LOG_HEADER = struct.Struct(">8xI4x8s8x")  # page size, salt
_FRAME_HEADER = struct.Struct(">4xI8s8x")  # pages after a commit or 0, salt


@contextlib.contextmanager
def database_faults(action: str, writes: tuple[Path, int] | None = None) -> Iterator[None]:
    """Turns SQLite's errors into ours; `action` says what failed, as a verb phrase.

    `writes`: how many bytes are written, and to which folder.
    """
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        # SQLite calls an exceeded quota an I/O error, and does not say more. Not after a failed
        # sync: a second one may succeed without the bytes.
        unwritten = writes if code == sqlite3.SQLITE_IOERR_WRITE else None
        if code == sqlite3.SQLITE_FULL or (unwritten is not None and lacks_room(*unwritten)):
            raise DiskFull(f"no room on the disk to {action}: {error}") from error
        if _cannot_open(error) and _no_descriptors_left():
            raise NoDescriptors(f"too many files are open to {action}: {error}") from error
        advice = f"; {NO_OLD_COPY}" if _is_damage(error) else ""
        raise LocalFault(f"the node's database failed to {action}: {error}{advice}") from error


def _kind(error: sqlite3.Error) -> int:
    """SQLite's primary result code; the higher bits refine it."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is not what the node wrote, for example without its table."""
    damaged = _kind(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return damaged or "no such table" in str(error)


def _cannot_open(error: sqlite3.Error) -> bool:
    """A large transaction may need a temporary file."""
    return _kind(error) == sqlite3.SQLITE_CANTOPEN


def _no_descriptors_left() -> bool:
    """SQLite does not say why it could not open a file, so try to open one."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in NO_DESCRIPTORS
    return False


@contextlib.contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except sqlite3.Error:
        if database.in_transaction:  # some errors have already rolled it back
            with contextlib.suppress(sqlite3.Error):  # the first error is the one to report
                database.execute("ROLLBACK")
        raise


def connect(path: Path) -> sqlite3.Connection:
    with disk_faults(f"open {path}"):
        is_empty = path.exists() and path.stat().st_size == 0
    if is_empty:  # SQLite would begin a new database, and delete the log of the old one
        raise LocalFault(f"{path} is empty: its content is lost; {NO_OLD_COPY}")
    with database_faults(f"open {path}"):
        database = sqlite3.connect(
            path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            database.execute(f"PRAGMA journal_size_limit = {LOG_BYTES_MAX}")
            verdict = database.execute("PRAGMA quick_check(1)").fetchone()[0]
            frames = database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
            database.text_factory = bytes  # no record is text: a value of that type is corrupt
        except sqlite3.Error:
            database.close()
            raise
    lost = _commits_after(path.with_name(f"{path.name}-wal"), frames)
    # A power cut may tear the last transaction, which was never reported done. The others were
    # synced.
    if verdict == "ok" and lost > 1:
        verdict = f"its log breaks off {lost} transactions before its end"
    if verdict != "ok":
        database.close()
        raise LocalFault(f"{path} is corrupt ({verdict}); {NO_OLD_COPY}")
    return database


def _commits_after(log: Path, frames: int) -> int:
    """How many commits of the log's newest generation follow the frames that SQLite read.

    SQLite takes the first frame with a bad checksum for the end of the log. One rotten byte would
    silently restore an older safety record.
    """
    if not log.exists() or log.stat().st_size < _LOG_HEADER.size:
        return 0
    with log.open("rb") as file:
        page_bytes, salt = _LOG_HEADER.unpack(file.read(_LOG_HEADER.size))
        commits = 0
        file.seek(frames * (_FRAME_HEADER.size + page_bytes), os.SEEK_CUR)
        while len(header := file.read(_FRAME_HEADER.size)) == _FRAME_HEADER.size:
            pages_after_commit, frame_salt = _FRAME_HEADER.unpack(header)
            commits += frame_salt == salt and pages_after_commit > 0
            file.seek(page_bytes, os.SEEK_CUR)
        return commits
