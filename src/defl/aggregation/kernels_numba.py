"""The inner loops over columns, compiled: the same bits as kernels_numpy.py, several times faster.

Nothing here may be compiled with a flag that lets the compiler reorder or fuse floating-point
operations. Signatures are fixed, so that nothing is compiled while a round waits.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numba import float32, float64, int16, int32, int64, njit, types, void
from numpy.typing import NDArray

from defl.aggregation import grid

NAME = "numba"

# Plain names: a compiled function takes globals as constants.
BLOCK = grid.BLOCK
NUMBER_BITS = grid.NUMBER_BITS
EXPONENT_MIN = grid.EXPONENT_MIN
NOT_FINITE = grid.NOT_FINITE
ROUNDER = np.float32(grid.ROUNDER)
LOWEST = np.float32(grid.ROUNDER - grid.NUMBER_MAX)
HIGHEST = np.float32(grid.ROUNDER + grid.NUMBER_MAX)
TILE = 512  # columns sorted at a time: 50 rows of them stay in the processor's nearest caches

# Rows may be read-only (mapped files); a writable array fits such a signature, too.
ROW = types.Array(float32, 1, "C", readonly=True)
COMPARATORS = types.Array(int32, 2, "C", readonly=True)

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(signature: object) -> Callable[[Function], Function]:
    """Compile once, keep the code beside the module, release the interpreter while running."""

    def decorate(function: Function) -> Function:
        try:
            kept: Function = njit(signature, nogil=True, cache=True)(function)
        except RuntimeError:  # no folder where compiled code can be kept
            kept = njit(signature, nogil=True)(function)
        return kept

    return decorate


@compiled(types.boolean(ROW, ROW, int16[::1], int16[::1]))
def quantise(
    values: NDArray[np.float32],
    base: NDArray[np.float32],
    numbers: NDArray[np.int16],
    exponents: NDArray[np.int16],
) -> bool:
    change = np.zeros(BLOCK, np.float32)
    bits = change.view(np.int32)
    scale_bits = np.zeros(1, np.int32)
    scale = scale_bits.view(np.float32)
    whole = values.size // BLOCK
    for block in range(exponents.size):
        start = block * BLOCK
        if block < whole:
            mine = values[start : start + BLOCK]
            ours = base[start : start + BLOCK]
            for k in range(BLOCK):
                change[k] = mine[k] - ours[k]
        else:
            change[:] = 0
            for k in range(values.size - start):
                change[k] = values[start + k] - base[start + k]
        largest = np.int32(0)
        for k in range(BLOCK):
            largest = max(largest, np.int32(bits[k] & np.int32(0x7FFFFFFF)))
        if largest >= NOT_FINITE:
            numbers[:] = 0
            exponents[:] = 0
            return False
        power = int(largest >> 23) - 126
        power = power if power > EXPONENT_MIN else EXPONENT_MIN
        exponents[block] = power - EXPONENT_MIN
        scale_bits[0] = (NUMBER_BITS + 127 - power) << 23
        factor = scale[0]
        for k in range(BLOCK):
            # Adding the rounder rounds; the clamp keeps 128 products below 2^31.
            change[k] = min(max(change[k] * factor + ROUNDER, LOWEST), HIGHEST)
        out = numbers[start : start + BLOCK]
        for k in range(BLOCK):
            out[k] = np.int16(bits[k])  # the low half of 1.5 * 2^23 + q holds q
    return True


@compiled(int32(int16[::1], int16[::1]))
def product(a: NDArray[np.int16], b: NDArray[np.int16]) -> np.int32:
    total = np.int32(0)
    for k in range(BLOCK):
        total = np.int32(total + np.int32(a[k]) * np.int32(b[k]))
    return total


@compiled(void(int16[:, ::1], int16[:, ::1], int64, int64[:, ::1]))
def add_products(
    numbers: NDArray[np.int16], exponents: NDArray[np.int16], first: int, sums: NDArray[np.int64]
) -> None:
    for block in range(exponents.shape[1]):
        start = block * BLOCK
        for i in range(first, exponents.shape[0]):
            mine = numbers[i, start : start + BLOCK]
            for j in range(i + 1):
                power = exponents[i, block] + exponents[j, block]
                sums[i * (i + 1) // 2 + j, power] += product(
                    mine, numbers[j, start : start + BLOCK]
                )


@compiled(void(float64[::1], ROW, float64))
def start_sum(total: NDArray[np.float64], row: NDArray[np.float32], weight: float) -> None:
    for k in range(total.size):
        total[k] = np.float64(row[k]) * weight


@compiled(void(float64[::1], ROW, float64))
def add_to_sum(total: NDArray[np.float64], row: NDArray[np.float32], weight: float) -> None:
    for k in range(total.size):
        total[k] += np.float64(row[k]) * weight


@compiled(void(float64[::1], types.UniTuple(ROW, 4), float64[::1]))
def add_four_to_sum(
    total: NDArray[np.float64], rows: Sequence[NDArray[np.float32]], weights: NDArray[np.float64]
) -> None:
    a, b, c, d = rows
    of_a, of_b, of_c, of_d = weights[0], weights[1], weights[2], weights[3]
    for k in range(total.size):
        two = (total[k] + np.float64(a[k]) * of_a) + np.float64(b[k]) * of_b
        total[k] = (two + np.float64(c[k]) * of_c) + np.float64(d[k]) * of_d


@compiled(void(float64[::1], float32[::1]))
def finish_sum(total: NDArray[np.float64], out: NDArray[np.float32]) -> None:
    for k in range(total.size):
        out[k] = total[k]


@compiled(void(int32[:, ::1], COMPARATORS, int64, int64, float32[::1]))
def mean_of_middle(
    bits: NDArray[np.int32],
    comparators: NDArray[np.int32],
    first: int,
    last: int,
    out: NDArray[np.float32],
) -> None:
    rows = bits.shape[0]
    tile = np.zeros((rows, TILE), np.int32)
    values = tile.view(np.float32)
    total = np.zeros(TILE, np.float64)
    for start in range(0, out.size, TILE):
        size = min(TILE, out.size - start)
        for i in range(rows):
            source = bits[i, start : start + size]
            key = tile[i]
            for k in range(size):
                key[k] = source[k] ^ ((source[k] >> 31) & np.int32(0x7FFFFFFF))
        for pair in range(comparators.shape[0]):
            low = tile[comparators[pair, 0]]
            high = tile[comparators[pair, 1]]
            for k in range(TILE):
                a, b = low[k], high[k]
                low[k] = a if a < b else b
                high[k] = b if a < b else a
        total[:] = 0
        for place in range(first, last + 1):
            key = tile[place]
            value = values[place]
            for k in range(TILE):
                key[k] = key[k] ^ ((key[k] >> 31) & np.int32(0x7FFFFFFF))
            if place == first:
                for k in range(TILE):
                    total[k] = value[k]
            else:
                for k in range(TILE):
                    total[k] += value[k]
        count = np.float64(last - first + 1)
        for k in range(size):
            out[start + k] = total[k] / count
