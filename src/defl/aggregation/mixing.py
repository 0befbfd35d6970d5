"""Nearest-neighbour mixing: replace every row by the mean of its m - f nearest, then trim.

Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan: Fixing by Mixing, AISTATS 2023. Mixing
brings the honest rows closer together; their distance under heterogeneous data is what makes other
rules fail. Condition m >= 2f + 1. The nearest rows of a row include itself. The paper mixes before
any rule; here it is the trimmed mean.
"""

from collections.abc import Sequence
from math import inf

import numpy as np

from defl.aggregation.aggregate import AggregationResult, Row, weighted_sum
from defl.aggregation.coordinate import middle_mean, sampled, shares, trimmed_places
from defl.aggregation.geometric import finite_rows, measure, placed, sentences
from defl.aggregation.gram import Geometry, MeasuredRows, plain
from defl.aggregation.workers import ALONE, Workers


def nearest(geometry: Geometry, count: int) -> list[list[int]]:
    """For every row its `count` nearest rows, itself included, in the order of the rows."""
    groups = []
    for i, row in enumerate(geometry.squared_distances):
        by_distance = sorted(range(geometry.size), key=lambda j: (row[j], j != i, j))
        groups.append(sorted(by_distance[:count]))
    return groups


def unmixed(weights: Sequence[float], groups: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """The weights of the original rows that follow from the weights of the mixed ones."""
    result = [0.0] * len(groups)
    for weight, group in zip(weights, groups, strict=True):
        for j in group:
            result[j] += weight / len(group)
    return tuple(result)


def nearest_neighbour_mixing(
    rows: Sequence[Row],
    base: Row,
    faults_max: int,
    ties: Sequence[bytes],
    *,
    workers: Workers = ALONE,
    measured: MeasuredRows | None = None,
) -> AggregationResult:
    """The trimmed mean of the mixed rows, whose scores these are."""
    judged = finite_rows(measured or measure(rows, base, workers), faults_max, ties)
    groups = nearest(judged.geometry, judged.geometry.size - judged.faults_max)
    size = len(groups)
    places = trimmed_places(size, judged.faults_max)
    flat = [plain(rows[i]) for i in judged.order]
    mixers = [[1.0 / len(group) if j in group else 0.0 for j in range(size)] for group in groups]

    def mixed(part: slice) -> list[Row]:
        columns = [row[part] for row in flat]
        return [weighted_sum(columns, mixer) for mixer in mixers]

    values = middle_mean(mixed, size, base.shape[0], places, workers=workers)
    sample = list(sampled(flat))
    weights, cut = shares(np.stack([weighted_sum(sample, mixer) for mixer in mixers]), places)
    reason = (
        f"every update mixed with its {len(groups[0]) - 1} nearest, then the mean of every "
        f"coordinate without the {judged.faults_max} smallest and largest values."
    )
    return AggregationResult(
        values,
        placed(unmixed(weights, groups), judged.order, len(rows), 0.0),
        placed(cut, judged.order, len(rows), inf),
        sentences(reason, judged.notice),
    )
