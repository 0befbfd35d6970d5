"""The inner loops over columns in plain NumPy: what kernels_numba.py must equal bit for bit.

Only elementwise IEEE arithmetic and exact integers belong here, so that no BLAS kernel, SIMD
width or order of summation can show in a result.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from defl.aggregation import eigen_numpy
from defl.aggregation.grid import (
    BLOCK,
    EXPONENT_MIN,
    NOT_FINITE,
    NUMBER_BITS,
    NUMBER_MAX,
    ROUNDER,
    new_pairs,
)
from defl.aggregation.network import middle_network

NAME = "numpy"
EIGEN = eigen_numpy  # the loops over small matrices
NUMBERS_PER_PASS = 1 << 19  # whole numbers held at a time by one worker, as float64: 4 MB
COLUMNS_PER_PASS_MAX = 1 << 17  # enough to hide the cost of a call, small enough for the caches


def columns_per_pass(rows: int) -> int:
    """How many columns of that many rows to pass at a time; a multiple of BLOCK."""
    fitting = NUMBERS_PER_PASS // max(1, rows) // BLOCK * BLOCK
    return max(BLOCK, min(COLUMNS_PER_PASS_MAX, fitting))


def measure(
    rows: Sequence[NDArray[np.float32]],
    base: NDArray[np.float32],
    first: int,
    sums: NDArray[np.int64],
) -> list[bool]:
    """Put all rows on the grid and add the products of row i >= first with row j <= i to `sums`.

    `sums` has a column per pair, in the order of i and then j, and a row per power of the unit: so
    the sums that the pairs of a block add to lie side by side, since its powers differ little.
    Returns which rows are finite; what is added for the others is meaningless.
    """
    blocks = -(-base.shape[0] // BLOCK)
    numbers = np.empty((len(rows), blocks * BLOCK), dtype=np.int16)
    exponents = np.empty((len(rows), blocks), dtype=np.int16)
    finite = [
        quantise(row, base, own_numbers, own_exponents)
        for row, own_numbers, own_exponents in zip(rows, numbers, exponents, strict=True)
    ]
    add_products(numbers, exponents, first, sums)
    return finite


def quantise(
    values: NDArray[np.float32],
    base: NDArray[np.float32],
    numbers: NDArray[np.int16],
    exponents: NDArray[np.int16],
) -> bool:
    """The change `values - base` on the grid of grid.py; False if it is not finite."""
    blocks = exponents.shape[0]
    change = np.zeros(blocks * BLOCK, dtype=np.float32)
    with np.errstate(all="ignore"):  # an overflow or a NaN shows in the bits below
        np.subtract(values, base, out=change[: values.shape[0]])
    largest = (change.view(np.int32) & 0x7FFFFFFF).reshape(blocks, BLOCK).max(axis=1)
    finite = bool((largest < NOT_FINITE).all())
    if not finite:
        change[:] = 0
        largest[:] = 0
    power = np.maximum((largest >> 23) - 126, EXPONENT_MIN)
    exponents[:] = power - EXPONENT_MIN
    scale = ((NUMBER_BITS + 127 - power) << 23).astype(np.int32).view(np.float32)
    scaled = change.reshape(blocks, BLOCK)
    with np.errstate(under="ignore"):
        scaled *= scale[:, None]
    np.clip(scaled, -NUMBER_MAX, NUMBER_MAX, out=scaled)
    scaled += ROUNDER
    scaled -= ROUNDER
    numbers[:] = change
    return finite


def add_products(
    numbers: NDArray[np.int16], exponents: NDArray[np.int16], first: int, sums: NDArray[np.int64]
) -> None:
    """Add every block's products of row i >= first with row j <= i, by the power of their unit."""
    rows, blocks = exponents.shape
    lowest = exponents.min(axis=1).astype(np.int32)
    spread = exponents - lowest[:, None]
    # One product over all blocks of the pass if every partial sum stays below 2^53, where float64
    # is exact in any order; otherwise block by block.
    if 2 * (NUMBER_BITS + int(spread.max())) + (numbers.shape[1] - 1).bit_length() <= 53:
        wide = numbers.reshape(rows, blocks, BLOCK) * np.ldexp(1.0, spread)[:, :, None]
        flat = wide.reshape(rows, blocks * BLOCK)
        products = (flat[first:] @ flat.T).astype(np.int64)
        for pair, (i, j) in enumerate(new_pairs(first, rows)):
            sums[lowest[i] + lowest[j], pair] += products[i - first, j]
        return
    cut = numbers.reshape(rows, blocks, BLOCK).transpose(1, 0, 2).astype(np.float64)
    products = (cut[:, first:] @ cut.transpose(0, 2, 1)).astype(np.int64)
    power = exponents.astype(np.int64)
    for pair, (i, j) in enumerate(new_pairs(first, rows)):
        np.add.at(sums[:, pair], power[i] + power[j], products[:, i - first, j])


def weighted_sum(
    rows: Sequence[NDArray[np.float32]], weights: Sequence[float], out: NDArray[np.float32]
) -> None:
    """The sum of rows times weights in float64, in row order, rounded once."""
    total = rows[0].astype(np.float64) * weights[0]
    for row, weight in zip(rows[1:], weights[1:], strict=True):
        total += row.astype(np.float64) * weight
    with np.errstate(over="ignore", under="ignore"):
        out[:] = total


def group_means(
    rows: Sequence[NDArray[np.float32]],
    groups: NDArray[np.int32],
    share: float,
    out: NDArray[np.float32],
) -> None:
    """For each group (the indices of its rows) the sum of rows times `share`, as weighted_sum."""
    scaled = [row.astype(np.float64) * share for row in rows]
    for group, mean in zip(groups.tolist(), out, strict=True):
        total = scaled[group[0]].copy()
        for i in group[1:]:
            total += scaled[i]
        with np.errstate(over="ignore", under="ignore"):
            mean[:] = total


def mean_of_middle(
    rows: Sequence[NDArray[np.float32]],
    first: int,
    last: int,
    out: NDArray[np.float32],
) -> bool:
    """Sort each column and average its places first..last, smallest first; False if not finite.

    As integers, the bits of floats (the lower 31 flipped for negative ones) sort like the floats;
    a NaN lies beyond the infinity of its sign.
    """
    bits = np.stack(rows).view(np.int32)
    keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    for i, j in middle_network(len(rows), first, last).tolist():
        low = np.minimum(keys[i], keys[j])
        np.maximum(keys[i], keys[j], out=keys[j])
        keys[i] = low
    kept = keys[first : last + 1]
    values = (kept ^ ((kept >> 31) & 0x7FFFFFFF)).view(np.float32)
    with np.errstate(all="ignore"):  # the caller refuses what is not finite
        total = values[0].astype(np.float64)
        for place in values[1:]:
            total += place
        total /= last - first + 1
        out[:] = total
    return bool(np.isfinite(out).all())
