"""The high-water mark: the number of writes that the database has taken, in a file outside it.

A database whose write-ahead log was deleted, truncated or not copied opens without complaint, only
older. A node that signs from an older record contradicts itself. The mark reveals it: a mark ahead
of the database means that the database has lost writes.

A crash must never look like that. So the database's transaction is synced first and the mark is
written afterwards, without a sync of its own: after a kill or a power cut the mark is level with
the database or behind it. A sync per mark would double the time of a commit. The mark is synced at
most once a second instead, so a power cut may move it back by about a second, and writes that the
database loses from that second go unnoticed here.

A missing or damaged mark proves nothing about the database. The node reports it and continues.
"""

import os
import time
from pathlib import Path

from defl.ids import digest_of
from defl.node.store.disk import disk_faults

SYNC_EVERY_S = 1.0

_FORMAT = b"defl-mark-1 "
_DIGITS = 20
_CHECK_CHARACTERS = 16
# Of constant length, within one sector: it is overwritten in place, entirely or not at all.
_MARK_BYTES = len(_FORMAT) + _DIGITS + 1 + _CHECK_CHARACTERS + 1


def _text(writes: int) -> bytes:
    head = _FORMAT + b"%0*d" % (_DIGITS, writes)
    return head + b" " + digest_of(head).hex()[:_CHECK_CHARACTERS].encode() + b"\n"


class Mark:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._synced_at = float("-inf")
        with disk_faults(f"open {path}"):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)

    def read(self) -> int | None:
        """The writes that the database must hold at least; None if the mark is unusable."""
        with disk_faults(f"read {self._path}"):
            text = os.pread(self._file, _MARK_BYTES + 1, 0)
        digits = text[len(_FORMAT) : len(_FORMAT) + _DIGITS]
        if not digits.isdigit() or text != _text(int(digits)):
            return None
        return int(digits)

    def write(self, writes: int) -> None:
        """Record that the database has synced this many writes."""
        with disk_faults(f"write {self._path}"):
            os.pwrite(self._file, _text(writes), 0)
        now = time.monotonic()
        if now >= self._synced_at + SYNC_EVERY_S:
            self._synced_at = now
            self.sync()

    def sync(self) -> None:
        with disk_faults(f"sync {self._path}"):
            os.fsync(self._file)

    def close(self) -> None:
        try:
            self.sync()
        finally:
            os.close(self._file)
