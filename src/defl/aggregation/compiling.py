"""How inner loops are compiled, where numba (extra `fast`) is installed.

Nothing may be compiled with a flag that lets the compiler reorder or fuse floating-point
operations: the bits must be those of the NumPy loops.
"""

from collections.abc import Callable
from typing import TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(signature: object) -> Callable[[Function], Function]:
    """Compile once, cache the code beside the module, release the GIL while running."""

    def decorate(function: Function) -> Function:
        try:
            result: Function = njit(signature, nogil=True, cache=True)(function)
        except (RuntimeError, OSError):  # no writable cache folder, or a full disk
            result = njit(signature, nogil=True)(function)
        return result

    return decorate


def inlined(function: Function) -> Function:
    """Compile into the callers."""
    part: Function = njit(nogil=True)(function)
    return part
