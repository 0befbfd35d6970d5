"""The default rule: the mean of all updates, without outliers and without suspects.

Gate. The inliers are the m - f rows with the smallest largest variance (the greatest eigenvalue of
their covariance). A subset of at least m - f rows passes the gate if its largest variance is at
most GATE times that of the inliers. The rule averages the largest subset that passes; among
subsets of one size, the one that varies least. Without an attack that is all rows, so nothing is
lost; an outlier is left out alone, not together with f - 1 honest rows.

Suspects. Members of low reputation (reputation.py), at most f, are left out as long as a subset
without them passes the gate. So memory chooses among the subsets that the gate allows and never
allows more, and the bound below holds whatever it remembers.

What f colluding attackers below the gate can do: let s^2 be the largest variance of the honest
rows. a attackers among the k rows kept, at a distance t from the mean of the honest rows kept,
cause a variance of a (k - a) t^2 / k^2 in their direction, and the gate allows GATE s^2 at most; so
they move the aggregate by a t / k <= s sqrt(GATE a / (k - a)). With all rows kept and f = m/3 that
is s sqrt(GATE / 2), at most s. The m - k rows left out, if honest, move it by at most
s sqrt((m - k) / (k - f)). Below the gate every direction is open to attackers; the distance is
bounded, and the bound shrinks with the honest rows' own variance. Attackers who make honest
members suspect gain no more than the last term, f honest rows left out.

Condition m >= 2f + 1, as for the smallest-eigenvalue subset (Allouah et al., ICML 2023) on which it
is built; breakdown below a half. docs/AGGREGATION.md says how GATE was chosen and what else was
tried.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import comb

import numpy as np

from defl.aggregation.aggregate import AggregationResult, Row
from defl.aggregation.geometric import Verdict, finite_rows, measure, placed, summed_by
from defl.aggregation.gram import Geometry, MeasuredRows, below_one
from defl.aggregation.reputation import (
    PastRounds,
    Reputation,
    cosines_with_inliers,
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


def judge_adaptive(
    geometry: Geometry, faults_max: int, by_size: BySize, suspected: frozenset[int]
) -> Verdict:
    size = geometry.size
    inlier_variance = by_size[-1][1]
    gate = gate_for(size)
    all_variance = by_size[0][1]
    ratio = all_variance / inlier_variance if inlier_variance > 0 else float(all_variance > 0)
    kept = next(rows for rows, variance in by_size if variance <= gate * inlier_variance)
    suspects_left_out = False
    if suspected:
        trusted = [i for i in range(size) if i not in suspected]
        distances = below_one(geometry.squared_distances)[np.ix_(trusted, trusted)]
        without_suspects = tightest_by_size(distances, faults_max - len(suspected))
        passing = [
            rows for rows, variance in without_suspects if variance <= gate * inlier_variance
        ]
        if passing:
            kept, suspects_left_out = tuple(trusted[i] for i in passing[0]), True
    return Verdict(
        tuple(1.0 / len(kept) if i in kept else 0.0 for i in range(size)),
        squares_to_mean(geometry, kept),
        explain(size, len(kept), faults_max, gate, ratio, len(suspected), suspects_left_out),
        tuple(
            explain_row(i in kept, i in suspected, suspects_left_out, gate, size - faults_max)
            for i in range(size)
        ),
    )


def explain(
    size: int,
    kept: int,
    faults_max: int,
    gate: float,
    ratio: float,
    suspected: int,
    suspects_left_out: bool,
) -> str:
    inliers = f"that of the {size - faults_max} most similar updates"
    if kept == size:
        reason = (
            f"the mean of all {size} updates: their largest variance is {ratio:.2f} times "
            f"{inliers}, and the gate is {gate:g} times."
        )
    elif suspects_left_out and kept == size - suspected:
        reason = f"the mean of {kept} of {size} updates."
    else:
        outliers = size - kept - (suspected if suspects_left_out else 0)
        reason = (
            f"the mean of {kept} of {size} updates: with {outliers} more the largest variance "
            f"would exceed the gate, {gate:g} times {inliers}."
        )
    if suspects_left_out:
        reason += (
            f" {suspected} left out as suspect: far less aligned with the others than most members "
            "over the rounds so far."
        )
    elif suspected:
        reason += f" {suspected} suspect but kept: the others alone exceed the gate."
    return reason


def explain_row(
    is_kept: bool, is_suspect: bool, suspects_left_out: bool, gate: float, inliers: int
) -> str:
    """About one row; empty if there is nothing to say."""
    if is_suspect and suspects_left_out:
        return "suspect: far less aligned with the others than most members over the rounds so far"
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
    below: float | None = None
    if past is not None:
        inliers, inlier_variance = by_size[-1]
        cosines = cosines_with_inliers(judged.geometry, frozenset(inliers))
        reputations = updated_reputations(past, placed(cosines, judged.order, len(rows), -1.0))
        seen = [reputations[i] for i in judged.order]
        below = suspect_below(seen)
        suspected = suspects(
            seen,
            judged.faults_max,
            gate_exceeded=by_size[0][1] > gate_for(len(judged.order)) * inlier_variance,
        )
    verdict = judge_adaptive(judged.geometry, judged.faults_max, by_size, suspected)
    return replace(
        summed_by(verdict, judged, rows, base, workers, weighing),
        reputations=reputations,
        suspects=frozenset(judged.order[i] for i in suspected),
        suspect_below=below,
    )
