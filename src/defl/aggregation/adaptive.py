"""The default rule: the mean of all updates, without outliers and without suspects.

Gate. The inliers are the m - f rows with the smallest largest variance (the greatest eigenvalue of
their covariance). A subset of at least m - f rows passes the gate if its largest variance is at
most GATE times that of the inliers. The rule averages the largest subset that passes; among
subsets of one size, the one that varies least. Without an attack that is all rows, so nothing is
lost; an outlier is left out alone, not together with f - 1 honest rows.

Suspects. Members of low reputation (reputation.py), at most f, are left out as long as a subset
without them passes the gate.

Good standing. Once a model has converged, the updates of members who fit it vary little, and an
honest member that was away, or whose data are unusual, easily exceeds GATE. A subset of members
that are all in good standing passes up to GATE_TRUSTED, if the round has more than FEW rows. (With
fewer, one attacker who gained a good name would be one of four.)

What f colluding attackers below the gate can do: let s^2 be the largest variance of the honest
rows, and G the gate that the kept rows passed. a attackers among the k rows kept, at a distance t
from the mean of the honest rows kept, cause a variance of a (k - a) t^2 / k^2 in their direction,
and the gate allows G s^2 at most; so they move the aggregate by a t / k <= s sqrt(G a / (k - a)).
With all rows kept and f = m/3 that is s sqrt(G / 2): at most s, and 1.42 s if the attackers are in
good standing. The m - k rows left out, if honest, move it by at most s sqrt((m - k) / (k - f)).
Below the gate every direction is open to attackers; the distance is bounded, and the bound shrinks
with the honest rows' own variance. Attackers who make honest members suspect gain no more than the
last term, f honest rows left out. No memory allows more than GATE_TRUSTED.

Condition m >= 2f + 1, as for the smallest-eigenvalue subset (Allouah et al., ICML 2023) on which it
is built; breakdown below a half. docs/AGGREGATION.md says how the gates were chosen and what else
was tried.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb

import numpy as np

from defl.aggregation.aggregate import AggregationResult, Row
from defl.aggregation.geometric import Verdict, finite_rows, measure, placed, summed_by
from defl.aggregation.gram import Geometry, MeasuredRows, below_one
from defl.aggregation.reputation import (
    PastRounds,
    Reputation,
    cosines_with_inliers,
    in_good_standing,
    suspect_below,
    suspects,
    updated_reputations,
)
from defl.aggregation.shares import Weighing
from defl.aggregation.subset import SUBSETS_MAX, Matrix, peeled, squares_to_mean, tightest_subset
from defl.aggregation.workers import ALONE, Workers

# Just above the 99th percentile of the ratio without attack, at Dirichlet alpha = 0.3: 1.85 at
# n = 4; 1.35 and 1.58 at n = 7 and 10.
GATE_FEW = 2.0
GATE = 1.6
GATE_TRUSTED = 4.0  # for members in good standing
FEW = 5  # rows

BySize = Sequence[tuple[tuple[int, ...], float]]  # subsets of rows with their largest variance


def gate_for(rows: int) -> float:
    return GATE_FEW if rows <= FEW else GATE


def tightest_by_size(distances: Matrix, faults_max: int) -> BySize:
    """The subset of m, m - 1, ... m - f rows that varies least, each with its largest variance."""
    size = len(distances)
    if comb(size, faults_max) <= SUBSETS_MAX:
        return [tightest_subset(distances, size - out) for out in range(faults_max + 1)]
    return peeled(distances, size - faults_max)


@dataclass(frozen=True, slots=True)
class Choice:
    """The rows that the rule keeps, the gate that they passed, and what became of suspects."""

    kept: tuple[int, ...]
    gate: float
    suspects_left_out: bool = False

    @property
    def trusted(self) -> bool:
        """Only members in good standing."""
        return self.gate == GATE_TRUSTED


def chosen(
    distances: Matrix,
    faults_max: int,
    by_size: BySize,
    suspected: frozenset[int],
    trusted: frozenset[int],
) -> Choice:
    size, inlier_variance = len(distances), by_size[-1][1]
    gate = gate_for(size)

    def largest(rows: Sequence[int], limit: float) -> tuple[int, ...]:
        """The largest subset of these rows that passes; none if all are too small."""
        spare = faults_max - (size - len(rows))
        if spare < 0:
            return ()
        subsets = tightest_by_size(distances[np.ix_(rows, rows)], spare)
        passing = (subset for subset, variance in subsets if variance <= limit * inlier_variance)
        return tuple(rows[i] for i in next(passing, ()))

    kept = next(rows for rows, variance in by_size if variance <= gate * inlier_variance)
    choice, least = Choice(kept, gate), len(kept)
    if suspected:
        without = largest([i for i in range(size) if i not in suspected], gate)
        least = len(without)
        if without:
            choice = Choice(without, gate, suspects_left_out=True)
    if size > FEW and least < size - len(suspected):
        in_standing = largest(sorted(trusted - suspected), GATE_TRUSTED)
        if len(in_standing) > least:
            choice = Choice(in_standing, GATE_TRUSTED, bool(suspected))
    return choice


def judge_adaptive(
    geometry: Geometry,
    faults_max: int,
    by_size: BySize,
    suspected: frozenset[int],
    trusted: frozenset[int],
) -> Verdict:
    size = geometry.size
    all_variance, inlier_variance = by_size[0][1], by_size[-1][1]
    ratio = all_variance / inlier_variance if inlier_variance > 0 else float(all_variance > 0)
    distances = below_one(geometry.squared_distances)
    choice = chosen(distances, faults_max, by_size, suspected, trusted)
    kept = choice.kept
    return Verdict(
        tuple(1.0 / len(kept) if i in kept else 0.0 for i in range(size)),
        squares_to_mean(geometry, kept),
        explain(size, faults_max, choice, ratio, len(suspected)),
        tuple(
            explain_row(
                i in kept,
                i in suspected,
                choice.suspects_left_out,
                choice.gate if i in trusted else gate_for(size),
                size - faults_max,
            )
            for i in range(size)
        ),
    )


def explain(size: int, faults_max: int, choice: Choice, ratio: float, suspected: int) -> str:
    kept, suspects_left_out = len(choice.kept), choice.suspects_left_out
    inliers = f"that of the {size - faults_max} most similar updates"
    whose, gate = "", f"{choice.gate:g} times"
    if choice.trusted:
        whose = ", all of members in good standing"
    if kept == size:
        reason = (
            f"the mean of all {size} updates{whose}: their largest variance is {ratio:.2f} times "
            f"{inliers}, and the gate is {gate}."
        )
    elif suspects_left_out and kept == size - suspected:
        reason = f"the mean of {kept} of {size} updates{whose}."
    else:
        outliers = size - kept - (suspected if suspects_left_out else 0)
        reason = (
            f"the mean of {kept} of {size} updates{whose}: with {outliers} more the largest "
            f"variance would exceed the gate, {gate} {inliers}."
        )
    if suspects_left_out:
        reason += (
            f" {suspected} left out as suspect: over the rounds so far they opposed the others "
            "more than they agreed with them."
        )
    elif suspected:
        reason += f" {suspected} suspect but kept: the others alone exceed the gate."
    return reason


def explain_row(
    is_kept: bool, is_suspect: bool, suspects_left_out: bool, gate: float, inliers: int
) -> str:
    """About one row; empty if there is nothing to say."""
    if is_suspect and suspects_left_out:
        return "suspect: over the rounds so far it opposed the others more than it agreed with them"
    if not is_kept:
        return (
            f"with it the updates would vary too much: the gate is {gate:g} times the variance of "
            f"the {inliers} most similar"
        )
    return "suspect, but kept: the others alone exceed the gate" if is_suspect else ""


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
    """The gated mean; a row's score is its squared distance to the aggregate."""
    judged = finite_rows(measured or measure(rows, base, workers), faults_max, ties)
    distances = below_one(judged.geometry.squared_distances)
    by_size = tightest_by_size(distances, judged.faults_max)
    reputations: tuple[Reputation, ...] = ()
    suspected: frozenset[int] = frozenset()
    trusted: frozenset[int] = frozenset()
    below: float | None = None
    if past is not None:
        inliers = frozenset(by_size[-1][0])
        cosines = cosines_with_inliers(judged.geometry, inliers)
        reputations = updated_reputations(past, placed(cosines, judged.order, len(rows), -1.0))
        seen = [reputations[i] for i in judged.order]
        below = suspect_below(seen)
        suspected = suspects(seen, judged.faults_max, inliers)
        trusted = in_good_standing(seen)
    verdict = judge_adaptive(judged.geometry, judged.faults_max, by_size, suspected, trusted)
    return replace(
        summed_by(verdict, judged, rows, base, workers, weighing),
        reputations=reputations,
        suspects=frozenset(judged.order[i] for i in suspected),
        suspect_below=below,
    )
