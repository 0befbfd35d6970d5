"""The geometric median: the point with the smallest sum of distances to all rows.

Weiszfeld's iteration on the weights (each row's share is 1 / its distance to the point), computed
from the squared distances between rows alone. Kuhn's condition recognises a row that is itself the
minimum before the iteration starts; the iteration would only creep towards it.

Weiszfeld 1937; Kuhn 1973; for federated learning Pillutla, Kakade, Harchaoui, IEEE TSP 2022.
Condition m >= 2f + 1, which is also its breakdown point: below a half. With f < m/2 Byzantine
rows it stays within 2(m - f)/(m - 2f) of the honest rows' radius around any centre.
"""

import numpy as np
from numpy.typing import NDArray

from defl.aggregation.eigen_numpy import applied
from defl.aggregation.geometric import Verdict, placed
from defl.aggregation.gram import Geometry, below_one

# The iteration has converged when no weight moves by more than this, which moves the point by less
# than this share of the rows' diameter. No test has come near the cap.
CONVERGED = 1e-10
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


def comparable_rows(geometry: Geometry, faults_max: int) -> list[int]:
    """The rows that float64 can weigh against the closest m - f of them.

    The weight of a row FAR times farther away would be pure rounding error, and its length would
    not. There are at most f such rows.
    """
    squares = geometry.squared_distances
    radii = [sorted(row)[geometry.size - faults_max - 1] for row in squares]
    centre = min(range(geometry.size), key=lambda i: (radii[i], i))
    bound = radii[centre] * FAR * FAR
    return [i for i in range(geometry.size) if squares[centre][i] <= bound]


def converged_weights(distances: Matrix) -> tuple[Matrix, int]:
    """The weights to which Weiszfeld's iteration converges, and the number of steps."""
    size = len(distances)
    median_row = vertex(distances)
    if median_row is not None:
        same = distances[median_row] == 0.0
        return np.where(same, 1.0 / int(same.sum()), 0.0), 0
    weights = np.full(size, 1.0 / size)
    moved, steps = 1.0, 0
    while moved > CONVERGED and steps < STEPS_MAX:
        # No row is the minimum, so a distance of zero can only be a rounding error.
        pull = 1.0 / np.sqrt(np.maximum(squared_to_point(distances, weights), 1e-30))
        new = pull / in_order(pull)
        moved = float(np.abs(new - weights).max())
        weights = new
        steps += 1
    return weights, steps


def judge_geometric_median(geometry: Geometry, faults_max: int) -> Verdict:
    """The converged geometric median; a row's score is its distance to it."""
    near = comparable_rows(geometry, faults_max)
    squares = geometry.taken(near).squared_distances
    near_weights, steps = converged_weights(below_one(squares))
    weights = placed(near_weights.tolist(), near, geometry.size, 0.0)
    # float64 is precise enough for scores, of far rows too.
    away = squared_to_point(below_one(geometry.squared_distances), np.array(weights))
    largest = max(max(row) for row in geometry.squared_distances)
    unit = geometry.real(1 << largest.bit_length())
    far = geometry.size - len(near)
    return Verdict(
        weights,
        tuple(float(np.sqrt(square * unit)) for square in away),
        f"the geometric median of {len(near)} updates, converged after {steps} steps."
        + (f" {far} are too far away to compare and were left out." if far else ""),
        tuple("" if i in near else "too far away to compare" for i in range(geometry.size)),
    )
