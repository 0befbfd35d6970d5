"""Nearest-neighbour mixing: replace every row by the mean of its m - f nearest, then any rule.

Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan: Fixing by Mixing, AISTATS 2023. Brings the
honest rows closer together, which is what makes other rules fail under heterogeneous data.
Condition m >= 2f + 1 and that of the rule behind it. The nearest of a row include itself.
"""

from collections.abc import Sequence
from math import inf

import numpy as np

from defl.aggregation.aggregate import AggregationResult, Row, weighted_sum
from defl.aggregation.conditions import MAJORITY, check_round
from defl.aggregation.coordinate import (
    Middle,
    middle_mean,
    middle_of_trimmed,
    sampled,
    shares,
)
from defl.aggregation.geometric import (
    Judge,
    Verdict,
    admit,
    aggregate_by,
    measure,
    placed,
    sentences,
)
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
    """What weights of mixed rows mean for the rows that were mixed."""
    result = [0.0] * len(groups)
    for weight, group in zip(weights, groups, strict=True):
        for j in group:
            result[j] += weight / len(group)
    return tuple(result)


def mixing_judge(behind: Judge) -> Judge:
    """Mixing in front of a geometric rule, on the geometry alone."""

    def judge(geometry: Geometry, faults_max: int) -> Verdict:
        groups = nearest(geometry, geometry.size - faults_max)
        verdict = behind(geometry.mixed(groups), faults_max)
        return Verdict(
            unmixed(verdict.weights, groups),
            verdict.scores,
            f"Every update mixed with its {len(groups[0]) - 1} nearest, then {verdict.reason}",
        )

    return judge


def nearest_neighbour_mixing(
    rows: Sequence[Row],
    base: Row,
    faults_max: int,
    ties: Sequence[bytes],
    *,
    behind: Judge | None = None,
    middle: Middle = middle_of_trimmed,
    strict: bool = False,
    workers: Workers = ALONE,
    measured: MeasuredRows | None = None,
) -> AggregationResult:
    """Mixing in front of a geometric rule's judge (`behind`) or of a coordinate-wise rule, by
    default the trimmed mean; scores are those of the mixed rows."""
    if behind is not None:
        return aggregate_by(
            mixing_judge(behind),
            rows,
            base,
            faults_max,
            ties,
            condition=MAJORITY,
            strict=strict,
            workers=workers,
            measured=measured,
        )
    check_round(rows, base, faults_max, ties)
    outside = MAJORITY.check(len(rows), faults_max, strict=strict)
    admitted = admit(measured or measure(rows, base, workers), faults_max, ties)
    groups = nearest(admitted.geometry, admitted.geometry.size - admitted.faults_max)
    size = len(groups)
    places = middle(size, admitted.faults_max)
    flat = [plain(rows[i]) for i in admitted.order]
    mixers = [[1.0 / len(group) if j in group else 0.0 for j in range(size)] for group in groups]

    def mixed(part: slice) -> list[Row]:
        columns = [row[part] for row in flat]
        return [weighted_sum(columns, mixer) for mixer in mixers]

    values = middle_mean(mixed, size, base.shape[0], places, workers=workers)
    few = list(sampled(flat))
    mixed_few = np.stack([weighted_sum(few, mixer) for mixer in mixers])
    weights, cut = shares(mixed_few, places)
    said = (
        f"every update mixed with its {len(groups[0]) - 1} nearest, then the mean of the sorted "
        f"places {places[0]} to {places[1]} of {size} of every coordinate."
    )
    return AggregationResult(
        values,
        placed(unmixed(weights, groups), admitted.order, len(rows), 0.0),
        placed(cut, admitted.order, len(rows), inf),
        sentences(said, admitted.words, outside),
    )
