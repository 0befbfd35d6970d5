"""Named arrays as a file, passed between processes of one machine; nothing is pickled."""

from pathlib import Path

import numpy as np

from defl.schema import Array, Weights


def write_arrays(path: Path, weights: Weights) -> None:
    """Entries are numbered, since their names may not be valid names of an archive's members."""
    entries = {f"entry{i}": array for i, array in enumerate(weights.values())}
    np.savez(path, allow_pickle=False, names=np.array(list(weights), dtype=np.str_), **entries)


def read_arrays(path: Path) -> dict[str, Array]:
    with np.load(path, allow_pickle=False) as saved:
        return {str(name): saved[f"entry{i}"] for i, name in enumerate(saved["names"])}
