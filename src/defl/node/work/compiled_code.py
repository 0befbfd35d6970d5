"""Where the arithmetic's compiled loops are kept from one start of a node to the next.

numba keeps them beside the module, else below the user's cache folder. Where neither can be
written (a system account without a home, a package of another owner) every start would compile
for seconds: then the node's own folder keeps them.
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
    """What to add to the environment of a process that aggregates; the user's own choice stays."""
    home = environment.get("HOME") or os.path.expanduser("~")
    cache = Path(environment.get("XDG_CACHE_HOME") or Path(home, ".cache"))
    places = (package / "__pycache__", cache / "numba")
    if environment.get(SETTING) or any(can_be_written(place) for place in places):
        return {}
    return {SETTING: str(folder.resolve() / FOLDER)}


def can_be_written(place: Path) -> bool:
    """Is it a folder for us to write in, or could we make it?"""
    there = next(path for path in (place, *place.absolute().parents) if path.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
