"""The mean: every row counts the same, or by a count of samples that the federation bounds.

McMahan et al., AISTATS 2017 (FedAvg). Tolerates no Byzantine row: one is enough to move the
aggregate anywhere. It is the yardstick for a round without attackers. A count that a node reports
about itself is a claim: it weighs at most `count_max`, and the reason names whose claim was cut.
"""

from collections.abc import Sequence

from defl.aggregation.aggregate import AggregationResult, Row, weighted_sum
from defl.aggregation.conditions import NO_FAULT, check_round
from defl.aggregation.geometric import sentences
from defl.aggregation.gram import plain
from defl.aggregation.workers import ALONE, Workers
from defl.errors import PreconditionBroken


def fed_avg(
    rows: Sequence[Row],
    base: Row,
    faults_max: int,
    ties: Sequence[bytes],
    *,
    counts: Sequence[int] | None = None,
    count_max: int | None = None,
    strict: bool = False,
    workers: Workers = ALONE,
) -> AggregationResult:
    """The plain mean, or the mean by `counts`, of which none weighs more than `count_max`."""
    check_round(rows, base, faults_max, ties)
    outside = NO_FAULT.check(len(rows), faults_max, strict=strict)
    if counts is None:
        weights = (1.0 / len(rows),) * len(rows)
        said = f"the plain mean of all {len(rows)} updates."
    else:
        weights, said = by_counts(counts, count_max, len(rows))
    values = weighted_sum([plain(row) for row in rows], weights, workers=workers)
    return AggregationResult(values, weights, (0.0,) * len(rows), sentences(said, outside))


def by_counts(
    counts: Sequence[int], count_max: int | None, rows: int
) -> tuple[tuple[float, ...], str]:
    if count_max is None or count_max < 1:
        raise PreconditionBroken("counts are claims of the nodes: give count_max, at least 1")
    if len(counts) != rows or any(count < 1 for count in counts):
        raise PreconditionBroken(f"{rows} rows need one count each, at least 1, not {counts}")
    bounded = [min(count, count_max) for count in counts]
    cut = [i for i, count in enumerate(counts) if count > count_max]
    total = sum(bounded)
    said = f"the mean of {rows} updates by their counts."
    if cut:
        said += f" Rows {cut} claimed more than {count_max} and count as {count_max}."
    return tuple(count / total for count in bounded), said
