"""Exact inner products of the changes of one round: all that geometric rules look at.

Changes are rounded to the grid of grid.py; from there on everything is integers, hence the same on
every machine and in every order. Rows can be added one by one while updates arrive.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from defl.aggregation import kernels
from defl.aggregation.grid import COLUMNS_MAX, SUMS_PER_PAIR, UNIT_POWER, new_pairs
from defl.aggregation.workers import ALONE, Workers
from defl.errors import PreconditionBroken


@dataclass(frozen=True)
class Geometry:
    """All inner products of the rows' changes, exact, in units of 2^UNIT_POWER."""

    products: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        return len(self.products)

    @cached_property
    def squared_distances(self) -> tuple[tuple[int, ...], ...]:
        g = self.products
        every = range(self.size)
        return tuple(tuple(g[i][i] + g[j][j] - 2 * g[i][j] for j in every) for i in every)

    def taken(self, order: Sequence[int]) -> "Geometry":
        """The geometry of some of the rows, in this order."""
        return Geometry(tuple(tuple(self.products[i][j] for j in order) for i in order))

    def real(self, amount: int) -> float:
        """A number of units as a float64, rounded once."""
        return amount / (1 << -UNIT_POWER)


def below_one(matrix: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """The matrix in float64, divided by the power of two that brings its largest entry below 1."""
    power = max((abs(entry).bit_length() for row in matrix for entry in row), default=0)
    return np.array([[entry / (1 << power) for entry in row] for row in matrix])


@dataclass(frozen=True)
class MeasuredRows:
    """The geometry of a round's rows and which of them are finite, in member order."""

    geometry: Geometry
    finite: tuple[bool, ...]


class Gram:
    """Accumulates the products of rows against one base as the rows arrive.

    Rows are kept by reference (a mapped file will do), never copied. Only the columns `counted`
    (default: all) enter the products; a row counts as finite only if all its columns are.
    """

    def __init__(
        self,
        base: NDArray[np.float32],
        *,
        counted: Sequence[slice] | None = None,
        workers: Workers = ALONE,
        loops: ModuleType | None = None,
    ) -> None:
        if base.shape[0] > COLUMNS_MAX:
            raise PreconditionBroken(
                f"{base.shape[0]} columns; sums are exact up to {COLUMNS_MAX} columns"
            )
        self.base = plain(base)
        self.rows: list[NDArray[np.float32]] = []
        self.finite: list[bool] = []
        self._counted = [slice(0, base.shape[0])] if counted is None else list(counted)
        self._workers = workers
        self._loops = loops
        self._sums: list[list[int]] = []

    def add(self, rows: Sequence[NDArray[np.float32]]) -> None:
        """Add one row or several; only products with the new ones are computed."""
        first = len(self.rows)
        for row in rows:
            if row.shape != self.base.shape or row.dtype != np.float32:
                raise PreconditionBroken(
                    f"a row of {row.shape} {row.dtype} does not match the base's {self.base.shape}"
                    " float32"
                )
            self.rows.append(plain(row))
        parts = self._workers.gather(lambda lane: self._part(lane, first))
        self.finite += [True] * len(rows)
        for _, finite in parts:
            self.finite = [both and one for both, one in zip(self.finite, finite, strict=True)]
        products = joined([sums for sums, _ in parts])
        self._sums += [[] for _ in rows]
        for (i, j), product in zip(new_pairs(first, len(self.rows)), products, strict=True):
            self._sums[i].append(product if self.finite[i] and self.finite[j] else 0)

    def _part(self, lane: int, first: int) -> tuple[NDArray[np.int64], list[bool]]:
        count = len(self.rows)
        loops = self._loops or kernels.best(count * self.base.shape[0])
        width = loops.columns_per_pass(count)
        pairs = sum(range(first + 1, count + 1))
        sums = np.zeros((SUMS_PER_PAIR, pairs), dtype=np.int64)
        finite = [True] * count
        for part in self._passes(width, lane):
            columns = [row[part] for row in self.rows]
            here = loops.measure(columns, self.base[part], first, sums)
            finite = [both and one for both, one in zip(finite, here, strict=True)]
        for part in self._workers.passes(self.base.shape[0], width, lane):
            if self._counted != [slice(0, self.base.shape[0])]:
                for i, row in enumerate(self.rows):
                    finite[i] &= bool(np.isfinite(row[part]).all())
        return sums, finite

    def _passes(self, width: int, lane: int) -> Iterable[slice]:
        for piece in self._counted:
            for part in self._workers.passes(piece.stop - piece.start, width, lane):
                yield slice(piece.start + part.start, piece.start + part.stop)

    def measured(self, order: Sequence[int] | None = None) -> MeasuredRows:
        """The measured rows, in the order of arrival or in the order given."""
        chosen = range(len(self.rows)) if order is None else order
        return MeasuredRows(
            Geometry(
                tuple(tuple(self._sums[max(i, j)][min(i, j)] for j in chosen) for i in chosen)
            ),
            tuple(self.finite[i] for i in chosen),
        )


def joined(parts: Sequence[NDArray[np.int64]]) -> list[int]:
    """Join the parts' sums, kept apart by the power of their unit, into one integer per pair."""
    totals = [0] * parts[0].shape[1]
    for sums in parts:
        powers, pairs = np.nonzero(sums)
        amounts = sums[powers, pairs]
        for power, pair, amount in zip(
            powers.tolist(), pairs.tolist(), amounts.tolist(), strict=True
        ):
            totals[pair] += amount << power
    return totals


def plain(row: NDArray[np.float32]) -> NDArray[np.float32]:
    """A contiguous plain array, not a subclass such as memmap; copies only a strided row."""
    return np.ascontiguousarray(row).view(np.ndarray)
