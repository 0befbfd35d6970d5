"""The same rules in other libraries, if those are installed (extra `bench`).

They are imported by name at run time: nothing else in the project needs them.
"""

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from defl.lab.experiments.interleaved_timing import Run

# Our rule: byzfl's class, and whether it takes f.
BYZFL = {
    "fed_avg": ("Average", False),
    "krum": ("Krum", True),
    "multi_krum": ("MultiKrum", True),
    "coordinate_median": ("Median", False),
    "trimmed_mean": ("TrMean", True),
    "geometric_median": ("GeometricMedian", False),  # its default: three steps
    "centered_clipping": ("CenteredClipping", False),
}  # without its SMEA: at ten million columns one run takes minutes


def library(name: str) -> ModuleType | None:
    """The library, if it is installed and importable (byzfl needs a matching torchvision)."""
    if find_spec(name.split(".", maxsplit=1)[0]) is None:
        return None
    try:
        return import_module(name)
    except (ImportError, RuntimeError):
        return None


def unavailable() -> list[str]:
    """The libraries that are not installed or cannot be imported."""
    return [name for name in ("byzfl", "flwr") if library(name) is None]


def rival_runs(
    rule: str, rows: Sequence[NDArray[np.float32]], stack: NDArray[np.float32], faults_max: int
) -> dict[str, Run]:
    """The rule in every available library that has it, by library and kind of array."""
    runs = {f"byzfl on {kind}": run for kind, run in byzfl_runs(rule, stack, faults_max).items()}
    flower = flwr_run(rule, rows, faults_max)
    return runs if flower is None else {**runs, "flwr": flower}


def byzfl_runs(rule: str, stack: NDArray[np.float32], faults_max: int) -> dict[str, Run]:
    """byzfl's rule on NumPy arrays and, if torch is installed, on tensors."""
    byzfl = library("byzfl")
    if byzfl is None or rule not in BYZFL:
        return {}
    name, takes_faults = BYZFL[rule]
    options = {"f": faults_max} if takes_faults else {}
    # An instance may cache arrays of the first kind that it sees: one instance for each.
    runs: dict[str, Run] = {"numpy": partial(getattr(byzfl, name)(**options), stack)}
    torch = library("torch")
    if torch is not None:
        runs["torch"] = partial(getattr(byzfl, name)(**options), torch.from_numpy(stack))
    return runs


def flwr_run(rule: str, rows: Sequence[NDArray[np.float32]], faults_max: int) -> Run | None:
    flwr = library("flwr.server.strategy.aggregate")
    if flwr is None:
        return None
    results = [([row], 1) for row in rows]
    runs: dict[str, Run] = {
        "fed_avg": lambda: flwr.aggregate(results),
        "krum": lambda: flwr.aggregate_krum(results, faults_max, 0),
        "multi_krum": lambda: flwr.aggregate_krum(results, faults_max, len(rows) - faults_max),
        "coordinate_median": lambda: flwr.aggregate_median(results),
        "trimmed_mean": lambda: flwr.aggregate_trimmed_avg(results, faults_max / len(rows)),
    }
    return runs.get(rule)
