"""Nearest-neighbour mixing: replace every row by the mean of its m - f nearest, then trim.

Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan: Fixing by Mixing, AISTATS 2023. Mixing
brings the honest rows closer together; their distance under heterogeneous data is what makes other
rules fail. Condition m >= 2f + 1. The nearest rows of a row include itself. The paper mixes before
any rule; here it is the trimmed mean.

Rows with the same neighbours have the same mixed row, which is computed once. If m - f rows or
more have the same neighbours (honest rows far from f attackers, say), their mixed row fills every
place of the sorted column that trimming keeps: it is the result, and nothing needs sorting.
"""

from collections import Counter
from collections.abc import Sequence
from math import inf

import numpy as np

from defl.aggregation import kernels
from defl.aggregation.aggregate import AggregationResult, Row, weighted_sum
from defl.aggregation.coordinate import middle_mean, sampled, shares, trimmed_places
from defl.aggregation.geometric import finite_rows, measure, placed, sentences
from defl.aggregation.gram import Geometry, MeasuredRows, plain
from defl.aggregation.workers import ALONE, Workers

Group = tuple[int, ...]  # the nearest rows of a row, in the order of the rows


def nearest(geometry: Geometry, count: int) -> list[Group]:
    """For every row its `count` nearest rows, itself included."""
    groups = []
    for i, row in enumerate(geometry.squared_distances):
        by_distance = sorted(range(geometry.size), key=lambda j: (row[j], j != i, j))
        groups.append(tuple(sorted(by_distance[:count])))
    return groups


class Mixer:
    """Mixes columns of rows by their groups."""

    def __init__(self, groups: Sequence[Group]) -> None:
        distinct = list(dict.fromkeys(groups))
        self._distinct = np.array(distinct, dtype=np.int32)
        self._places = [distinct.index(group) for group in groups]
        self._share = 1.0 / len(groups[0])

    def mixed(self, columns: Sequence[Row]) -> list[Row]:
        """The mixed rows; those with equal groups are one array."""
        means = np.empty((len(self._distinct), columns[0].shape[0]), dtype=np.float32)
        loops = kernels.best(len(columns) * columns[0].shape[0])
        loops.group_means(columns, self._distinct, self._share, means)
        return [means[place] for place in self._places]


def unmixed(weights: Sequence[float], groups: Sequence[Group]) -> tuple[float, ...]:
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
    mixer = Mixer(groups)
    common, sharing = Counter(groups).most_common(1)[0]
    if sharing >= size - judged.faults_max:
        values = weighted_sum(
            [flat[j] for j in common], [1.0 / len(common)] * len(common), workers=workers
        )
    else:
        values = middle_mean(
            lambda part: mixer.mixed([row[part] for row in flat]),
            size,
            base.shape[0],
            places,
            workers=workers,
        )
    weights, cut = shares(np.stack(mixer.mixed(list(sampled(flat)))), places)
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
