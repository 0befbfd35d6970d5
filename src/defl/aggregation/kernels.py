"""Selects the inner loops: compiled if numba (extra `fast`) is installed and worth its start.

Both give the same bits, so nodes with and without numba agree; a test compares them.
"""

from functools import cache
from importlib.util import find_spec
from types import ModuleType

from defl.aggregation import kernels_numpy

# Loading numba costs a second of processor time and 70 MB (compiling for the first time, three
# seconds). NumPy needs 5 ms longer per million numbers, so for smaller rounds that never pays.
NUMBERS_COMPILED_MIN = 1 << 22


def best(numbers: int) -> ModuleType:
    """The loops for rows with so many numbers in total."""
    if numbers < NUMBERS_COMPILED_MIN or find_spec("numba") is None:
        return loaded()
    return compiled()


def loaded() -> ModuleType:
    """The loops for whatever is too little to load numba for."""
    return compiled() if compiled.cache_info().currsize else kernels_numpy


@cache
def compiled() -> ModuleType:
    from defl.aggregation import kernels_numba  # noqa: PLC0415 - an optional extra

    return kernels_numba
