"""Reads old pickles of byte arrays without running any code that a pickle names.

A pickle is a program: the standard reader imports and calls what it names. This reader resolves
the three names that mean "a NumPy array" to inert stand-ins and rejects every other name. It
returns dicts, lists, bytes, numbers and arrays of unsigned bytes.
"""

import io
import math
import pickle  # only find_class of a restricted reader is used
from typing import Any

import numpy as np
from numpy.typing import NDArray

from defl.errors import UserError


class HostilePickle(UserError):
    """A pickle names something other than an array of bytes."""


class _ByteDtype:
    """Stands for `numpy.dtype`; only u1 exists."""

    def __init__(self, code: object = None, *_: object) -> None:
        if code not in (b"u1", "u1"):
            raise HostilePickle(f"the pickle has an array of {code!r}; only bytes are read")

    def __setstate__(self, _: object) -> None:
        pass  # byte order and so on do not matter for single bytes


class _ArrayName:
    """Stands for the name `numpy.ndarray`, which a pickle mentions but need not call."""


class _ByteArray:
    """Stands for an array while a pickle is read: made empty, then given its state."""

    def __init__(self, subtype: object, *_: object) -> None:
        if subtype is not _ARRAY_NAME:
            raise HostilePickle("the pickle makes an array of a kind that is not NumPy's own")
        self.values: NDArray[np.uint8] = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        match state:
            case (int(), tuple(shape), _ByteDtype(), bool() | int() as by_column, bytes(data)):
                sizes_fit = all(isinstance(size, int) and size >= 0 for size in shape)
                if sizes_fit and math.prod(shape) == len(data):
                    order = np.frombuffer(data, np.uint8)
                    self.values = order.reshape(shape, order="F" if by_column else "C")
                    return
        raise HostilePickle("the pickle has an array whose bytes do not fit its shape")


_ARRAY_NAME = _ArrayName()
_NAMES: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _ByteArray,
    ("numpy._core.multiarray", "_reconstruct"): _ByteArray,
    ("numpy", "ndarray"): _ARRAY_NAME,
    ("numpy", "dtype"): _ByteDtype,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> object:
        try:
            return _NAMES[module_name, global_name]
        except KeyError:
            raise HostilePickle(
                f"the pickle asks for {module_name}.{global_name}; only arrays are read"
            ) from None

    def persistent_load(self, pid: object, /) -> object:
        raise HostilePickle(f"the pickle refers to something outside itself: {pid!r}")


def read_pickle(data: bytes) -> Any:
    """The value of a pickle, with NumPy arrays in its dict; text of Python 2 stays bytes."""
    try:
        value = _Reader(io.BytesIO(data), encoding="bytes").load()
    except HostilePickle:
        raise
    # What CPython's reader raises on a broken pickle, according to its documentation.
    except (pickle.UnpicklingError, AttributeError, EOFError, ImportError, IndexError) as error:
        raise HostilePickle(f"not a readable pickle: {error}") from error
    except (KeyError, MemoryError, OverflowError, TypeError, ValueError) as error:
        raise HostilePickle(f"not a readable pickle: {error}") from error
    if isinstance(value, dict):
        return {k: v.values if isinstance(v, _ByteArray) else v for k, v in value.items()}
    return value
