"""The directions and the lengths of a round's changes, judged apart.

How far a member trains in a round says how many steps it took, not whether it is honest. So the
default rule compares directions, and shortens what is long.
"""

from collections.abc import Collection, Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from defl.aggregation.gram import Geometry

AGREES_FROM = 20  # a cosine of at least one twentieth
GROSS = 3  # times the reference length
REACH = 2  # times the reference length: how far a row that agrees may go
TIMES_SHOWN = 1000


class Directions:
    """The rows of a round, of which faults_max may be Byzantine."""

    def __init__(self, geometry: Geometry, faults_max: int) -> None:
        self._geometry = geometry
        self._squares = [geometry.products[i][i] for i in range(self.size)]
        # Never above the longest honest change.
        self._reference = sorted(self._squares)[self.size - faults_max - 1]
        self._agree = [self._agrees(i) for i in range(self.size)]
        lengths = [sqrt(geometry.real(square)) for square in self._squares]
        self._cosines = [
            [self._cosine(lengths, i, j) for j in range(self.size)] for i in range(self.size)
        ]

    @property
    def size(self) -> int:
        return self._geometry.size

    def agrees(self, i: int) -> bool:
        """Whether the row points the same way as at least half of the rows, itself not counted."""
        return self._agree[i]

    def _agrees(self, i: int) -> bool:
        products, squares = self._geometry.products[i], self._squares
        with_others = sum(
            products[j] > 0 and AGREES_FROM**2 * products[j] ** 2 >= squares[i] * squares[j]
            for j in range(self.size)
            if j != i
        )
        return 2 * with_others >= self.size

    def _cosine(self, lengths: Sequence[float], i: int, j: int) -> float:
        """0 with a row of no length: it is a direction of its own."""
        both = lengths[i] * lengths[j]
        if i == j or both == 0:
            return float(i == j)
        return max(-1.0, min(1.0, self._geometry.real(self._geometry.products[i][j]) / both))

    def has_no_length(self, i: int) -> bool:
        return self._squares[i] == 0

    def longer(self, i: int) -> str:
        """Return as text how much longer the row is than the reference."""
        if self._reference == 0:
            return "longer than most, which have no length"
        times = sqrt(self._squares[i] / self._reference)
        return f"{times:.1f} times longer" if times < TIMES_SHOWN else "thousands of times longer"

    def gross(self, faults_max: int) -> list[int]:
        """The rows that are long and do not agree, at most faults_max, the longest first."""
        found = [
            i
            for i, square in enumerate(self._squares)
            if square > GROSS**2 * self._reference and not self._agree[i]
        ]
        return sorted(found, key=lambda i: (-self._squares[i], i))[:faults_max]

    def shortening(self, i: int) -> float:
        """Return the factor that shortens the row to REACH references if it agrees, else to one."""
        reach = REACH if self._agree[i] else 1
        if self._squares[i] <= reach**2 * self._reference:
            return 1.0
        return reach * sqrt(self._reference / self._squares[i])

    def distances(self, rows: Sequence[int]) -> NDArray[np.float64]:
        """Squared distances between the directions of these rows."""
        return np.array([[2.0 - 2.0 * self._cosines[i][j] for j in rows] for i in rows])

    def cosines_with(self, inliers: Collection[int]) -> list[float]:
        """The cosine between each row and the sum of the directions of the inliers except itself.

        0 for a row of no length.
        """
        with_inliers = [sum(row[j] for j in inliers) for row in self._cosines]
        square = sum(with_inliers[i] for i in inliers)
        result = []
        for i, inner in enumerate(with_inliers):
            own = i in inliers
            others = inner - 1.0 if own else inner
            length = square - 2.0 * inner + 1.0 if own else square
            result.append(others / sqrt(length) if length > 0 and self._squares[i] else 0.0)
        return result
