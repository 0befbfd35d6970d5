"""Files of dropped blobs, kept so that new blobs can overwrite them.

Their disk space is allocated and their pages are in memory, which saves most of the time of a
write. They are named like unfinished files, so the next start deletes them.
"""

import threading
from pathlib import Path

SPARES_MAX = 16


class Spares:
    """Safe to call from several threads."""

    def __init__(self) -> None:
        self._files: list[tuple[int, Path]] = []  # with their sizes
        self._lock = threading.Lock()

    @property
    def bytes_used(self) -> int:
        with self._lock:
            return sum(size for size, _ in self._files)

    def give(self, size: int, path: Path) -> bool:
        """Keep the file; False if there are enough."""
        with self._lock:
            kept = len(self._files) < SPARES_MAX
            if kept:
                self._files.append((size, path))
            return kept

    def take(self, size: int, to: Path) -> bool:
        """Move a file of this size to that path; False if there is none."""
        with self._lock:
            for index, (spare_size, path) in enumerate(self._files):
                if spare_size == size:
                    del self._files[index]
                    path.replace(to)
                    return True
        return False

    def free(self) -> bool:
        """Delete all of them to free their room; False if there were none."""
        with self._lock:
            files, self._files = self._files, []
        for _, path in files:
            path.unlink()
        return bool(files)
