"""The inner loops of eigen.py in plain NumPy: what eigen_numba.py must equal bit for bit.

Only + - * / and square root, in a fixed order.
"""

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def diagonalise(a: Matrix, limits: Matrix, steps: NDArray[np.int32], sweeps_max: int) -> None:
    """Sweep Jacobi rotations over (s, k, k) symmetric matrices, in place.

    All matrices are swept until no entry off any diagonal exceeds its matrix's limit.
    """
    for _ in range(sweeps_max):
        for p, q in steps:
            rotate(a, p, q)
        off = np.abs(a)
        for k in range(a.shape[-1]):
            off[:, k, k] = 0.0
        if bool((off.max(axis=(1, 2)) <= limits).all()):
            break


def rotate(a: Matrix, p: NDArray[np.int32], q: NDArray[np.int32]) -> None:
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


def square_repeatedly(power: Matrix, times: int) -> None:
    """Square each of (s, k, k) matrices, in place, scaled before each squaring."""
    for _ in range(times):
        top = np.abs(power).max(axis=(1, 2))
        power /= np.where(top > 0.0, top, 1.0)[:, None, None]
        square = power[:, :, :1] * power[:, :1, :]
        for k in range(1, power.shape[-1]):
            square += power[:, :, k : k + 1] * power[:, k : k + 1, :]
        power[:] = square


def power_iteration(matrix: Matrix, vector: Matrix, steps: int) -> None:
    """Multiply the vector by the symmetric matrix, in place, scaled before each step."""
    for _ in range(steps):
        largest = float(np.abs(vector).max())
        if largest == 0.0:
            break
        vector[:] = applied(matrix, vector / largest)


def applied(matrix: Matrix, vector: Matrix) -> Matrix:
    """Symmetric matrix times vector; accumulated first to last, where NumPy chooses no order."""
    total: Matrix = np.add.accumulate(matrix * vector, axis=1)[:, -1]
    return total
