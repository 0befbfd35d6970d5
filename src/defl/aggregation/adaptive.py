"""Everybody's mean, unless somebody makes the round vary more than honest members would, or does
not go along with the others, this round and before.

Of all subsets of at least m - f rows, those are allowed whose largest variance (the greatest
eigenvalue of their covariance) is at most GATE times that of the calmest m - f rows. The largest
allowed one is averaged, of equals the calmest. When nobody attacks that is all rows, so nothing is
lost; a row that stands out is left out alone, not together with f - 1 honest ones.

Members whose standing (standing.py) leaves them in doubt, at most f of them, are left out as long
as an allowed subset without them exists. So memory chooses among what the gate allows and never
allows more, and the bound below holds whatever it remembers.

What f colluding attackers below the gate can do: let s^2 be the largest variance of the honest
rows. a attackers among the k rows kept, at a distance t from the mean of the honest kept, alone
make a variance of a (k - a) t^2 / k^2 in their direction, and the gate allows GATE s^2 at most; so
they move the aggregate by a t / k <= s sqrt(GATE a / (k - a)). With everybody kept and f = m/3
that is s sqrt(GATE / 2), which is no more than s. Honest rows that were left out (m - k of
them) move it by at most s sqrt((m - k) / (k - f)). No direction or length is out of reach below
the gate: what is bounded is how far, and the bound shrinks with the honest rows' own variance.
Attackers who have honest members doubted gain no more than the last term, f honest rows out, and
stay themselves only as far off as the first one allows.

Condition m >= 2f + 1, as for the smallest-eigenvalue subset (Allouah et al., ICML 2023), on which
it is built; breakdown below a half. docs/AGGREGATION.md tells how GATE was found and what else was
tried.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import comb

import numpy as np

from defl.aggregation.aggregate import AggregationResult, Row
from defl.aggregation.conditions import MAJORITY, check_round
from defl.aggregation.geometric import Verdict, admit, aggregate_by, measure, placed
from defl.aggregation.gram import Geometry, MeasuredRows, below_one
from defl.aggregation.reputation import (
    Past,
    Standing,
    along_with_others,
    in_doubt,
    standings_after,
)
from defl.aggregation.subset import SUBSETS_MAX, Matrix, best_subset, filtered, mean_square
from defl.aggregation.workers import ALONE, Workers

# Just above the 99th percentile of the ratio without attack, at Dirichlet alpha = 0.3: 1.85 at
# n = 4; 1.35 and 1.58 at n = 7 and 10.
GATE_FEW = 2.0
GATE = 1.6
FEW = 5  # rows

BySize = Sequence[tuple[tuple[int, ...], float]]  # subsets of rows with their largest variance


def gate_for(rows: int) -> float:
    return GATE_FEW if rows <= FEW else GATE


def calmest_by_size(distances: Matrix, faults_max: int) -> BySize:
    """The calmest subset of m, m - 1, ... m - f rows, each with its largest variance."""
    size = len(distances)
    if comb(size, faults_max) <= SUBSETS_MAX:
        return [best_subset(distances, size - out) for out in range(faults_max + 1)]
    return filtered(distances, size - faults_max)


def judge_adaptive(
    geometry: Geometry, faults_max: int, by_size: BySize, doubted: frozenset[int]
) -> Verdict:
    size = geometry.size
    calmest = by_size[-1][1]
    gate = gate_for(size)
    ratio = by_size[0][1] / calmest if calmest > 0 else float(by_size[0][1] > 0)
    kept = next(rows for rows, variance in by_size if variance <= gate * calmest)
    heeded = False
    if doubted:
        trusted = [i for i in range(size) if i not in doubted]
        distances = below_one(geometry.squared_distances)[np.ix_(trusted, trusted)]
        others = calmest_by_size(distances, faults_max - len(doubted))
        allowed = [rows for rows, variance in others if variance <= gate * calmest]
        if allowed:
            kept, heeded = tuple(trusted[i] for i in allowed[0]), True
    return Verdict(
        tuple(1.0 / len(kept) if i in kept else 0.0 for i in range(size)),
        tuple(mean_square(geometry, kept, i) for i in range(size)),
        in_words(size, len(kept), faults_max, gate, ratio, len(doubted), heeded),
    )


def in_words(
    size: int, kept: int, faults_max: int, gate: float, ratio: float, doubted: int, heeded: bool
) -> str:
    calm = f"that of the calmest {size - faults_max}"
    if kept == size:
        said = (
            f"the mean of all {size} updates: their largest variance is {ratio:.2f} times {calm}, "
            f"and {gate:g} times would be allowed."
        )
    elif heeded and kept == size - doubted:
        said = f"the mean of {kept} of {size} updates."
    else:
        more = size - kept - (doubted if heeded else 0)
        said = (
            f"the mean of {kept} of {size} updates; with {more} more the largest variance would be "
            f"more than {gate:g} times {calm}."
        )
    if heeded:
        said += (
            f" {doubted} left out in doubt: over the rounds so far they went along with the "
            "others far less than most."
        )
    elif doubted:
        said += (
            f" {doubted} would be left out in doubt, but the others alone vary more than is "
            "allowed."
        )
    return said


def adaptive(
    rows: Sequence[Row],
    base: Row,
    faults_max: int,
    ties: Sequence[bytes],
    *,
    strict: bool = False,
    workers: Workers = ALONE,
    measured: MeasuredRows | None = None,
    past: Past | None = None,
) -> AggregationResult:
    """The gated mean; a row's score is its squared distance to the aggregate."""
    check_round(rows, base, faults_max, ties)
    known = measured or measure(rows, base, workers)
    admitted = admit(known, faults_max, ties)
    distances = below_one(admitted.geometry.squared_distances)
    by_size = calmest_by_size(distances, admitted.faults_max)
    standings: tuple[Standing, ...] = ()
    doubted: frozenset[int] = frozenset()
    if past is not None:
        calm, variance = by_size[-1]
        along = along_with_others(admitted.geometry, frozenset(calm))
        standings = standings_after(past, placed(along, admitted.order, len(rows), -1.0))
        doubted = in_doubt(
            [standings[i] for i in admitted.order],
            admitted.faults_max,
            loud=by_size[0][1] > gate_for(len(admitted.order)) * variance,
        )
    made = aggregate_by(
        partial(judge_adaptive, by_size=by_size, doubted=doubted),
        rows,
        base,
        faults_max,
        ties,
        condition=MAJORITY,
        strict=strict,
        workers=workers,
        measured=known,
    )
    return replace(made, standings=standings)
