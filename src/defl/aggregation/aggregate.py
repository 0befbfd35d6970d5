"""What every rule returns, and the one weighted sum that all of them end in.

A rule gets the m rows of a round in member order, the agreed base that they were trained from,
and how many of them may be Byzantine; it returns the new values and its reasons. Nothing here may
depend on threads, BLAS or CPU features: every honest node must get the same bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from defl.errors import PreconditionBroken

Row = NDArray[np.float32]

# The weighted sum works in float64 on this many columns at a time, so that the memory beyond
# input and output stays small whatever the size of the model.
COLUMNS_PER_PASS = 1 << 18


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The new model's values and why they are what they are."""

    values: Row
    weights: tuple[float, ...]  # one per row, in member order; 0 means left out
    scores: tuple[float, ...]  # one per row; what they mean is the rule's to say
    reason: str  # one sentence for a person


Rule = Callable[[Sequence[Row], Row, int, Sequence[bytes]], Aggregate]


def weighted_sum(rows: Sequence[Row], weights: Sequence[float]) -> Row:
    """Elementwise in float64, in the order of the rows, with one rounding to float32 at the end."""
    if not rows or len(rows) != len(weights):
        raise PreconditionBroken(f"{len(rows)} rows and {len(weights)} weights do not pair up")
    columns = rows[0].shape[0]
    result = np.empty(columns, dtype=np.float32)
    for start in range(0, columns, COLUMNS_PER_PASS):
        part = slice(start, start + COLUMNS_PER_PASS)
        total = rows[0][part].astype(np.float64) * weights[0]
        for row, weight in zip(rows[1:], weights[1:], strict=True):
            total += row[part].astype(np.float64) * weight
        result[part] = total
    return result
