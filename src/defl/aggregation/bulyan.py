"""Bulyan: choose m - 2f rows by repeated Krum, then average near the median of each coordinate.

El Mhamdi, Guerraoui, Rouault: The Hidden Vulnerability of Distributed Learning in Byzantium, ICML
2018. Needs m >= 4f + 3 and refuses less: with f = (n - 1) / 3 it can never be used. Breakdown
point: below a quarter. The last choices are made among 2f + 1 rows, where Blanchard's count of
neighbours (rows - f - 2) is 0 for f = 1; so the rows - f closest including itself are counted.
"""

from collections.abc import Sequence
from math import inf

import numpy as np

from defl.aggregation.aggregate import AggregationResult, Row
from defl.aggregation.conditions import BULYAN, check_round
from defl.aggregation.geometric import admit, measure, placed, sentences
from defl.aggregation.gram import Geometry, MeasuredRows, plain
from defl.aggregation.krum import krum_scores, others_counted
from defl.aggregation.workers import ALONE, Workers

COLUMNS_PER_PASS = 1 << 14


def chosen_by_krum(geometry: Geometry, faults_max: int, count: int) -> list[int]:
    """Krum's winner, again and again among the rest."""
    left = list(range(geometry.size))
    chosen: list[int] = []
    while len(chosen) < count:
        rest = geometry.taken(left)
        scores = krum_scores(rest, others_counted(rest.size, faults_max, "defl"))
        best = min(range(rest.size), key=lambda i: (scores[i], i))
        chosen.append(left.pop(best))
    return chosen


def near_median(values: np.ndarray, count: int) -> Row:
    """The mean of the `count` values of each column that are nearest to its median.

    They stand side by side in the sorted column: the window moves up while the next value above
    is nearer to the median than its lowest.
    """
    ordered = np.sort(values, axis=0).astype(np.float64)
    size = len(ordered)
    median = (ordered[(size - 1) // 2] + ordered[size // 2]) / 2
    start = np.zeros(values.shape[1], dtype=np.int64)
    for k in range(size - count):
        up = (start == k) & (ordered[k + count] - median < median - ordered[k])
        start += up
    total = np.zeros(values.shape[1], dtype=np.float64)
    for k in range(count):
        total += np.take_along_axis(ordered, (start + k)[None, :], axis=0)[0]
    return (total / count).astype(np.float32)


def bulyan(
    rows: Sequence[Row],
    base: Row,
    faults_max: int,
    ties: Sequence[bytes],
    *,
    strict: bool = True,
    workers: Workers = ALONE,
    measured: MeasuredRows | None = None,
) -> AggregationResult:
    """Bulyan over Krum; a row's score is its Krum score, its weight its share in the chosen."""
    check_round(rows, base, faults_max, ties)
    del strict  # outside its condition Bulyan has nothing left to average: always refused
    BULYAN.check(len(rows), faults_max, strict=True)
    admitted = admit(measured or measure(rows, base, workers), faults_max, ties)
    size, faults = admitted.geometry.size, admitted.faults_max
    chosen = chosen_by_krum(admitted.geometry, faults, size - 2 * faults)
    scores = krum_scores(admitted.geometry, others_counted(size, faults, "defl"))
    flat = [plain(rows[admitted.order[i]]) for i in chosen]
    values = np.empty(base.shape[0], dtype=np.float32)
    nearest_count = size - 4 * faults

    def work(lane: int) -> None:
        for part in workers.passes(base.shape[0], COLUMNS_PER_PASS, lane):
            values[part] = near_median(np.stack([row[part] for row in flat]), nearest_count)

    workers.gather(work)
    share = 1.0 / len(chosen)
    return AggregationResult(
        values,
        placed(
            [share if i in chosen else 0.0 for i in range(size)], admitted.order, len(rows), 0.0
        ),
        placed([admitted.geometry.real(s) for s in scores], admitted.order, len(rows), inf),
        sentences(
            f"in every coordinate the mean of the {nearest_count} values nearest to the median of "
            f"the {len(chosen)} updates that Krum chose one after the other.",
            admitted.words,
        ),
    )
