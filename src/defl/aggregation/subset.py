"""The mean of the m - f rows that vary least: smallest maximum eigenvalue of their covariance.

Allouah, Guerraoui, Gupta, Pinot, Stephan: On the Privacy-Robustness-Utility Trilemma, ICML 2023
(SMEA). Condition m >= 2f + 1, which is also its breakdown point. The covariance's eigenvalues are
those of the centred inner products, which follow from the distances between rows. Where there are
more subsets than SUBSETS_MAX, rows are taken out one at a time instead, each time the one that lies
farthest along the direction of the largest variance (a filter in the manner of Diakonikolas et
al., FOCS 2016, without SMEA's proof; the reason says so).
"""

from collections.abc import Sequence
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from defl.aggregation.aggregate import AggregationResult, Row
from defl.aggregation.conditions import MAJORITY
from defl.aggregation.eigen import calmest, centred, main_direction, stretch
from defl.aggregation.geometric import Verdict, aggregate_by
from defl.aggregation.gram import Geometry, MeasuredRows, below_one
from defl.aggregation.workers import ALONE, Workers

# All subsets up to n = 16 at f = 5 (4,368 of them): some tenths of a second.
SUBSETS_MAX = 5_000

Matrix = NDArray[np.float64]


def best_subset(distances: Matrix, keep: int) -> tuple[tuple[int, ...], float]:
    """Of all subsets of `keep` rows the one with the smallest largest variance, and that variance.

    Of equals, the first in the order of the rows.
    """
    subsets = list(combinations(range(len(distances)), keep))
    place, variance = calmest(distances, subsets)
    return subsets[place], variance


def filtered(distances: Matrix, keep: int) -> list[tuple[tuple[int, ...], float]]:
    """All rows, then one fewer each time, down to `keep`; each with its largest variance."""
    kept = list(range(len(distances)))
    found: list[tuple[tuple[int, ...], float]] = []
    while True:
        products = centred(distances[np.ix_(kept, kept)])
        along = main_direction(products)
        found.append((tuple(kept), stretch(products, along) / len(kept)))
        if len(kept) == keep:
            return found
        kept.pop(int(np.argmax(np.abs(along))))


def judge_subset(geometry: Geometry, faults_max: int) -> Verdict:
    size = geometry.size
    keep = size - faults_max
    squares = geometry.squared_distances
    exhaustive = comb(size, keep) <= SUBSETS_MAX
    distances = below_one(squares)
    kept, _ = best_subset(distances, keep) if exhaustive else filtered(distances, keep)[-1]
    how = "of all subsets" if exhaustive else "found by taking rows out one at a time"
    return Verdict(
        tuple(1.0 / keep if i in kept else 0.0 for i in range(size)),
        tuple(mean_square(geometry, kept, i) for i in range(size)),
        f"the mean of the {keep} of {size} updates whose largest variance is smallest, {how}.",
    )


def mean_square(geometry: Geometry, kept: Sequence[int], row: int) -> float:
    """Squared distance of a row to the mean of the kept ones, exact until the last rounding."""
    d = geometry.squared_distances
    count = len(kept)
    twice = 2 * count * sum(d[row][j] for j in kept) - sum(d[i][j] for i in kept for j in kept)
    return geometry.real(twice) / (2 * count * count)


def smallest_eigenvalue_subset(
    rows: Sequence[Row],
    base: Row,
    faults_max: int,
    ties: Sequence[bytes],
    *,
    strict: bool = False,
    workers: Workers = ALONE,
    measured: MeasuredRows | None = None,
) -> AggregationResult:
    """SMEA; a row's score is its squared distance to the aggregate."""
    return aggregate_by(
        judge_subset,
        rows,
        base,
        faults_max,
        ties,
        condition=MAJORITY,
        strict=strict,
        workers=workers,
        measured=measured,
    )
