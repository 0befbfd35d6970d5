"""Selects the inner loops: compiled if numba (extra `fast`) is installed, otherwise NumPy.

Both give the same bits, so nodes with and without numba agree; a test compares them.
"""

from importlib.util import find_spec
from types import ModuleType

from defl.aggregation import kernels_numpy


def best() -> ModuleType:
    if find_spec("numba") is None:
        return kernels_numpy
    from defl.aggregation import kernels_numba  # noqa: PLC0415 - an optional extra

    return kernels_numba
