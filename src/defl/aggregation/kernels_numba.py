"""The inner loops over columns, compiled: the same bits as kernels_numpy.py, several times faster.

Signatures are fixed, so that nothing is compiled while a round waits. Loops walk all rows of a
round together, a few columns at a time, so that each row is read from memory once and
intermediate results stay in the nearest caches; pointers.py says why they run over raw memory.

numba computes int32 expressions in 64 bits. The np.int32(...) casts let LLVM narrow them again,
and only narrow loops become vector instructions.
"""

from collections.abc import Sequence

import numpy as np
from numba import boolean, float32, float64, int32, int64, types, void
from numpy.typing import NDArray

from defl.aggregation import eigen_numba, grid
from defl.aggregation.compiling import compiled, inlined
from defl.aggregation.network import middle_network
from defl.aggregation.pointers import (
    ADDRESSES,
    addresses,
    bits_of,
    doubles_at,
    float_of,
    floats_at,
    ints_at,
    longs_at,
    prefetch_columns,
    shorts_at,
)
from defl.aggregation.sums_numba import group_means, weighted_sum  # noqa: F401 - loops, too

NAME = "numba"
EIGEN = eigen_numba  # the loops over small matrices

# Plain module names: a compiled function treats globals as constants.
BLOCK = grid.BLOCK
NUMBER_BITS = grid.NUMBER_BITS
EXPONENT_MIN = grid.EXPONENT_MIN
NOT_FINITE = grid.NOT_FINITE
NO_SIGN = np.int32(0x7FFFFFFF)
LOW_HALF = np.int32(0xFFFF)
ROUNDER = np.float32(grid.ROUNDER)
LOWEST = np.float32(grid.ROUNDER - grid.NUMBER_MAX)
HIGHEST = np.float32(grid.ROUNDER + grid.NUMBER_MAX)
# Only a block whose largest fraction is this close to 1 can round up to NUMBER_MAX + 1.
FRACTION = np.int32(0x7FFFFF)
FRACTION_CLAMPED = np.int32(0x7FF800)

HALF = BLOCK // 2
BLOCK_BYTES = 4 * BLOCK  # of float32
NUMBERS_BYTES = 2 * BLOCK
BLOCKS = 8  # put on the grid at a time: 4 KB of every row
TILE = 128  # columns sorted at a time: 50 rows of them fit into the nearest cache

COMPARATORS = types.Array(int32, 2, "C", readonly=True)


def columns_per_pass(rows: int) -> int:  # noqa: ARG001 - as in kernels_numpy
    return 1 << 18  # enough to hide the cost of a call, few enough to spread over threads


@inlined
def largest_change(mine: int, ours: int) -> np.int32:
    """The bits of the largest magnitude in a block."""
    values, base = floats_at(mine), floats_at(ours)
    largest = np.int32(0)
    for k in range(BLOCK):
        largest = max(largest, np.int32(bits_of(values[k] - base[k]) & NO_SIGN))
    return largest


@inlined
def round_block(mine: int, ours: int, factor: np.float32, numbers: int) -> None:
    """Round a block to the grid, number k next to k + HALF: a product ignores their order.

    Adding ROUNDER rounds; the low 16 bits of 1.5 * 2^23 + q hold q.
    """
    values, base, words = floats_at(mine), floats_at(ours), ints_at(numbers)
    for k in range(HALF):
        low = bits_of((values[k] - base[k]) * factor + ROUNDER)
        high = bits_of((values[k + HALF] - base[k + HALF]) * factor + ROUNDER)
        words[k] = np.int32(low & LOW_HALF) | np.int32(high << 16)


@inlined
def round_block_clamped(mine: int, ours: int, factor: np.float32, numbers: int) -> None:
    """The same for a block that may reach NUMBER_MAX + 1, which could exceed 2^31 in a product."""
    values, base, words = floats_at(mine), floats_at(ours), ints_at(numbers)
    for k in range(HALF):
        first = (values[k] - base[k]) * factor + ROUNDER
        second = (values[k + HALF] - base[k + HALF]) * factor + ROUNDER
        low = bits_of(min(max(first, LOWEST), HIGHEST))
        high = bits_of(min(max(second, LOWEST), HIGHEST))
        words[k] = np.int32(low & LOW_HALF) | np.int32(high << 16)


@inlined
def quantise(
    mine: int, ours: int, blocks: int, numbers: int, exponents: int, largest: int, rows: int
) -> bool:
    """Put some blocks of one row on the grid; False if any is not finite.

    The numbers and the exponent of block b go b * rows places further on. All exponents come
    first, so that no block's exponent waits for the rounding of the block before.
    """
    powers, largests = shorts_at(exponents), ints_at(largest)
    finite = True
    for block in range(blocks):
        of_row = mine + block * BLOCK_BYTES
        prefetch_columns(of_row + BLOCKS * BLOCK_BYTES, BLOCK)
        top = largest_change(of_row, ours + block * BLOCK_BYTES)
        finite &= bool(top < NOT_FINITE)
        top = top if top < NOT_FINITE else np.int32(0)
        power = int(top >> 23) - 126
        powers[block * rows] = (power if power > EXPONENT_MIN else EXPONENT_MIN) - EXPONENT_MIN
        largests[block] = top
    for block in range(blocks):
        power = powers[block * rows] + EXPONENT_MIN
        factor = float_of(np.int32((NUMBER_BITS + 127 - power) << 23))
        of_row, of_base = mine + block * BLOCK_BYTES, ours + block * BLOCK_BYTES
        to = numbers + block * rows * NUMBERS_BYTES
        if np.int32(largests[block] & FRACTION) < FRACTION_CLAMPED:
            round_block(of_row, of_base, factor, to)
        else:
            round_block_clamped(of_row, of_base, factor, to)
    return finite


@inlined
def block_product(mine: NDArray[np.int16], theirs: NDArray[np.int16]) -> np.int32:
    """The inner product of two blocks; grid.py bounds it below 2^31."""
    total = np.int32(0)
    for k in range(BLOCK):
        total = np.int32(total + np.int32(np.int32(mine[k]) * np.int32(theirs[k])))
    return total


@inlined
def add_products(
    numbers: int, exponents: int, rows: int, first: int, sums: int, pairs: int
) -> None:
    """Add one block's products of row i >= first with row j <= i, by the power of their unit."""
    powers, totals = shorts_at(exponents), longs_at(sums)
    pair = 0
    for i in range(first, rows):
        mine = shorts_at(numbers + i * NUMBERS_BYTES)
        for j in range(i + 1):
            product = block_product(mine, shorts_at(numbers + j * NUMBERS_BYTES))
            totals[(powers[i] + powers[j]) * pairs + pair] += product
            pair += 1


@compiled(void(ADDRESSES, int64, int64, int64, int64[:, ::1], boolean[::1]))
def measure_at(
    rows: NDArray[np.int64],
    base: int,
    columns: int,
    first: int,
    sums: NDArray[np.int64],
    finite: NDArray[np.bool_],
) -> None:
    count = rows.size
    numbers = np.zeros((BLOCKS * count, BLOCK), np.int16)
    exponents = np.zeros((BLOCKS, count), np.int16)
    largest = np.zeros(BLOCKS, np.int32)
    padded = np.zeros((2, BLOCK), np.float32)  # the last columns and their base, padded to a block
    to, powers = numbers.ctypes.data, exponents.ctypes.data
    for start in range(0, columns, BLOCKS * BLOCK):
        whole = min(BLOCKS, (columns - start) // BLOCK)
        for i in range(count):
            mine = rows[i] + 4 * start
            finite[i] &= quantise(
                mine,
                base + 4 * start,
                whole,
                to + i * NUMBERS_BYTES,
                powers + 2 * i,
                largest.ctypes.data,
                count,
            )
        blocks = whole
        if whole < BLOCKS and start + whole * BLOCK < columns:
            blocks += 1
            at = start + whole * BLOCK
            for i in range(count):
                for k in range(columns - at):
                    padded[0, k] = floats_at(rows[i] + 4 * at)[k]
                    padded[1, k] = floats_at(base + 4 * at)[k]
                finite[i] &= quantise(
                    padded.ctypes.data,
                    padded.ctypes.data + BLOCK_BYTES,
                    1,
                    to + (whole * count + i) * NUMBERS_BYTES,
                    powers + 2 * (whole * count + i),
                    largest.ctypes.data,
                    count,
                )
        for block in range(blocks):
            add_products(
                to + block * count * NUMBERS_BYTES,
                powers + 2 * block * count,
                count,
                first,
                sums.ctypes.data,
                sums.shape[1],
            )


def measure(
    rows: Sequence[NDArray[np.float32]],
    base: NDArray[np.float32],
    first: int,
    sums: NDArray[np.int64],
) -> list[bool]:
    """As kernels_numpy.measure."""
    finite = np.ones(len(rows), dtype=np.bool_)
    at = addresses([*rows, base], base.shape[0])
    measure_at(at[:-1], int(at[-1]), base.shape[0], first, sums, finite)
    result: list[bool] = finite.tolist()
    return result


@inlined
def flip_order(source: int, to: int, size: int) -> None:
    """Float bits to integer keys in the order of the floats, or back: it is its own inverse."""
    bits, keys = ints_at(source), ints_at(to)
    for k in range(size):
        keys[k] = np.int32(bits[k] ^ np.int32(np.int32(bits[k] >> 31) & NO_SIGN))


@inlined
def compare_exchange(low: int, high: int) -> None:
    """The smaller key of each column to `low`, the larger to `high`."""
    lower, upper = ints_at(low), ints_at(high)
    for k in range(TILE):
        a, b = lower[k], upper[k]
        lower[k] = min(a, b)
        upper[k] = max(a, b)


@inlined
def average(values: int, stride: int, count: int, size: int, total: int, out: int) -> np.int32:
    """The mean of `count` rows in float64, first to last, rounded once; its largest magnitude."""
    sums, row, means = doubles_at(total), floats_at(values), floats_at(out)
    for k in range(size):
        sums[k] = np.float64(row[k])
    for i in range(1, count):
        row = floats_at(values + i * stride)
        for k in range(size):
            sums[k] += np.float64(row[k])
    divisor = float64(count)
    largest = np.int32(0)
    for k in range(size):
        means[k] = np.float32(sums[k] / divisor)
    for k in range(size):
        largest = max(largest, np.int32(bits_of(means[k]) & NO_SIGN))
    return largest


@compiled(boolean(ADDRESSES, COMPARATORS, int64, int64, float32[::1]))
def mean_of_middle_at(
    rows: NDArray[np.int64],
    comparators: NDArray[np.int32],
    first: int,
    last: int,
    out: NDArray[np.float32],
) -> bool:
    tile = np.zeros((rows.size, TILE), np.int32)
    total = np.zeros(TILE, np.float64)
    keys, stride = tile.ctypes.data, 4 * TILE
    largest = np.int32(0)
    for start in range(0, out.size, TILE):
        # Columns beyond the last, in a partial tile, are sorted along and not averaged.
        size = min(TILE, out.size - start)
        for i in range(rows.size):
            prefetch_columns(rows[i] + 4 * (start + TILE), TILE)
            flip_order(rows[i] + 4 * start, keys + stride * i, size)
        for pair in range(comparators.shape[0]):
            low, high = comparators[pair, 0], comparators[pair, 1]
            compare_exchange(keys + stride * low, keys + stride * high)
        for i in range(first, last + 1):
            flip_order(keys + stride * i, keys + stride * i, size)
        middle, to = keys + stride * first, int64(out.ctypes.data) + 4 * start
        top = average(middle, stride, last - first + 1, size, total.ctypes.data, to)
        largest = max(largest, top)
    return bool(largest < NOT_FINITE)


def mean_of_middle(
    rows: Sequence[NDArray[np.float32]],
    first: int,
    last: int,
    out: NDArray[np.float32],
) -> bool:
    """As kernels_numpy.mean_of_middle."""
    comparators = middle_network(len(rows), first, last)
    finite: bool = mean_of_middle_at(addresses(rows, out.shape[0]), comparators, first, last, out)
    return finite
