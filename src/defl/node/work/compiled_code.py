"""Where compiled loops are cached between two starts of a node.

numba caches them beside the module, or else in the user's cache folder. If neither is writable (a
system account without a home, a package of another owner), every start would compile for seconds;
then the node's own folder is the cache.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from defl.aggregation import kernels

SETTING = "NUMBA_CACHE_DIR"
FOLDER = "compiled"


def cache_settings(
    environment: Mapping[str, str], folder: Path, package: Path = Path(kernels.__file__).parent
) -> dict[str, str]:
    """Variables to add to the environment of the arithmetic process; a user's own setting wins."""
    home = environment.get("HOME") or os.path.expanduser("~")
    cache = Path(environment.get("XDG_CACHE_HOME") or Path(home, ".cache"))
    places = (package / "__pycache__", cache / "numba")
    if environment.get(SETTING) or any(is_writable(place) for place in places):
        return {}
    return {SETTING: str(folder.resolve() / FOLDER)}


def is_writable(place: Path) -> bool:
    """Whether it is a folder that we can write to, or can create."""
    there = next(path for path in (place, *place.absolute().parents) if path.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
