"""The inner loops of eigen.py, compiled: the same bits as eigen_numpy.py, many times faster."""

from math import sqrt

import numpy as np
from numba import float64, int32, int64, void
from numpy.typing import NDArray

from defl.aggregation.compiling import compiled, inlined

Matrix = NDArray[np.float64]


@inlined
def largest_magnitude(values: Matrix) -> float:
    largest = 0.0
    for value in values.flat:
        largest = max(largest, abs(value))
    return largest


@inlined
def rotate(
    a: Matrix, p: NDArray[np.int32], q: NDArray[np.int32], cosines: Matrix, sines: Matrix
) -> None:
    """As eigen_numpy.rotate: all angles, then all rows, then all columns."""
    size = len(a)
    for k in range(p.size):
        apq = a[p[k], q[k]]
        zero = abs(apq) < 1e-300
        theta = (a[q[k], q[k]] - a[p[k], p[k]]) / (1.0 if zero else 2.0 * apq)
        theta = min(max(theta, -1e150), 1e150)
        tangent = (1.0 if theta >= 0.0 else -1.0) / (abs(theta) + sqrt(theta * theta + 1.0))
        tangent = 0.0 if zero else tangent
        cosines[k] = 1.0 / sqrt(tangent * tangent + 1.0)
        sines[k] = tangent * cosines[k]
    for k in range(p.size):
        cosine, sine = cosines[k], sines[k]
        for j in range(size):
            of_p, of_q = a[p[k], j], a[q[k], j]
            a[p[k], j] = cosine * of_p - sine * of_q
            a[q[k], j] = sine * of_p + cosine * of_q
    for j in range(size):
        for k in range(p.size):
            of_p, of_q = a[j, p[k]], a[j, q[k]]
            a[j, p[k]] = cosines[k] * of_p - sines[k] * of_q
            a[j, q[k]] = sines[k] * of_p + cosines[k] * of_q


@compiled(void(float64[:, :, ::1], float64[::1], int32[:, :, ::1], int64))
def diagonalise(a: Matrix, limits: Matrix, steps: NDArray[np.int32], sweeps_max: int) -> None:
    """As eigen_numpy.diagonalise."""
    count, size = a.shape[0], a.shape[1]
    cosines, sines = np.zeros(size, np.float64), np.zeros(size, np.float64)
    for _ in range(sweeps_max):
        done = True
        for s in range(count):
            for step in range(steps.shape[0]):
                rotate(a[s], steps[step, 0], steps[step, 1], cosines, sines)
            for i in range(size):
                for j in range(size):
                    done &= i == j or abs(a[s, i, j]) <= limits[s]
        if done:
            break


@compiled(void(float64[:, :, ::1], int64))
def square_repeatedly(power: Matrix, times: int) -> None:
    """As eigen_numpy.square_repeatedly."""
    size = power.shape[1]
    square = np.zeros((size, size), np.float64)
    for s in range(power.shape[0]):
        a = power[s]
        for _ in range(times):
            top = largest_magnitude(a)
            divisor = top if top > 0.0 else 1.0
            for i in range(size):
                for j in range(size):
                    a[i, j] /= divisor
            for i in range(size):
                for j in range(size):
                    square[i, j] = a[i, 0] * a[0, j]
                for k in range(1, size):
                    for j in range(size):
                        square[i, j] += a[i, k] * a[k, j]
            a[:] = square


@compiled(void(float64[:, ::1], float64[::1], int64))
def power_iteration(matrix: Matrix, vector: Matrix, steps: int) -> None:
    """As eigen_numpy.power_iteration."""
    size = vector.size
    for _ in range(steps):
        largest = largest_magnitude(vector)
        if largest == 0.0:
            break
        unit = vector / largest
        for i in range(size):
            vector[i] = matrix[0, i] * unit[0]
        for k in range(1, size):
            for i in range(size):
                vector[i] += matrix[k, i] * unit[k]
