"""Weighted sums of rows, compiled: a part of kernels_numba.py."""

from collections.abc import Sequence

import numpy as np
from numba import float32, float64, int32, int64, types, void
from numpy.typing import NDArray

from defl.aggregation.compiling import compiled, inlined
from defl.aggregation.pointers import (
    ADDRESSES,
    addresses,
    aligned,
    doubles_at,
    floats_at,
    ints_at,
    prefetch_columns,
)

# Columns summed at a time. The sums of few rows stay in the nearest cache (4 KB of float64); many
# rows are read faster in longer runs.
SUMMED_FEW = 1 << 9
SUMMED_MANY = 1 << 13
FEW = 8  # rows
TILE = 128  # columns of all rows that are mixed at a time: 50 KB of float64 at 50 rows
TILE_BYTES = 8 * TILE

GROUPS = types.Array(int32, 2, "C", readonly=True)


@inlined
def add_four(
    rows: NDArray[np.int64], weights: NDArray[np.float64], offset: int, size: int, total: int
) -> None:
    a, b = floats_at(rows[0] + offset), floats_at(rows[1] + offset)
    c, d = floats_at(rows[2] + offset), floats_at(rows[3] + offset)
    of_a, of_b, of_c, of_d = weights[0], weights[1], weights[2], weights[3]
    sums = doubles_at(total)
    for k in range(size):
        two = (sums[k] + np.float64(a[k]) * of_a) + np.float64(b[k]) * of_b
        sums[k] = (two + np.float64(c[k]) * of_c) + np.float64(d[k]) * of_d


@compiled(void(ADDRESSES, float64[::1], float32[::1]))
def weighted_sum_at(
    rows: NDArray[np.int64], weights: NDArray[np.float64], out: NDArray[np.float32]
) -> None:
    summed = SUMMED_FEW if rows.size <= FEW else SUMMED_MANY
    buffer = np.zeros(summed, np.float64)
    total = doubles_at(buffer.ctypes.data)
    for start in range(0, out.size, summed):
        size = min(summed, out.size - start)
        first = floats_at(rows[0] + 4 * start)
        for k in range(size):
            total[k] = np.float64(first[k]) * weights[0]
        done = 1
        while done + 4 <= rows.size:
            add_four(rows[done:], weights[done:], 4 * start, size, buffer.ctypes.data)
            done += 4
        for i in range(done, rows.size):
            row = floats_at(rows[i] + 4 * start)
            for k in range(size):
                total[k] += np.float64(row[k]) * weights[i]
        to = floats_at(out.ctypes.data + 4 * start)
        for k in range(size):
            to[k] = np.float32(total[k])


def weighted_sum(
    rows: Sequence[NDArray[np.float32]], weights: Sequence[float], out: NDArray[np.float32]
) -> None:
    """As kernels_numpy.weighted_sum."""
    weighted_sum_at(addresses(rows, out.shape[0]), np.array(weights, dtype=np.float64), out)


@inlined
def sum_group(group: int, count: int, scaled: int, total: int) -> None:
    """Sum a tile of the rows whose indices are at `group`, first to last, four at a time."""
    rows, sums = ints_at(group), doubles_at(total)
    first = doubles_at(scaled + rows[0] * TILE_BYTES)
    for k in range(TILE):
        sums[k] = first[k]
    done = 1
    while done + 4 <= count:
        a = doubles_at(scaled + rows[done] * TILE_BYTES)
        b = doubles_at(scaled + rows[done + 1] * TILE_BYTES)
        c = doubles_at(scaled + rows[done + 2] * TILE_BYTES)
        d = doubles_at(scaled + rows[done + 3] * TILE_BYTES)
        for k in range(TILE):
            sums[k] = (((sums[k] + a[k]) + b[k]) + c[k]) + d[k]
        done += 4
    while done < count:
        row = doubles_at(scaled + rows[done] * TILE_BYTES)
        for k in range(TILE):
            sums[k] += row[k]
        done += 1


@compiled(void(ADDRESSES, GROUPS, float64, float32[:, ::1]))
def group_means_at(
    rows: NDArray[np.int64], groups: NDArray[np.int32], share: float, out: NDArray[np.float32]
) -> None:
    columns, count = out.shape[1], groups.shape[1]
    buffer = np.zeros((rows.size + 2, TILE), np.float64)
    total = aligned(buffer.ctypes.data)
    scaled = total + TILE_BYTES
    for start in range(0, columns, TILE):
        # Columns beyond the last, in a partial tile, are summed along and not written.
        size = min(TILE, columns - start)
        for i in range(rows.size):
            prefetch_columns(rows[i] + 4 * (start + TILE), TILE)
            row, to = floats_at(rows[i] + 4 * start), doubles_at(scaled + i * TILE_BYTES)
            for k in range(size):
                to[k] = np.float64(row[k]) * share
        for group in range(groups.shape[0]):
            sum_group(int64(groups.ctypes.data) + 4 * group * count, count, scaled, total)
            sums = doubles_at(total)
            means = floats_at(int64(out.ctypes.data) + 4 * (group * columns + start))
            for k in range(size):
                means[k] = np.float32(sums[k])


def group_means(
    rows: Sequence[NDArray[np.float32]],
    groups: NDArray[np.int32],
    share: float,
    out: NDArray[np.float32],
) -> None:
    """As kernels_numpy.group_means."""
    group_means_at(addresses(rows, out.shape[1]), groups, share, out)
