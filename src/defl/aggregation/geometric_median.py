"""The point with the smallest sum of distances to all rows, iterated until it stands still.

Weiszfeld's iteration on the weights (each row's share is 1 / its distance to the point), run on
squared distances between rows alone. A row that is itself the minimum is recognised by Kuhn's
condition before the iteration starts, since the iteration would only creep towards it.

Weiszfeld 1937; Kuhn 1973; for federated learning Pillutla, Kakade, Harchaoui, IEEE TSP 2022.
Condition m >= 2f + 1, which is also its breakdown point: below a half. With f < m/2 Byzantine
rows it stays within 2(m - f)/(m - 2f) of the honest rows' radius around any centre.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from defl.aggregation.aggregate import AggregationResult, Row
from defl.aggregation.conditions import MAJORITY
from defl.aggregation.eigen import applied
from defl.aggregation.geometric import Verdict, aggregate_by, placed
from defl.aggregation.gram import Geometry, MeasuredRows, below_one
from defl.aggregation.workers import ALONE, Workers

# The iteration ends when no weight moves by more than this, which moves the point by less than
# this share of the rows' diameter. The cap is far above what any test has needed.
STANDSTILL = 1e-10
STEPS_MAX = 20_000
FAR = 1 << 20

Matrix = NDArray[np.float64]


def in_order(values: Matrix) -> float:
    """The plain sum, first to last."""
    total = 0.0
    for value in values.tolist():
        total += value
    return total


def squared_to_point(distances: Matrix, weights: Matrix) -> Matrix:
    """Squared distances of all rows to their weighted mean, from those between rows."""
    mean = applied(distances, weights)
    return np.maximum(mean - 0.5 * in_order(mean * weights), 0.0)


def vertex(distances: Matrix) -> int | None:
    """The row that is itself the geometric median, if one is (Kuhn 1973)."""
    for k in range(len(distances)):
        to = distances[k]
        apart = to > 0.0
        # Cosines between the directions from row k to the others; rows at row k count as 0.
        length = np.sqrt(np.where(apart, to, 1.0))
        along = 0.5 * (to[:, None] + to[None, :] - distances) / (length[:, None] * length[None, :])
        along = np.where(apart[:, None] & apart[None, :], along, 0.0)
        pull = in_order(applied(along, np.ones(len(distances))))
        if pull <= float(np.count_nonzero(~apart)) ** 2:
            return k
    return None


def within_reach(geometry: Geometry, faults_max: int) -> list[int]:
    """The rows that float64 can weigh against the closest m - f of them.

    A row FAR times farther away would pull with a weight that is all rounding error, times a
    length that is not. There are at most f such rows.
    """
    squares = geometry.squared_distances
    radii = [sorted(row)[geometry.size - faults_max - 1] for row in squares]
    centre = min(range(geometry.size), key=lambda i: (radii[i], i))
    bound = radii[centre] * FAR * FAR
    return [i for i in range(geometry.size) if squares[centre][i] <= bound]


def standing_weights(distances: Matrix) -> tuple[Matrix, int]:
    """The weights at which Weiszfeld's iteration stands still, and after how many steps."""
    size = len(distances)
    found = vertex(distances)
    if found is not None:
        same = distances[found] == 0.0
        return np.where(same, 1.0 / int(same.sum()), 0.0), 0
    weights = np.full(size, 1.0 / size)
    moved, steps = 1.0, 0
    while moved > STANDSTILL and steps < STEPS_MAX:
        # No row is the minimum, so a distance of zero can only be rounding: keep it off zero.
        pull = 1.0 / np.sqrt(np.maximum(squared_to_point(distances, weights), 1e-30))
        new = pull / in_order(pull)
        moved = float(np.abs(new - weights).max())
        weights = new
        steps += 1
    return weights, steps


def judge_geometric_median(geometry: Geometry, faults_max: int) -> Verdict:
    near = within_reach(geometry, faults_max)
    squares = geometry.taken(near).squared_distances
    found, steps = standing_weights(below_one(squares))
    weights = placed(found.tolist(), near, geometry.size, 0.0)
    # Scores need no more than float64's precision: every row against the point.
    away = squared_to_point(below_one(geometry.squared_distances), np.array(weights))
    largest = max(max(row) for row in geometry.squared_distances)
    unit = geometry.real(1 << largest.bit_length())
    far = geometry.size - len(near)
    return Verdict(
        weights,
        tuple(float(np.sqrt(square * unit)) for square in away),
        f"the geometric median of {len(near)} updates, still after {steps} steps."
        + (f" {far} lay beyond all measure and were left out." if far else ""),
    )


def geometric_median(
    rows: Sequence[Row],
    base: Row,
    faults_max: int,
    ties: Sequence[bytes],
    *,
    strict: bool = False,
    workers: Workers = ALONE,
    measured: MeasuredRows | None = None,
) -> AggregationResult:
    """The converged geometric median; a row's score is its distance to it."""
    return aggregate_by(
        judge_geometric_median,
        rows,
        base,
        faults_max,
        ties,
        condition=MAJORITY,
        strict=strict,
        workers=workers,
        measured=measured,
    )
