"""Largest eigenvalues of small symmetric matrices, many at a time, the same bits everywhere.

Jacobi rotations in a fixed order with + - * / and square root alone; no LAPACK, whose results
differ between builds.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

# Rotations converge quadratically: 30 sweeps are far more than matrices of this size need, and the
# loop ends as soon as nothing is left off the diagonal.
SWEEPS_MAX = 30
NEGLIGIBLE = 1e-15  # of the largest entry

POWER_STEPS = 100  # only for many rows, where an approximate direction is enough


def centred(distances: Matrix) -> Matrix:
    """Inner products around the mean, from squared distances: -1/2 J D J, for (..., k, k)."""
    size = distances.shape[-1]
    mean = distances[..., 0, :].copy()
    for k in range(1, size):
        mean += distances[..., k, :]
    mean /= size
    total = mean[..., 0].copy()
    for k in range(1, size):
        total += mean[..., k]
    total /= size
    corner = mean[..., :, None] + mean[..., None, :] - total[..., None, None]
    return -0.5 * (distances - corner)


def largest_eigenvalues(matrices: Matrix) -> Matrix:
    """The largest eigenvalue of each of (s, k, k) symmetric matrices."""
    a = matrices.copy()
    size = a.shape[-1]
    limit = np.abs(a).max(axis=(1, 2)) * NEGLIGIBLE
    steps = pairings(size)
    for _ in range(SWEEPS_MAX):
        for p, q in steps:
            rotate(a, p, q)
        off = np.abs(a)
        for k in range(size):
            off[:, k, k] = 0.0
        if bool((off.max(axis=(1, 2)) <= limit).all()):
            break
    largest = a[:, 0, 0].copy()
    for k in range(1, size):
        np.maximum(largest, a[:, k, k], out=largest)
    return largest


def pairings(size: int) -> list[tuple[list[int], list[int]]]:
    """Every pair of 0 ... size - 1 once, in steps of disjoint pairs.

    The circle method of round-robin tournaments: the last one stays, the others move by one.
    """
    last = size - 1 + size % 2  # with an odd size, a dummy that leaves its partner out
    steps = []
    for shift in range(last):
        circle = [*((shift + k) % last for k in range(last)), last]
        pairs = [sorted((circle[k], circle[last - k])) for k in range((last + 1) // 2)]
        real = [(p, q) for p, q in pairs if q < size]
        steps.append(([p for p, _ in real], [q for _, q in real]))
    return steps


def rotate(a: Matrix, p: list[int], q: list[int]) -> None:
    """Jacobi rotations that bring every a[p, q] to zero, in every matrix (Golub, Van Loan 8.5).

    Rotations of disjoint pairs do not touch one another's entries at (p, q).
    """
    apq = a[:, p, q]
    zero = np.abs(apq) < 1e-300
    theta = (a[:, q, q] - a[:, p, p]) / np.where(zero, 1.0, 2.0 * apq)
    # Beyond this size theta's square would overflow, and the rotation is the identity anyway.
    theta = np.clip(theta, -1e150, 1e150)
    tangent = np.where(theta >= 0.0, 1.0, -1.0) / (np.abs(theta) + np.sqrt(theta * theta + 1.0))
    tangent = np.where(zero, 0.0, tangent)
    cosine = (1.0 / np.sqrt(tangent * tangent + 1.0))[:, :, None]
    sine = tangent[:, :, None] * cosine
    row_p, row_q = a[:, p, :], a[:, q, :]
    a[:, p, :] = cosine * row_p - sine * row_q
    a[:, q, :] = sine * row_p + cosine * row_q
    across = a.swapaxes(1, 2)
    column_p, column_q = across[:, p, :], across[:, q, :]
    across[:, p, :] = cosine * column_p - sine * column_q
    across[:, q, :] = sine * column_p + cosine * column_q


def roughly_largest(matrices: Matrix) -> Matrix:
    """A lower bound of each largest eigenvalue, at most 1 % below it.

    A column of the matrix's 1,024th power (ten squarings) is almost parallel to the main direction.
    The error of its Rayleigh quotient is at most ln(size) / 2,048, less than half a percent.
    """
    power = matrices.copy()
    size = power.shape[-1]
    for _ in range(10):
        top = np.abs(power).max(axis=(1, 2))
        power /= np.where(top > 0.0, top, 1.0)[:, None, None]
        square = power[:, :, :1] * power[:, :1, :]
        for k in range(1, size):
            square += power[:, :, k : k + 1] * power[:, k : k + 1, :]
        power = square
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


def applied(matrix: Matrix, vector: Matrix) -> Matrix:
    """Matrix times vector, column by column: the same order on every machine."""
    total: Matrix = matrix[0] * vector[0]
    for k in range(1, len(vector)):
        total = total + matrix[k] * vector[k]
    return total


def main_direction(products: Matrix) -> Matrix:
    """The eigenvector of the largest eigenvalue, by a fixed number of power iterations."""
    vector: Matrix = products[int(np.argmax(np.diagonal(products)))].copy()
    for _ in range(POWER_STEPS):
        size = float(np.abs(vector).max())
        if size == 0.0:
            break
        vector = applied(products, vector / size)
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
