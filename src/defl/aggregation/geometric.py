"""From rows to an aggregate by way of their inner products alone.

`aggregate_by` measures the rows, leaves out those that are not finite, lets a judge turn the
geometry into weights, and makes the weighted sum. Judges see the rows in the order of their
tie-breakers, not of their members: so a tie falls to nobody's choosing, and permuting the rows
permutes weights and scores exactly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from types import ModuleType

from defl.aggregation.aggregate import AggregationResult, Row, weighted_sum
from defl.aggregation.conditions import Condition, check_round
from defl.aggregation.gram import Geometry, Gram, MeasuredRows
from defl.aggregation.workers import ALONE, Workers
from defl.errors import PreconditionBroken


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's answer: one weight and one score per row, and why."""

    weights: tuple[float, ...]  # what they lack to 1 stays with the base
    scores: tuple[float, ...]
    reason: str


Judge = Callable[[Geometry, int], Verdict]


@dataclass(frozen=True, slots=True)
class Admitted:
    """The rows that may be judged: all whose change is finite, in the order of tie-breakers."""

    order: tuple[int, ...]
    geometry: Geometry
    faults_max: int  # what is left of it: a row that was left out was one of the faulty
    words: str | None


def admit(measured: MeasuredRows, faults_max: int, ties: Sequence[bytes]) -> Admitted:
    rows = range(len(measured.finite))
    order = sorted((i for i in rows if measured.finite[i]), key=lambda i: (ties[i], i))
    broken = [i for i in rows if not measured.finite[i]]
    if len(broken) > faults_max:
        raise PreconditionBroken(
            f"rows {broken} are not finite, but at most {faults_max} rows may be faulty"
        )
    words = f"Rows {broken} are not finite and were left out." if broken else None
    left = faults_max - len(broken)
    return Admitted(tuple(order), measured.geometry.taken(order), left, words)


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
    condition: Condition,
    strict: bool = False,
    workers: Workers = ALONE,
    measured: MeasuredRows | None = None,
) -> AggregationResult:
    """Measure (unless it was done while the rows arrived), judge, sum."""
    check_round(rows, base, faults_max, ties)
    outside = condition.check(len(rows), faults_max, strict=strict)
    admitted = admit(measured or measure(rows, base, workers), faults_max, ties)
    verdict = judge(admitted.geometry, admitted.faults_max)
    weights = placed(verdict.weights, admitted.order, len(rows), 0.0)
    kept_by_base = 1.0 - sum(verdict.weights)
    summed, shares = list(rows), list(weights)
    if abs(kept_by_base) > 1e-9:  # more than the rounding of weights that sum to 1
        summed.append(base)
        shares.append(kept_by_base)
    return AggregationResult(
        values=weighted_sum(summed, shares, workers=workers),
        weights=weights,
        scores=placed(verdict.scores, admitted.order, len(rows), inf),
        reason=sentences(verdict.reason, admitted.words, outside),
    )


def placed(
    values: Sequence[float], order: Sequence[int], rows: int, missing: float
) -> tuple[float, ...]:
    """Values in judge's order, back in member order."""
    result = [missing] * rows
    for place, value in zip(order, values, strict=True):
        result[place] = value
    return tuple(result)


def sentences(*parts: str | None) -> str:
    return " ".join(part for part in parts if part)
