"""Bare memory for compiled loops: pointers, the bits of a float, fetching ahead, 16-bit products.

A slice of an array inside a compiled loop counts references, with atomic instructions that hold
the processor up; a pointer made from an address does not. Whoever passes an address keeps the
array alive, and `addresses` is the one place where an array of a caller becomes an address.

What is said here in LLVM's own terms is plain vector arithmetic on whole numbers, which LLVM
turns into the instructions that a processor has: exact everywhere, only the speed differs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32, float64, int16, int32, int64, types, void
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from defl.aggregation.grid import BLOCK
from defl.errors import PreconditionBroken

INT16, INT32, INT64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
WIDTH = 16  # numbers multiplied at a time
ROWS_AT_A_TIME = 4


def addresses(rows: Sequence[NDArray[np.float32]], columns: int) -> NDArray[np.int64]:
    """Where the rows begin; compiled loops trust that `columns` float32 lie there side by side."""
    for row in rows:
        flags = row.flags
        if row.dtype != np.float32 or row.shape != (columns,) or not flags.c_contiguous:
            raise PreconditionBroken(
                f"a row of {row.shape} {row.dtype} where {columns} float32 side by side are needed"
            )
    return np.array([row.ctypes.data for row in rows], dtype=np.int64)


def pointer_to(kind: Any, stored: ir.Type) -> Any:
    """A function from an address to a pointer that compiled code can index."""

    def at(_typing: Any, _address: Any) -> Any:
        def made(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], stored.as_pointer())

        return types.CPointer(kind)(int64), made

    return intrinsic(at)


floats_at = pointer_to(float32, ir.FloatType())
doubles_at = pointer_to(float64, ir.DoubleType())
shorts_at = pointer_to(int16, INT16)
ints_at = pointer_to(int32, INT32)
longs_at = pointer_to(int64, INT64)


def reinterpreted(source: Any, target: Any, stored: ir.Type) -> Any:
    """A function that gives the bits of one type as another of the same size."""

    def of(_typing: Any, _value: Any) -> Any:
        def made(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], stored)

        return target(source), made

    return intrinsic(of)


bits_of = reinterpreted(float32, int32, INT32)
float_of = reinterpreted(int32, float32, ir.FloatType())


def fetching_ahead(_typing: Any, _address: Any) -> Any:
    """Ask for memory that will be read soon; an address beyond the end is simply not fetched."""

    def made(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, INT32, INT32, INT32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        reading, keep_near, data = INT32(0), INT32(2), INT32(1)
        builder.call(function, [builder.inttoptr(args[0], byte), reading, keep_near, data])
        return context.get_dummy_value()

    return void(int64), made


fetch_ahead = intrinsic(fetching_ahead)


def shuffled(builder: Any, a: Any, b: Any, places: Sequence[int]) -> Any:
    return builder.shuffle_vector(
        a, b, ir.Constant(ir.VectorType(INT32, len(places)), list(places))
    )


def neighbours_added(builder: Any, a: Any, b: Any) -> Any:
    """Of two vectors of 8, sums of neighbours: two of a, two of b, in each half."""
    even = shuffled(builder, a, b, [0, 2, 8, 10, 4, 6, 12, 14])
    odd = shuffled(builder, a, b, [1, 3, 9, 11, 5, 7, 13, 15])
    return builder.add(even, odd)


def multiplying_four(_typing: Any, mine: Any, theirs: Any, out: Any) -> Any:
    """The 32-bit inner products of one block with four blocks that follow each other."""

    def loaded(builder: Any, start: Any, place: int) -> Any:
        at = builder.gep(start, [INT64(place)])
        numbers = builder.load(
            builder.bitcast(at, ir.VectorType(INT16, WIDTH).as_pointer()), align=2
        )
        return builder.sext(numbers, ir.VectorType(INT32, WIDTH))

    def made(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        mine, theirs, out = args
        sums: list[Any] = [None] * ROWS_AT_A_TIME
        for place in range(0, BLOCK, WIDTH):
            one = loaded(builder, mine, place)
            for row in range(ROWS_AT_A_TIME):
                product = builder.mul(one, loaded(builder, theirs, row * BLOCK + place))
                # Neighbours added at once: processors multiply 16 bits and add pairs in one step.
                pairs = builder.add(
                    shuffled(builder, product, product, range(0, WIDTH, 2)),
                    shuffled(builder, product, product, range(1, WIDTH, 2)),
                )
                sums[row] = pairs if sums[row] is None else builder.add(sums[row], pairs)
        halves = neighbours_added(
            builder,
            neighbours_added(builder, sums[0], sums[1]),
            neighbours_added(builder, sums[2], sums[3]),
        )
        four = builder.add(
            shuffled(builder, halves, halves, range(4)),
            shuffled(builder, halves, halves, range(4, 8)),
        )
        builder.store(four, builder.bitcast(out, four.type.as_pointer()), align=4)
        return context.get_dummy_value()

    return void(mine, theirs, out), made


multiply_four = intrinsic(multiplying_four)
