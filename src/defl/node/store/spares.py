"""Files of dropped blobs that the next ones are written over.

Their room on the disk is taken and their pages are in memory, which saves most of the time that
writing takes. They are named like files that are being written: the next start sweeps them away.
"""

import threading
from pathlib import Path

# More than this are freed.
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
        """Keep the file; False if there are enough already."""
        with self._lock:
            kept = len(self._files) < SPARES_MAX
            if kept:
                self._files.append((size, path))
            return kept

    def take(self, size: int, to: Path) -> bool:
        """Move a file of this size there, if there is one."""
        with self._lock:
            for index, (spare_size, path) in enumerate(self._files):
                if spare_size == size:
                    del self._files[index]
                    path.replace(to)
                    return True
        return False

    def free(self) -> bool:
        """Delete all, for their room; False if there was none."""
        with self._lock:
            files, self._files = self._files, []
        for _, path in files:
            path.unlink()
        return bool(files)
