"""A seat's files: bytes under names, put whole into place and counted at any time."""

from pathlib import Path

from defl.lab.baselines.machine import Store

STORED = "stored"  # what the machine stores; nothing else is in that folder


class StoredFiles:
    def __init__(self, folder: Path) -> None:
        """`folder` is the seat's."""
        self._folder = folder / STORED
        self._folder.mkdir(exist_ok=True)
        # Not in the folder that is counted: a file must not vanish under whoever counts.
        self._writing = folder / f".{STORED}.writing"

    def put(self, store: Store) -> None:
        path = self._folder / store.name
        path.parent.mkdir(exist_ok=True)
        self._writing.write_bytes(store.data)
        self._writing.replace(path)

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())
