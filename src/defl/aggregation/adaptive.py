"""The default rule: the mean of all updates, long ones shortened, without outliers and opponents.

Length. The reference length is the (m - f)-th smallest of the changes' lengths, so never above the
longest honest one. A change that points the same way as at least half of the others may be twice as
long, another one just as long; what is longer is shortened. A member is never left out for length
alone: how far it trains says how many steps it takes. Only a change that is more than three times
as long and points another way is left out for it, at most f of them.

Gate. The inliers are the m - f other rows whose directions have the smallest top eigenvalue of
their covariance. A subset passes the gate if its top eigenvalue is at most GATE times that of the
inliers. The rule keeps the largest subset of at least m - f rows that passes; among subsets of one
size, the one that varies least. Without an attack that is all rows, so nothing is lost; an outlier
is left out alone, not together with f - 1 honest rows. A change of no length is a direction of its
own: it makes nobody else an outlier.

Trust. A member that opposed the others in past rounds counts less, down to not at all
(reputation.py); that concerns at most f members.

What attackers can do: with a of them among the k rows that count, they move the aggregate by at
most 2 a t / k, where t is the reference length, whatever they send. A row that is left out or
counts less, if honest, moves it by at most 2 t / k. So a converging federation, whose honest
changes become short, leaves attackers ever less.

Condition m >= 2f + 1, as for the smallest-eigenvalue subset (Allouah et al., ICML 2023) on which
the gate is built; breakdown below a half. docs/AGGREGATION.md says how the constants were chosen
and what else was tried.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import comb, inf

from defl.aggregation.aggregate import AggregationResult, Row
from defl.aggregation.directions import Directions
from defl.aggregation.geometric import Verdict, finite_rows, measure, placed, summed_by
from defl.aggregation.gram import MeasuredRows
from defl.aggregation.reputation import PastRounds, trusts, updated_reputations
from defl.aggregation.shares import Weighing
from defl.aggregation.subset import peeled, tightest_subset
from defl.aggregation.workers import ALONE, Workers

Subsets = list[tuple[tuple[int, ...], float]]  # of rows, each with its largest variance

GATE = 2.0
# All subsets up to n = 10 at f = 3 (120); with more, rows are removed one at a time. So the choice
# costs no more at n = 16 than at n = 10.
SUBSETS_MAX = 150


def adaptive(
    rows: Sequence[Row],
    base: Row,
    faults_max: int,
    ties: Sequence[bytes],
    *,
    workers: Workers = ALONE,
    measured: MeasuredRows | None = None,
    past: PastRounds | None = None,
    weighing: Weighing | None = None,
) -> AggregationResult:
    """A row's score is one minus the cosine between its change and the sum of the inliers'."""
    judged = finite_rows(measured or measure(rows, base, workers), faults_max, ties)
    judgement = Judgement(Directions(judged.geometry, judged.faults_max), judged.faults_max)
    reputations: tuple[float, ...] = ()
    if past is not None:
        cosines = placed(judgement.cosines, judged.order, len(rows), -1.0)
        reputations = updated_reputations(past, cosines)
        judgement.trust([reputations[i] for i in judged.order])
    return replace(
        summed_by(judgement.verdict(), judged, rows, base, workers, weighing),
        reputations=reputations,
        trusts=placed(judgement.trusts, judged.order, len(rows), 0.0) if past is not None else (),
    )


class Judgement:
    """Decides which rows of a round are kept, and how much each is trusted."""

    def __init__(self, directions: Directions, faults_max: int) -> None:
        self._directions = directions
        self._size = directions.size
        self._least = self._size - faults_max
        self.gross = directions.gross(faults_max)
        self._rest = [i for i in range(self._size) if i not in self.gross]
        by_size = self._tightest_by_size(self._rest)
        inliers, self._inlier_variance = by_size[-1]
        self.cosines = directions.cosines_with(inliers)
        self.spread = self._ratio(by_size[0][1])
        self.kept = self._passing(by_size)
        self.trusts = (1.0,) * self._size

    def _tightest_by_size(self, rows: Sequence[int]) -> Subsets:
        """The subset that varies least for each size, from all of these rows down to m - f."""
        size, spare = len(rows), len(rows) - self._least
        distances = self._directions.distances(rows)
        if comb(size, spare) <= SUBSETS_MAX:
            found = [tightest_subset(distances, size - out) for out in range(spare + 1)]
        else:
            found = peeled(distances, size - spare)
        return [(tuple(rows[i] for i in subset), variance) for subset, variance in found]

    def _ratio(self, variance: float) -> float:
        """Return the ratio to the inliers' variance."""
        if self._inlier_variance > 0:
            return variance / self._inlier_variance
        return inf if variance > 0 else 1.0

    def _passing(self, by_size: Subsets) -> tuple[int, ...]:
        """The largest subset that passes the gate; () if there is none."""
        return next((rows for rows, variance in by_size if self._ratio(variance) <= GATE), ())

    def trust(self, reputations: Sequence[float]) -> None:
        """Take the members' reputations into account, in the order of the rows.

        Members without any trust are left out if the others pass the gate; else they count in full,
        so that at most f rows are ever left out.
        """
        found = [1.0] * self._size
        some = trusts([reputations[i] for i in self._rest], len(self._rest) - self._least)
        for i, trust in zip(self._rest, some, strict=True):
            found[i] = trust
        others = [i for i in self._rest if found[i] > 0]
        if len(others) < len(self._rest):
            kept = self._passing(self._tightest_by_size(others))
            self.kept = kept or self.kept
            found = [trust if kept else trust or 1.0 for trust in found]
        self.trusts = tuple(found)

    def verdict(self) -> Verdict:
        every, whole = range(self._size), 1.0 / len(self.kept)
        return Verdict(
            tuple(
                self._directions.shortening(i) * self.trusts[i] * whole if i in self.kept else 0.0
                for i in every
            ),
            tuple(1.0 - cosine for cosine in self.cosines),
            self._reason(),
            tuple(self._detail(i) for i in every),
        )

    def _reason(self) -> str:
        kept, similar = len(self.kept), f"the {self._least} most similar"
        if kept == self._size:
            return (
                f"the mean of all {self._size} updates: their directions vary {self.spread:.2f} "
                f"times as much as {similar}, and the gate is {GATE:g} times."
            )
        opponents = sum(trust == 0 for trust in self.trusts)
        others = len(self._rest) - opponents - kept
        parts = [f"the mean of {kept} of {self._size} updates."]
        if self.gross:
            parts.append(f"{len(self.gross)} left out: far too long, pointing another way.")
        if opponents:
            parts.append(f"{opponents} left out: opposed to the others over many rounds.")
        if others:
            parts.append(
                f"{others} left out: with more, the directions would vary over {GATE:g} times as "
                f"much as {similar}."
            )
        return " ".join(parts)

    def _detail(self, i: int) -> str:
        """Say what is special about one row; empty if nothing is."""
        longer, cosine = self._directions.longer(i), f"cosine {self.cosines[i]:+.2f}"
        if i in self.gross:
            return f"points another way than the others ({cosine}) and is {longer}"
        if self.trusts[i] == 0:
            return f"opposes the others over many rounds ({cosine} in this one)"
        if self._directions.has_no_length(i):
            return "no length: it sent the model back as it was"
        if i not in self.kept:
            return f"points another way than the others ({cosine})"
        if self._directions.shortening(i) < 1 and self._directions.agrees(i):
            return f"points the same way, but is {longer}: more steps per round?"
        if self._directions.shortening(i) < 1:
            return f"points another way ({cosine}) and is {longer}: shortened"
        if self.trusts[i] < 1:
            return f"counts {self.trusts[i]:.0%}: it opposed the others in past rounds"
        return ""
