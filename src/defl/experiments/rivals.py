"""The same rules in other libraries, where those are installed (extra `bench`).

They are looked up by name at run time: nothing else in the project needs them.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

Run = Callable[[], object]

# Our rule -> the class of byzfl and whether it takes f.
BYZFL = {
    "fed_avg": ("Average", False),
    "krum": ("Krum", True),
    "multi_krum": ("MultiKrum", True),
    "coordinate_median": ("Median", False),
    "trimmed_mean": ("TrMean", True),
    "geometric_median": ("GeometricMedian", False),  # its default: three steps
    "centered_clipping": ("CenteredClipping", False),
    "smallest_eigenvalue_subset": ("SMEA", True),
}


def missing() -> list[str]:
    return [name for name in ("byzfl", "flwr") if find_spec(name) is None]


def byzfl_runs(rule: str, stack: NDArray[np.float32], faults_max: int) -> dict[str, Run]:
    """The library's rule on NumPy's and, where there is torch, on torch's kind of array."""
    if find_spec("byzfl") is None or rule not in BYZFL:
        return {}
    name, takes_faults = BYZFL[rule]
    library = import_module("byzfl")
    instance = getattr(library, name)(f=faults_max) if takes_faults else getattr(library, name)()
    runs: dict[str, Run] = {"numpy": lambda: instance(stack)}
    if find_spec("torch") is not None:
        tensor = import_module("torch").from_numpy(stack)
        runs["torch"] = lambda: instance(tensor)
    return runs


def flwr_run(rule: str, rows: Sequence[NDArray[np.float32]], faults_max: int) -> Run | None:
    if find_spec("flwr") is None:
        return None
    library = import_module("flwr.server.strategy.aggregate")
    results = [([row], 1) for row in rows]
    known: dict[str, Run] = {
        "fed_avg": lambda: library.aggregate(results),
        "krum": lambda: library.aggregate_krum(results, faults_max, 0),
        "multi_krum": lambda: library.aggregate_krum(results, faults_max, len(rows) - faults_max),
        "coordinate_median": lambda: library.aggregate_median(results),
        "trimmed_mean": lambda: library.aggregate_trimmed_avg(results, faults_max / len(rows)),
    }
    return known.get(rule)
