"""Largest eigenvalues of small symmetric matrices, many at a time, the same bits everywhere.

Jacobi's rotations in a fixed order with + - * / and square root alone; no LAPACK, whose results
differ from build to build.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

# Rotations converge quadratically; 30 sweeps are far above what matrices of this size need, and
# the loop ends as soon as nothing off the diagonal is left.
SWEEPS_MAX = 30
NEGLIGIBLE = 1e-15  # of the largest entry

POWER_STEPS = 100  # only for many rows, where the direction need not be perfect


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
    for _ in range(SWEEPS_MAX):
        for p in range(size):
            for q in range(p + 1, size):
                rotate(a, p, q)
        off = np.abs(a)
        for p in range(size):
            off[:, p, p] = 0.0
        if bool((off.max(axis=(1, 2)) <= limit).all()):
            break
    largest = a[:, 0, 0].copy()
    for p in range(1, size):
        np.maximum(largest, a[:, p, p], out=largest)
    return largest


def rotate(a: Matrix, p: int, q: int) -> None:
    """One Jacobi rotation that brings a[p, q] to zero, in every matrix (Golub, Van Loan 8.5)."""
    apq = a[:, p, q]
    zero = np.abs(apq) < 1e-300
    theta = (a[:, q, q] - a[:, p, p]) / np.where(zero, 1.0, 2.0 * apq)
    # Beyond this size theta's square would overflow, and the rotation is the identity anyway.
    theta = np.clip(theta, -1e150, 1e150)
    tangent = np.where(theta >= 0.0, 1.0, -1.0) / (np.abs(theta) + np.sqrt(theta * theta + 1.0))
    tangent = np.where(zero, 0.0, tangent)
    cosine = 1.0 / np.sqrt(tangent * tangent + 1.0)
    sine = tangent * cosine
    row_p, row_q = a[:, p, :].copy(), a[:, q, :].copy()
    a[:, p, :] = cosine[:, None] * row_p - sine[:, None] * row_q
    a[:, q, :] = sine[:, None] * row_p + cosine[:, None] * row_q
    column_p, column_q = a[:, :, p].copy(), a[:, :, q].copy()
    a[:, :, p] = cosine[:, None] * column_p - sine[:, None] * column_q
    a[:, :, q] = sine[:, None] * column_p + cosine[:, None] * column_q


def largest_variances(distances: Matrix, subsets: Sequence[Sequence[int]]) -> list[float]:
    """The largest eigenvalue of the covariance of each subset of rows, all of one size."""
    size = len(subsets[0])
    if size == 1:
        return [0.0] * len(subsets)
    index = np.array(subsets)
    chosen = distances[index[:, :, None], index[:, None, :]]
    return [float(value) / size for value in largest_eigenvalues(centred(chosen))]


def main_direction(products: Matrix) -> Matrix:
    """The eigenvector of the largest eigenvalue, by a fixed number of power iterations."""
    vector: Matrix = products[int(np.argmax(np.diagonal(products)))].copy()
    for _ in range(POWER_STEPS):
        size = float(np.abs(vector).max())
        if size == 0.0:
            break
        vector = vector / size
        total: Matrix = products[0] * vector[0]
        for k in range(1, len(vector)):
            total = total + products[k] * vector[k]
        vector = total
    return vector
