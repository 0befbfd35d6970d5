"""What every rule returns, and the weighted sum that ends every geometric rule.

A rule gets the m rows of a round in member order, the agreed base from which they were trained,
how many of them may be Byzantine, and one tie-breaker per row. It returns the new values and its
reasons. Nothing here may depend on threads, BLAS or CPU features: every honest node must get the
same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from defl.aggregation import kernels
from defl.aggregation.gram import plain
from defl.aggregation.workers import ALONE, Workers
from defl.errors import PreconditionBroken

Row = NDArray[np.float32]

# The weighted sum works in float64 on at most this many columns at a time per worker (512 KB), so
# that memory beyond input and output stays small whatever the size of the model.
COLUMNS_PER_PASS = 1 << 16


@dataclass(frozen=True, slots=True)
class AggregationResult:
    """The new model's values and why they are what they are."""

    values: Row
    weights: tuple[float, ...]  # one per row, in member order; 0 means left out
    scores: tuple[float, ...]  # one per row; rules.AggregationRule.score says what they mean
    reason: str  # a sentence or two for a person
    reputations: tuple[float, ...] = ()  # one per row, from a rule that remembers
    details: tuple[str, ...] = ()  # one per row: about this row, or empty; () if there are none
    trusts: tuple[float, ...] = ()  # one per row, from 0 to 1, from a rule that remembers


def weighted_sum(
    rows: Sequence[Row],
    weights: Sequence[float],
    *,
    workers: Workers = ALONE,
    loops: ModuleType | None = None,
) -> Row:
    """The sum of rows times weights in float64, in row order, rounded once to float32.

    A row of weight 0 is not read, so nothing in it (a NaN, say) can reach the sum.
    """
    if not rows or len(rows) != len(weights):
        raise PreconditionBroken(f"{len(rows)} rows and {len(weights)} weights do not pair up")
    columns = rows[0].shape[0]
    run = loops or kernels.best(len(rows) * columns)
    result = np.empty(columns, dtype=np.float32)
    counted = [plain(row) for row, weight in zip(rows, weights, strict=True) if weight]
    shares = [float(weight) for weight in weights if weight]
    if not counted:
        result[:] = 0
        return result

    def work(lane: int) -> None:
        for part in workers.passes(columns, COLUMNS_PER_PASS, lane):
            run.weighted_sum([row[part] for row in counted], shares, result[part])

    workers.gather(work)
    return result
