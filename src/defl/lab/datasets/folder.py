"""The user's data folder, which is only read and downloaded into, and the cache.

The cache holds arrays computed from the data. They load instantly, and processes share them as one
mapping. It can be deleted at any time.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from defl.errors import UserError

Arrays = Mapping[str, NDArray[np.generic]]


class DataMissing(UserError):
    """The data folder lacks a data set."""

    def __init__(self, name: str, folder: Path, files: str) -> None:
        super().__init__(
            f"{folder} has no {files}, neither itself nor in {name}/: put it there, name the "
            f"folder that has it with --data or DEFL_DATA, or run `defl data fetch {name}`"
        )


def find_file(folder: Path, subfolder: str, names: Iterable[str]) -> Path | None:
    """The first of these names that exists in the data set's subfolder or in the folder itself."""
    for name in names:
        for place in (folder / subfolder, folder):
            if (place / name).exists():
                return place / name
    return None


def cache_folder() -> Path:
    """`DEFL_CACHE`, or `defl` in the user's folder for caches."""
    if named := os.environ.get("DEFL_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "defl"


def load_or_build(name: str, build: Callable[[], Arrays]) -> Arrays:
    """Arrays from the cache, memory-mapped; built and stored there first if necessary.

    The name must identify everything that the arrays depend on. They are mapped copy-on-write,
    because torch rejects read-only arrays.
    """
    whole = cache_folder() / name
    if not whole.is_dir():
        _store(whole, build())
    paths = sorted(whole.glob("*.npy"))
    return {path.stem: np.load(path, mmap_mode="c", allow_pickle=False) for path in paths}


def _store(whole: Path, arrays: Arrays) -> None:
    """Store all arrays, or none if this crashes."""
    try:
        whole.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=whole.parent, prefix=".writing-") as temporary:
            complete = Path(temporary) / whole.name
            complete.mkdir()
            for key, array in arrays.items():
                np.save(complete / f"{key}.npy", array, allow_pickle=False)
            try:
                complete.rename(whole)
            except OSError:
                if not whole.is_dir():  # otherwise another process was quicker
                    raise
    except OSError as error:
        raise UserError(
            f"cannot write to the cache folder {whole.parent} ({error.strerror}): "
            "name another one with DEFL_CACHE"
        ) from error
