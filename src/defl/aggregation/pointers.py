"""Raw memory access for compiled loops: typed pointers, float bits, prefetch.

Slicing an array inside a compiled loop updates a reference count with atomic instructions, which
stall the processor; a pointer made from an address does not. A caller that passes an address
keeps the array alive. `addresses` is the only place where a caller's array becomes an address.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32, float64, int16, int32, int64, types, void
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from defl.aggregation.compiling import inlined
from defl.errors import PreconditionBroken

LINE = 64  # bytes in a cache line
ADDRESSES = types.Array(int64, 1, "C", readonly=True)

INT16, INT32, INT64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)


def addresses(rows: Sequence[NDArray[np.float32]], columns: int) -> NDArray[np.int64]:
    """The address of each row; compiled loops trust that `columns` contiguous float32 follow."""
    for row in rows:
        if row.dtype != np.float32 or row.shape != (columns,) or not row.flags.c_contiguous:
            raise PreconditionBroken(
                f"a row of {row.shape} {row.dtype}; compiled loops need {columns} contiguous "
                "float32"
            )
    return np.array([row.ctypes.data for row in rows], dtype=np.int64)


def pointer_to(kind: Any, stored: ir.Type) -> Any:
    """A function from an address to a pointer that compiled code can index."""

    def at(_typing: Any, _address: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], stored.as_pointer())

        return types.CPointer(kind)(int64), generate

    return intrinsic(at)


floats_at = pointer_to(float32, ir.FloatType())
doubles_at = pointer_to(float64, ir.DoubleType())
shorts_at = pointer_to(int16, INT16)
ints_at = pointer_to(int32, INT32)
longs_at = pointer_to(int64, INT64)


def reinterpreted(source: Any, target: Any, stored: ir.Type) -> Any:
    """A function that returns the bits of one type as another type of the same size."""

    def of(_typing: Any, _value: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], stored)

        return target(source), generate

    return intrinsic(of)


bits_of = reinterpreted(float32, int32, INT32)
float_of = reinterpreted(int32, float32, ir.FloatType())


def prefetching(_typing: Any, _address: Any) -> Any:
    """Request memory that will be read soon; an address beyond the end is ignored."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, INT32, INT32, INT32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        reading, keep_near, data = INT32(0), INT32(2), INT32(1)
        builder.call(function, [builder.inttoptr(args[0], byte), reading, keep_near, data])
        return context.get_dummy_value()

    return void(int64), generate


prefetch = intrinsic(prefetching)


@inlined
def aligned(address: int) -> int:
    """The next start of a cache line: wide loads that cross one take twice as long.

    A buffer that is aligned has room for one line more.
    """
    return (address + LINE - 1) // LINE * LINE


@inlined
def prefetch_columns(address: int, columns: int) -> None:
    for k in range(0, 4 * columns, LINE):
        prefetch(address + k)
