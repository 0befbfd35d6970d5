"""SMEA: the mean of the m - f rows with the smallest maximum eigenvalue of their covariance.

Allouah, Guerraoui, Gupta, Pinot, Stephan: On the Privacy-Robustness-Utility Trilemma, ICML 2023.
Condition m >= 2f + 1, which is also its breakdown point. The covariance's eigenvalues are those of
the centred inner products, which follow from the distances between rows. Above SUBSETS_MAX subsets
rows are removed one at a time instead, each time the one farthest along the direction of the
largest variance (a filter in the manner of Diakonikolas et al., FOCS 2016, without SMEA's proof;
the reason says so).
"""

from collections.abc import Sequence
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from defl.aggregation.eigen import centred, main_direction, stretch, tightest
from defl.aggregation.geometric import Verdict
from defl.aggregation.gram import Geometry, below_one

# All subsets up to n = 16 at f = 5 (4,368 of them): some tenths of a second.
SUBSETS_MAX = 5_000

Matrix = NDArray[np.float64]


def tightest_subset(distances: Matrix, keep: int) -> tuple[tuple[int, ...], float]:
    """The subset of `keep` rows that varies least, and its largest variance.

    Among equals, the first in the order of the rows.
    """
    subsets = list(combinations(range(len(distances)), keep))
    place, variance = tightest(distances, subsets)
    return subsets[place], variance


def peeled(distances: Matrix, keep: int) -> list[tuple[tuple[int, ...], float]]:
    """All rows, then one outlier fewer each time, down to `keep`; with their largest variances."""
    kept = list(range(len(distances)))
    subsets: list[tuple[tuple[int, ...], float]] = []
    while True:
        products = centred(distances[np.ix_(kept, kept)])
        direction = main_direction(products)
        subsets.append((tuple(kept), stretch(products, direction) / len(kept)))
        if len(kept) == keep:
            return subsets
        kept.pop(int(np.argmax(np.abs(direction))))


def judge_subset(geometry: Geometry, faults_max: int) -> Verdict:
    """SMEA; a row's score is its squared distance to the aggregate."""
    size = geometry.size
    keep = size - faults_max
    exhaustive = comb(size, keep) <= SUBSETS_MAX
    distances = below_one(geometry.squared_distances)
    kept, _ = tightest_subset(distances, keep) if exhaustive else peeled(distances, keep)[-1]
    search = "of all subsets" if exhaustive else "found by removing outliers one at a time"
    return Verdict(
        tuple(1.0 / keep if i in kept else 0.0 for i in range(size)),
        squares_to_mean(geometry, kept),
        f"the mean of the {keep} of {size} updates with the smallest largest variance, {search}.",
        tuple(
            "" if i in kept else f"not one of the {keep} updates that vary least together"
            for i in range(size)
        ),
    )


def squares_to_mean(geometry: Geometry, kept: Sequence[int]) -> tuple[float, ...]:
    """Squared distances of all rows to the mean of the kept ones, exact until the last rounding."""
    count = len(kept)
    to_kept = [sum(row[j] for j in kept) for row in geometry.squared_distances]
    among_kept = sum(to_kept[i] for i in kept)
    return tuple(
        geometry.real(2 * count * each - among_kept) / (2 * count * count) for each in to_kept
    )
