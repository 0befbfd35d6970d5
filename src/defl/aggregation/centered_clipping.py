"""Shorten every change to at most the median length, then average around the last aggregate.

Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization, ICML 2021: with
the last aggregate (here: the base) as centre, one step, and a fixed radius. The radius here is
the lower median of the rows' norms, which a minority of Byzantine rows cannot push above the
largest honest norm; so each Byzantine row moves the aggregate by at most that radius / m.

Proved for at most a tenth Byzantine. Without attack nobody is left out, only shortened. Known to
break: a small bias in the same direction every round, below the radius (Ozfatura et al. 2023).
"""

from collections.abc import Sequence
from math import sqrt

from defl.aggregation.aggregate import AggregationResult, Row
from defl.aggregation.conditions import CLIPPING
from defl.aggregation.geometric import Verdict, aggregate_by
from defl.aggregation.gram import Geometry, MeasuredRows
from defl.aggregation.workers import ALONE, Workers


def judge_clipping(geometry: Geometry, faults_max: int) -> Verdict:  # noqa: ARG001 - every judge has this signature
    size = geometry.size
    squares = [geometry.products[i][i] for i in range(size)]
    radius = sorted(squares)[(size - 1) // 2]
    shares = [1.0 if square <= radius else sqrt(radius / square) for square in squares]
    shortened = sum(share < 1.0 for share in shares)
    return Verdict(
        tuple(share / size for share in shares),
        tuple(sqrt(geometry.real(square)) for square in squares),
        f"the mean of {size} changes, {shortened} of them shortened to the median length "
        f"{sqrt(geometry.real(radius)):.4g}.",
    )


def centered_clipping(
    rows: Sequence[Row],
    base: Row,
    faults_max: int,
    ties: Sequence[bytes],
    *,
    strict: bool = False,
    workers: Workers = ALONE,
    measured: MeasuredRows | None = None,
) -> AggregationResult:
    """One step of centred clipping; a row's score is the norm of its change."""
    return aggregate_by(
        judge_clipping,
        rows,
        base,
        faults_max,
        ties,
        condition=CLIPPING,
        strict=strict,
        workers=workers,
        measured=measured,
    )
