"""Files: complete reads and writes, room on the disk, and the system's errors as ours."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from defl.errors import DiskFull, LocalFault, NoDescriptors

Payload = bytes | bytearray | memoryview

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
# A write that fails for lack of room needs more than its payload: SQLite writes whole pages.
PROBE_BYTES = 2**20


@contextlib.contextmanager
def disk_faults(action: str) -> Iterator[None]:
    """Turns the system's errors into ours; `action` says what failed, as a verb phrase."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DiskFull(f"no room on the disk to {action}: {error}") from error
        if error.errno in NO_DESCRIPTORS:
            raise NoDescriptors(f"too many files are open to {action}: {error}") from error
        raise LocalFault(f"cannot {action}: {error}") from error


def require_room(folder: Path, size: int, reserve_bytes: int) -> None:
    """Refuse before the first byte is written, while there is still room for what matters more."""
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free - size < reserve_bytes:
        raise DiskFull(
            f"{free} bytes are free in {folder}; {size} more would leave less than the "
            f"{reserve_bytes} that are held in reserve"
        )


def lacks_room(folder: Path, size: int) -> bool:
    """Whether the disk or a quota refuses this many bytes now: tried, and nothing is left."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            write_at(file.fileno(), bytes(PROBE_BYTES + 2 * size), 0)
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return False


def sync(descriptor: int, name: str) -> None:
    """Never DiskFull, which is worth another try: the system may have thrown the bytes away, and it
    reports that once. A second sync would succeed without them."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise LocalFault(f"cannot sync {name}: {error}") from error


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        sync(descriptor, str(folder))
    finally:
        os.close(descriptor)


def allocate(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)


def write_at(descriptor: int, data: Payload, offset: int) -> None:
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def read_at(descriptor: int, view: memoryview, offset: int) -> bool:
    """Fill the view; False if the file is too short or the disk cannot read it."""
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
