"""The plain mean: every row counts the same, whatever it holds.

McMahan et al., AISTATS 2017 (FedAvg), with equal counts. Tolerates no Byzantine row: one is
enough to move the aggregate anywhere. It is the yardstick for a round without attackers.
"""

from collections.abc import Sequence

from defl.aggregation.aggregate import Aggregate, Row, weighted_sum
from defl.errors import PreconditionBroken


def fed_avg(rows: Sequence[Row], base: Row, faults_max: int, ties: Sequence[bytes]) -> Aggregate:  # noqa: ARG001 - every rule has this signature
    if not rows:
        raise PreconditionBroken("the mean of no rows is not defined")
    share = 1.0 / len(rows)
    weights = (share,) * len(rows)
    return Aggregate(
        values=weighted_sum(rows, weights),
        weights=weights,
        scores=(0.0,) * len(rows),
        reason=f"the plain mean of all {len(rows)} updates",
    )
