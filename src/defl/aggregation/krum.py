"""Krum and Multi-Krum: keep the rows that have the closest neighbours.

A row's score is the sum of its squared distances to its nearest neighbours; the `keep` rows with
the lowest scores are averaged. Scores are whole numbers and compared exactly.

Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries, NeurIPS 2017. There
the neighbours are the m - f - 2 closest *others*, and the proof needs m >= 2f + 3. DeFL counts
the m - f closest *including the row itself*, and needs m >= 3f + 3. Libraries differ further (the
distance itself instead of its square, one neighbour more or less): the golden vectors in
tests/aggregation/test_krum.py define what is meant here.

Breakdown: below a half of the rows within its condition. Without attack it costs honest outliers:
m - keep rows are always discarded.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal

from defl.aggregation.aggregate import AggregationResult, Row
from defl.aggregation.geometric import Verdict, aggregate_by
from defl.aggregation.gram import Geometry, MeasuredRows
from defl.aggregation.shares import Weighing
from defl.aggregation.workers import ALONE, Workers
from defl.errors import PreconditionBroken

Neighbours = Literal["defl", "blanchard"]


def others_counted(rows: int, faults_max: int, neighbours: Neighbours) -> int:
    """How many other rows a score sums over."""
    others = rows - faults_max - (1 if neighbours == "defl" else 2)
    least = 0 if neighbours == "defl" else 1
    if others < least:
        raise PreconditionBroken(
            f"Krum with {neighbours!r} neighbours cannot score {rows} rows with "
            f"faults_max = {faults_max}: no neighbour is left to count"
        )
    return others


def krum_scores(geometry: Geometry, others: int) -> list[int]:
    """The exact score of every row."""
    scores = []
    for i, row in enumerate(geometry.squared_distances):
        to_others = sorted(row[:i] + row[i + 1 :])
        scores.append(sum(to_others[:others]))
    return scores


def judge_krum(
    geometry: Geometry, faults_max: int, *, keep: int | None, neighbours: Neighbours
) -> Verdict:
    """Keep the rows with the lowest scores: sums of squared distances to the nearest others."""
    rows = geometry.size
    count = rows - faults_max if keep is None else keep
    if not 1 <= count <= rows - faults_max:
        raise PreconditionBroken(
            f"keep is {count}; with {rows} rows and faults_max = {faults_max} it must be 1 to "
            f"{rows - faults_max}"
        )
    others = others_counted(rows, faults_max, neighbours)
    scores = krum_scores(geometry, others)
    best = sorted(range(rows), key=lambda i: (scores[i], i))[:count]
    weights = tuple(1.0 / count if i in best else 0.0 for i in range(rows))
    return Verdict(
        weights,
        tuple(geometry.real(score) for score in scores),
        f"the mean of the {count} of {rows} updates with the smallest sum of squared distances to "
        f"their {others} nearest neighbours.",
        tuple(
            "" if i in best else f"farther from its {others} nearest neighbours than those kept"
            for i in range(rows)
        ),
    )


def multi_krum(
    rows: Sequence[Row],
    base: Row,
    faults_max: int,
    ties: Sequence[bytes],
    *,
    keep: int | None = None,
    neighbours: Neighbours = "defl",
    workers: Workers = ALONE,
    measured: MeasuredRows | None = None,
    weighing: Weighing | None = None,
) -> AggregationResult:
    """The mean of the `keep` (default m - faults_max) rows with the lowest scores."""
    return aggregate_by(
        partial(judge_krum, keep=keep, neighbours=neighbours),
        rows,
        base,
        faults_max,
        ties,
        workers=workers,
        measured=measured,
        weighing=weighing,
    )


# The one row with the lowest score, as Blanchard et al. define it.
krum = partial(multi_krum, keep=1, neighbours="blanchard")
