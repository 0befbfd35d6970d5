"""FedAvg: the mean, with equal weights, agreed ones, or by sample counts that the caller bounds.

McMahan et al., AISTATS 2017. Tolerates no Byzantine row: one is enough to move the aggregate
anywhere. It is the yardstick for a round without attackers. A count that a node reports about
itself is a claim: it weighs at most `count_max`, and the reason names the rows whose claim was cut.
"""

from collections.abc import Sequence

from defl.aggregation.aggregate import AggregationResult, Row, weighted_sum
from defl.aggregation.conditions import check_round
from defl.aggregation.gram import plain
from defl.aggregation.shares import Weighing
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
    workers: Workers = ALONE,
    weighing: Weighing | None = None,
) -> AggregationResult:
    """The plain mean, the mean by agreed weights, or by `counts`, none of which weighs more than
    `count_max`."""
    check_round(rows, base, faults_max, ties)  # the baselines call this without the record
    if counts is None:
        weights = (1.0 / len(rows),) * len(rows)
        reason = f"the plain mean of all {len(rows)} updates."
        if weighing is not None and (weighed := weighing.in_words(weights)):
            weights = weighing.shares(weights)
            reason = f"the mean of all {len(rows)} updates. {weighed}"
    else:
        weights, reason = weights_by_count(counts, count_max, len(rows))
    values = weighted_sum([plain(row) for row in rows], weights, workers=workers)
    return AggregationResult(values, weights, (0.0,) * len(rows), reason)


def weights_by_count(
    counts: Sequence[int], count_max: int | None, rows: int
) -> tuple[tuple[float, ...], str]:
    if count_max is None or count_max < 1:
        raise PreconditionBroken("counts are claims of the nodes: give count_max, at least 1")
    if len(counts) != rows or any(count < 1 for count in counts):
        raise PreconditionBroken(f"{rows} rows need one count each, at least 1, not {counts}")
    bounded = [min(count, count_max) for count in counts]
    cut = [i for i, count in enumerate(counts) if count > count_max]
    total = sum(bounded)
    reason = f"the mean of {rows} updates by their counts."
    if cut:
        reason += f" Rows {cut} claimed more than {count_max} and count as {count_max}."
    return tuple(count / total for count in bounded), reason
