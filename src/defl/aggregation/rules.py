"""The aggregation rules that a federation can choose: one record per rule.

All facts about a rule (its condition, whether it remembers) are in its record.
Calling the record aggregates: it checks the round and the rule's condition, then runs the rule.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from defl.aggregation.adaptive import adaptive
from defl.aggregation.aggregate import AggregationResult, Row
from defl.aggregation.centered_clipping import judge_clipping
from defl.aggregation.conditions import (
    BLANCHARD,
    CLIPPING,
    DEFL,
    MAJORITY,
    NO_FAULT,
    Condition,
    check_round,
)
from defl.aggregation.coordinate import coordinate_median, trimmed_mean
from defl.aggregation.fed_avg import fed_avg
from defl.aggregation.geometric import aggregate_by, sentences
from defl.aggregation.geometric_median import judge_geometric_median
from defl.aggregation.gram import MeasuredRows
from defl.aggregation.krum import krum, multi_krum
from defl.aggregation.mixing import nearest_neighbour_mixing
from defl.aggregation.reputation import PastRounds
from defl.aggregation.shares import Weighing
from defl.aggregation.subset import judge_subset
from defl.aggregation.workers import ALONE, Workers
from defl.committee import WEIGHS_MEMBERS
from defl.errors import PreconditionBroken, UserError


@dataclass(frozen=True, slots=True)
class AggregationRule:
    """What the project knows about one rule."""

    name: str
    summary: str  # one line for the documentation
    score: str  # what the score of an update means
    condition: Condition
    # (rows, base, faults_max, ties, workers=) -> AggregationResult; a geometric rule also takes
    # `measured`, a rule that remembers also `past`, a rule that weighs members also `weighing`.
    function: Callable[..., AggregationResult]
    geometric: bool = False  # decides by the distances between updates alone
    remembers: bool = False  # uses what earlier rounds say about the members

    @property
    def weighs(self) -> bool:
        """Its result is the mean of the updates that it keeps, so agreed weights have a meaning."""
        return self.name in WEIGHS_MEMBERS

    def __call__(
        self,
        rows: Sequence[Row],
        base: Row,
        faults_max: int,
        ties: Sequence[bytes],
        *,
        strict: bool = False,
        workers: Workers = ALONE,
        measured: MeasuredRows | None = None,
        past: PastRounds | None = None,
        agreed: Sequence[int] | None = None,
    ) -> AggregationResult:
        """Aggregate the rows of a round; `strict` refuses what the rule's theorem does not cover.

        `measured` is used by geometric rules and `past` by rules that remember; others ignore it.
        `agreed` are the members' weights: they decide how much the rows count that are kept.
        """
        check_round(rows, base, faults_max, ties)
        outside = self.condition.check(len(rows), faults_max, strict=strict)
        run = partial(self.function, rows, base, faults_max, ties, workers=workers)
        if self.geometric:
            run = partial(run, measured=measured)
        if self.remembers:
            run = partial(run, past=past)
        if agreed is not None and len(agreed) != len(rows):
            raise PreconditionBroken(f"{len(rows)} rows and {len(agreed)} agreed weights")
        if agreed is not None and len(set(agreed)) > 1:
            if not self.weighs:
                raise PreconditionBroken(f"{self.name} has no use for unequal weights")
            run = partial(run, weighing=Weighing(tuple(agreed), faults_max))
        result = run()
        return replace(result, reason=sentences(result.reason, outside))


RULES: dict[str, AggregationRule] = {
    rule.name: rule
    for rule in (
        AggregationRule(
            "fed_avg",
            "mean of all updates; one attacker is enough to control it",
            "always 0",
            NO_FAULT,
            fed_avg,
        ),
        AggregationRule(
            "coordinate_median",
            "median of each coordinate",
            "share of coordinates in which the update was cut off",
            MAJORITY,
            coordinate_median,
        ),
        AggregationRule(
            "trimmed_mean",
            "mean of each coordinate without its f smallest and f largest values",
            "share of coordinates in which the update was cut off",
            MAJORITY,
            trimmed_mean,
        ),
        AggregationRule(
            "krum",
            "the one update with the closest neighbours, as Blanchard et al. count them",
            "sum of squared distances to the m - f - 2 nearest others",
            BLANCHARD,
            krum,
            geometric=True,
        ),
        AggregationRule(
            "multi_krum",
            "mean of the m - f updates with the closest neighbours, as the DeFL paper counts them",
            "sum of squared distances to the m - f - 1 nearest others",
            DEFL,
            multi_krum,
            geometric=True,
        ),
        AggregationRule(
            "multi_krum_blanchard",
            "multi_krum with the neighbours of Blanchard et al.",
            "as krum",
            BLANCHARD,
            partial(multi_krum, neighbours="blanchard"),
            geometric=True,
        ),
        AggregationRule(
            "multi_krum_two",
            "mean of the two best updates by krum, as the DeFL paper's authors ran n = 4",
            "as krum",
            BLANCHARD,
            partial(multi_krum, neighbours="blanchard", keep=2),
            geometric=True,
        ),
        AggregationRule(
            "geometric_median",
            "the point with the smallest sum of distances to all updates, iterated to convergence",
            "distance to the aggregate",
            MAJORITY,
            partial(aggregate_by, judge_geometric_median),
            geometric=True,
        ),
        AggregationRule(
            "centered_clipping",
            "mean of all changes, the long ones clipped to the median length",
            "length of the change",
            CLIPPING,
            partial(aggregate_by, judge_clipping),
            geometric=True,
        ),
        AggregationRule(
            "nearest_neighbour_mixing",
            "replaces each update by the mean of its m - f nearest, then trimmed_mean",
            "as trimmed_mean, of the mixed update",
            MAJORITY,
            nearest_neighbour_mixing,
            geometric=True,
        ),
        AggregationRule(
            "smallest_eigenvalue_subset",
            "mean of the m - f updates with the smallest largest variance (SMEA)",
            "squared distance to the aggregate",
            MAJORITY,
            partial(aggregate_by, judge_subset),
            geometric=True,
        ),
        AggregationRule(
            "adaptive",
            "mean of all updates, long ones shortened, without outliers and lasting opponents",
            "one minus the cosine with the sum of the other inliers' directions",
            MAJORITY,
            adaptive,
            geometric=True,
            remembers=True,
        ),
    )
}


def rule_named(name: str) -> AggregationRule:
    if name not in RULES:
        raise UserError(f"no aggregation rule is named {name!r}; there are: {', '.join(RULES)}")
    return RULES[name]
