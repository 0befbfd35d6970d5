"""A seat's files: written atomically, and counted at any time."""

from pathlib import Path

from defl.lab.baselines.machine import Store

STORED = "stored"  # the folder with what the machine stores, and nothing else


class StoredFiles:
    def __init__(self, folder: Path) -> None:
        """`folder` is the seat's."""
        self._folder = folder / STORED
        self._folder.mkdir(exist_ok=True)
        # Outside the counted folder: a file must not vanish while it is counted.
        self._writing = folder / f".{STORED}.writing"

    def put(self, store: Store) -> None:
        path = self._folder / store.name
        path.parent.mkdir(exist_ok=True)
        self._writing.write_bytes(store.data)
        self._writing.replace(path)

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())
