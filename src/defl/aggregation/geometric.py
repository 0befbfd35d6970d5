"""Geometric rules: from rows to an aggregate by way of their inner products alone.

`aggregate_by` measures the rows, leaves out those that are not finite, lets a judge turn the
geometry into weights, and computes the weighted sum. Judges see the rows in the order of their
tie-breakers, not of their members: so no member can choose to win a tie, and permuting the rows
permutes weights and scores exactly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from types import ModuleType
from typing import TypeVar

from defl.aggregation.aggregate import AggregationResult, Row, weighted_sum
from defl.aggregation.gram import Geometry, Gram, MeasuredRows
from defl.aggregation.shares import Weighing
from defl.aggregation.workers import ALONE, Workers
from defl.errors import PreconditionBroken

NOT_FINITE = "its values are not finite numbers"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's answer: one weight and one score per row, and why."""

    weights: tuple[float, ...]  # if they sum to less than 1, the base gets the rest
    scores: tuple[float, ...]
    reason: str
    details: tuple[str, ...] = ()  # why a row is left out, or empty; () if there are none


Judge = Callable[[Geometry, int], Verdict]


@dataclass(frozen=True, slots=True)
class FiniteRows:
    """The rows that a judge sees: those with a finite change, in the order of tie-breakers."""

    order: tuple[int, ...]
    geometry: Geometry
    faults_max: int  # less the rows that are not finite: each was one of the faulty
    notice: str | None  # which rows are missing


def finite_rows(measured: MeasuredRows, faults_max: int, ties: Sequence[bytes]) -> FiniteRows:
    rows = range(len(measured.finite))
    order = sorted((i for i in rows if measured.finite[i]), key=lambda i: (ties[i], i))
    broken = [i for i in rows if not measured.finite[i]]
    if len(broken) > faults_max:
        raise PreconditionBroken(
            f"rows {broken} are not finite, but at most {faults_max} rows may be faulty"
        )
    notice = f"Rows {broken} are not finite and were left out." if broken else None
    return FiniteRows(
        tuple(order), measured.geometry.taken(order), faults_max - len(broken), notice
    )


def measure(
    rows: Sequence[Row], base: Row, workers: Workers, loops: ModuleType | None = None
) -> MeasuredRows:
    gram = Gram(base, workers=workers, loops=loops)
    gram.add(rows)
    return gram.measured()


def aggregate_by(
    judge: Judge,
    rows: Sequence[Row],
    base: Row,
    faults_max: int,
    ties: Sequence[bytes],
    *,
    workers: Workers = ALONE,
    measured: MeasuredRows | None = None,
    weighing: Weighing | None = None,
) -> AggregationResult:
    """Measure (unless that was done while the rows arrived), judge, sum."""
    judged = finite_rows(measured or measure(rows, base, workers), faults_max, ties)
    verdict = judge(judged.geometry, judged.faults_max)
    return summed_by(verdict, judged, rows, base, workers, weighing)


def summed_by(
    verdict: Verdict,
    judged: FiniteRows,
    rows: Sequence[Row],
    base: Row,
    workers: Workers,
    weighing: Weighing | None = None,
) -> AggregationResult:
    """The weighted sum of all rows, and of the base if the weights leave it a share.

    With `weighing` the verdict only says which rows are kept, and the agreed weights how much each
    counts.
    """
    weights = placed(verdict.weights, judged.order, len(rows), 0.0)
    base_weight = 1.0 - sum(verdict.weights)
    weighed = None
    if weighing is not None:
        weights, weighed = weighing.shares(weights), weighing.in_words(weights)
        base_weight = 1.0 - sum(weights)
    summed, shares = list(rows), list(weights)
    if abs(base_weight) > 1e-9:  # more than the rounding error of weights that sum to 1
        summed.append(base)
        shares.append(base_weight)
    return AggregationResult(
        values=weighted_sum(summed, shares, workers=workers),
        weights=weights,
        scores=placed(verdict.scores, judged.order, len(rows), inf),
        reason=sentences(verdict.reason, weighed, judged.notice),
        details=placed(
            verdict.details or ("",) * len(judged.order), judged.order, len(rows), NOT_FINITE
        ),
    )


def placed(values: Sequence[T], order: Sequence[int], rows: int, missing: T) -> tuple[T, ...]:
    """Reorder values from the judge's order to member order."""
    result = [missing] * rows
    for place, value in zip(order, values, strict=True):
        result[place] = value
    return tuple(result)


def sentences(*parts: str | None) -> str:
    return " ".join(part for part in parts if part)
