"""The rules by the names that a federation may choose."""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from defl.aggregation.adaptive import adaptive
from defl.aggregation.aggregate import AggregationResult, Row
from defl.aggregation.centered_clipping import centered_clipping
from defl.aggregation.conditions import CLIPPING, DEFL, KRUM, MAJORITY, NO_FAULT, Condition
from defl.aggregation.coordinate import coordinate_median, trimmed_mean
from defl.aggregation.fed_avg import fed_avg
from defl.aggregation.geometric_median import geometric_median
from defl.aggregation.gram import MeasuredRows
from defl.aggregation.krum import krum, multi_krum
from defl.aggregation.mixing import nearest_neighbour_mixing
from defl.aggregation.reputation import Past
from defl.aggregation.subset import smallest_eigenvalue_subset
from defl.aggregation.workers import ALONE, Workers
from defl.errors import UserError


class NamedRule(Protocol):
    """An aggregate.Rule that can also be given threads to work with."""

    def __call__(
        self,
        rows: Sequence[Row],
        base: Row,
        faults_max: int,
        ties: Sequence[bytes],
        *,
        workers: Workers = ALONE,
    ) -> AggregationResult: ...


class GeometricRule(NamedRule, Protocol):
    """A rule that looks at distances between rows, and can be given what was measured before."""

    def __call__(
        self,
        rows: Sequence[Row],
        base: Row,
        faults_max: int,
        ties: Sequence[bytes],
        *,
        workers: Workers = ALONE,
        measured: MeasuredRows | None = None,
    ) -> AggregationResult: ...


class RememberingRule(GeometricRule, Protocol):
    """A geometric rule that also heeds what earlier rounds say of the members (standing.py)."""

    def __call__(
        self,
        rows: Sequence[Row],
        base: Row,
        faults_max: int,
        ties: Sequence[bytes],
        *,
        workers: Workers = ALONE,
        measured: MeasuredRows | None = None,
        past: Past | None = None,
    ) -> AggregationResult: ...


REMEMBERING: dict[str, RememberingRule] = {"adaptive": adaptive}

GEOMETRIC: dict[str, GeometricRule] = {
    "krum": krum,
    "multi_krum": multi_krum,
    "multi_krum_blanchard": partial(multi_krum, neighbours="blanchard"),
    "multi_krum_two": partial(multi_krum, neighbours="blanchard", keep=2),
    "geometric_median": geometric_median,
    "centered_clipping": centered_clipping,
    "nearest_neighbour_mixing": nearest_neighbour_mixing,
    "smallest_eigenvalue_subset": smallest_eigenvalue_subset,
    **REMEMBERING,
}

# Of new federations: docs/AGGREGATION.md says by which criterion.
DEFAULT = "adaptive"

RULES: dict[str, NamedRule] = {
    "fed_avg": fed_avg,
    "coordinate_median": coordinate_median,
    "trimmed_mean": trimmed_mean,
    **GEOMETRIC,
}

CONDITIONS: dict[str, Condition] = {
    "fed_avg": NO_FAULT,
    "krum": KRUM,
    "multi_krum": DEFL,
    "multi_krum_blanchard": KRUM,
    "multi_krum_two": KRUM,
    "coordinate_median": MAJORITY,
    "trimmed_mean": MAJORITY,
    "geometric_median": MAJORITY,
    "centered_clipping": CLIPPING,
    "nearest_neighbour_mixing": MAJORITY,
    "smallest_eigenvalue_subset": MAJORITY,
    "adaptive": MAJORITY,
}


def rule_named(name: str) -> NamedRule:
    check_name(name)
    return RULES[name]


def outside_proof(name: str, rows: int, faults_max: int) -> str | None:
    """What to tell a person whose federation lies outside the rule's theorem; None if inside.

    Ask with the fewest rows that a round may close on, n - f.
    """
    check_name(name)
    return CONDITIONS[name].outside(rows, faults_max)


def check_name(name: str) -> None:
    if name not in RULES:
        raise UserError(f"no aggregation rule is named {name!r}; there are: {', '.join(RULES)}")
