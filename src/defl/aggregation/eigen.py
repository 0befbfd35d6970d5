"""Largest eigenvalues of small symmetric matrices, many at a time, the same bits everywhere.

Jacobi rotations in a fixed order with + - * / and square root alone; no LAPACK, whose results
differ between builds. The inner loops are in eigen_numpy.py, and compiled in eigen_numba.py.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from defl.aggregation import kernels
from defl.aggregation.eigen_numpy import applied

Matrix = NDArray[np.float64]

# Rotations converge quadratically: 30 sweeps are far more than matrices of this size need, and the
# loop ends as soon as nothing is left off the diagonal.
SWEEPS_MAX = 30
NEGLIGIBLE = 1e-15  # of the largest entry

POWER_STEPS = 100  # only for many rows, where an approximate direction is enough


def centred(distances: Matrix) -> Matrix:
    """Inner products around the mean, from squared distances: -1/2 J D J, for (..., k, k)."""
    size = distances.shape[-1]
    # Accumulated first to last: NumPy chooses the order of a plain sum.
    mean = np.add.accumulate(distances, axis=-2)[..., -1, :] / size
    total = np.add.accumulate(mean, axis=-1)[..., -1] / size
    corner = mean[..., :, None] + mean[..., None, :] - total[..., None, None]
    products: Matrix = -0.5 * (distances - corner)
    return products


def largest_eigenvalues(matrices: Matrix) -> Matrix:
    """The largest eigenvalue of each of (s, k, k) symmetric matrices."""
    a = matrices.copy()
    size = a.shape[-1]
    limits = np.abs(a).max(axis=(1, 2)) * NEGLIGIBLE
    kernels.loaded().EIGEN.diagonalise(a, limits, pairings(size), SWEEPS_MAX)
    largest = a[:, 0, 0].copy()
    for k in range(1, size):
        np.maximum(largest, a[:, k, k], out=largest)
    return largest


@cache
def pairings(size: int) -> NDArray[np.int32]:
    """Every pair (p, q) of 0 ... size - 1 once, in steps of disjoint pairs: [step, p or q, pair].

    The circle method of round-robin tournaments: the last one stays, the others move by one.
    """
    last = size - 1 + size % 2  # with an odd size, a dummy that leaves its partner out
    steps = np.empty((last, 2, size // 2), dtype=np.int32)
    for shift in range(last):
        circle = [*((shift + k) % last for k in range(last)), last]
        pairs = [sorted((circle[k], circle[last - k])) for k in range((last + 1) // 2)]
        real = [(p, q) for p, q in pairs if q < size]
        steps[shift] = [p for p, _ in real], [q for _, q in real]
    return steps


def roughly_largest(matrices: Matrix) -> Matrix:
    """A lower bound of each largest eigenvalue, at most 1 % below it.

    A column of the matrix's 1,024th power (ten squarings) is almost parallel to the main direction.
    The error of its Rayleigh quotient is at most ln(size) / 2,048, less than half a percent.
    """
    power = matrices.copy()
    size = power.shape[-1]
    kernels.loaded().EIGEN.square_repeatedly(power, 10)
    place = power[:, range(size), range(size)].argmax(axis=1)
    vector = power[np.arange(len(power)), place]
    image = vector[:, :1] * matrices[:, 0]
    for k in range(1, size):
        image += vector[:, k : k + 1] * matrices[:, k]
    above, below = image[:, 0] * vector[:, 0], vector[:, 0] * vector[:, 0]
    for k in range(1, size):
        above = above + image[:, k] * vector[:, k]
        below = below + vector[:, k] * vector[:, k]
    result: Matrix = above / np.where(below > 0.0, below, 1.0)
    return result


def largest_variances(distances: Matrix, subsets: Sequence[Sequence[int]]) -> list[float]:
    """The largest eigenvalue of the covariance of each subset of rows, all of one size."""
    size = len(subsets[0])
    index = np.array(subsets)
    products = centred(distances[index[:, :, None], index[:, None, :]])
    return [float(value) / size for value in largest_eigenvalues(products)]


def tightest(distances: Matrix, subsets: Sequence[Sequence[int]]) -> tuple[int, float]:
    """The index of the subset with the smallest largest variance, and that variance.

    Exact eigenvalues are computed only for the subsets that a rough bound does not rule out.
    """
    size = len(subsets[0])
    if size == 1:
        return 0, 0.0
    index = np.array(subsets)
    products = centred(distances[index[:, :, None], index[:, None, :]])
    rough = roughly_largest(products)
    close = np.flatnonzero(rough <= rough.min() * 1.02)
    exact = largest_eigenvalues(products[close])
    best = int(np.argmin(exact))  # the first among equals
    return int(close[best]), float(exact[best]) / size


def main_direction(products: Matrix) -> Matrix:
    """The eigenvector of the largest eigenvalue, by a fixed number of power iterations."""
    vector: Matrix = products[int(np.argmax(np.diagonal(products)))].copy()
    kernels.loaded().EIGEN.power_iteration(products, vector, POWER_STEPS)
    return vector


def stretch(products: Matrix, vector: Matrix) -> float:
    """The Rayleigh quotient: the eigenvalue, if the vector is an eigenvector."""
    size = float(np.abs(vector).max())
    if size == 0.0:
        return 0.0
    unit = vector / size
    image = applied(products, unit)
    above, below = 0.0, 0.0
    for a, b in zip(image.tolist(), unit.tolist(), strict=True):
        above += a * b
        below += b * b
    return above / below
