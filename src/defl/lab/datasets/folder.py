"""Where files are: the user's data folder, which is only read and downloaded into, and the cache.

The cache holds what was computed from the data: arrays that load at once and that processes share
as one mapping. Whatever is in it can be deleted.
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


def found(folder: Path, subfolder: str, names: Iterable[str]) -> Path | None:
    """The first of these names that is in the folder or in the data set's own subfolder."""
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


def cached(name: str, make: Callable[[], Arrays]) -> Arrays:
    """Arrays from the cache, mapped rather than read; made and kept there first if need be.

    The name must stand for all that the arrays depend on. Writing to them changes a private copy:
    torch refuses arrays that nobody may write to.
    """
    whole = cache_folder() / name
    if not whole.is_dir():
        _keep(whole, make())
    paths = sorted(whole.glob("*.npy"))
    return {path.stem: np.load(path, mmap_mode="c", allow_pickle=False) for path in paths}


def _keep(whole: Path, arrays: Arrays) -> None:
    """All arrays or, after a crash, none."""
    try:
        whole.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=whole.parent, prefix=".writing-") as made:
            complete = Path(made) / whole.name
            complete.mkdir()
            for key, array in arrays.items():
                np.save(complete / f"{key}.npy", array, allow_pickle=False)
            try:
                complete.rename(whole)
            except OSError:
                if not whole.is_dir():  # otherwise another process was quicker
                    raise
    except OSError as wrong:
        raise UserError(
            f"cannot write to the cache folder {whole.parent} ({wrong.strerror}): "
            "name another one with DEFL_CACHE"
        ) from wrong
