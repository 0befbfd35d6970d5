"""Everybody's mean, unless somebody makes the round vary more than honest members would.

Of all subsets of at least m - f rows, the largest one is averaged whose largest variance (the
greatest eigenvalue of its covariance) is at most GATE times that of the calmest m - f rows. When
nobody attacks that is all of them, so nothing is lost; a row that stands out is left out alone,
not together with f - 1 honest ones.

What f colluding attackers below the gate can do: let s^2 be the largest variance of the honest
rows. a attackers among the k rows kept, at a distance t from the mean of the honest kept, alone
make a variance of a (k - a) t^2 / k^2 in their direction, and the gate allows GATE s^2 at most; so
they move the aggregate by a t / k <= s sqrt(GATE a / (k - a)). With everybody kept and f = m/3
that is s sqrt(GATE / 2), which is no more than s. Honest rows that were left out (m - k of
them) move it by at most s sqrt((m - k) / (k - f)). No direction or length is out of reach below
the gate: what is bounded is how far, and the bound shrinks with the honest rows' own variance.

Condition m >= 2f + 1, as for the smallest-eigenvalue subset (Allouah et al., ICML 2023), on which
it is built; breakdown below a half. docs/AGGREGATION.md tells how GATE was found and what else was
tried.
"""

from collections.abc import Sequence
from math import comb

from defl.aggregation.aggregate import Aggregate, Row
from defl.aggregation.conditions import MAJORITY
from defl.aggregation.geometric import Verdict, aggregate_by
from defl.aggregation.gram import Geometry, Measured, below_one
from defl.aggregation.subset import SUBSETS_MAX, Matrix, best_subset, filtered, mean_square
from defl.aggregation.workers import ALONE, Workers

# Just above the 99th percentile of the ratio without attack, at Dirichlet alpha = 0.3: 1.85 at
# n = 4; 1.35 and 1.58 at n = 7 and 10.
GATE_FEW = 2.0
GATE = 1.6
FEW = 5  # rows


def gate_for(rows: int) -> float:
    return GATE_FEW if rows <= FEW else GATE


def calmest_by_size(distances: Matrix, faults_max: int) -> list[tuple[tuple[int, ...], float]]:
    """The calmest subset of m, m - 1, ... m - f rows, each with its largest variance."""
    size = len(distances)
    if comb(size, faults_max) <= SUBSETS_MAX:
        return [best_subset(distances, size - out) for out in range(faults_max + 1)]
    return filtered(distances, size - faults_max)


def judge_adaptive(geometry: Geometry, faults_max: int) -> Verdict:
    size = geometry.size
    by_size = calmest_by_size(below_one(geometry.squared_distances), faults_max)
    calmest = by_size[-1][1]
    gate = gate_for(size)
    kept = next(rows for rows, variance in by_size if variance <= gate * calmest)
    ratio = by_size[0][1] / calmest if calmest > 0 else float(by_size[0][1] > 0)
    out = size - len(kept)
    said = (
        f"the mean of all {size} updates: their largest variance is {ratio:.2f} times that of the "
        f"calmest {size - faults_max}, and {gate:g} times would be allowed."
        if out == 0
        else f"the mean of {len(kept)} of {size} updates; with the other {out} the largest "
        f"variance would be more than {gate:g} times that of the calmest {size - faults_max}."
    )
    return Verdict(
        tuple(1.0 / len(kept) if i in kept else 0.0 for i in range(size)),
        tuple(mean_square(geometry, kept, i) for i in range(size)),
        said,
    )


def adaptive(
    rows: Sequence[Row],
    base: Row,
    faults_max: int,
    ties: Sequence[bytes],
    *,
    strict: bool = False,
    workers: Workers = ALONE,
    measured: Measured | None = None,
) -> Aggregate:
    """The gated mean; a row's score is its squared distance to the aggregate."""
    return aggregate_by(
        judge_adaptive,
        rows,
        base,
        faults_max,
        ties,
        condition=MAJORITY,
        strict=strict,
        workers=workers,
        measured=measured,
    )
