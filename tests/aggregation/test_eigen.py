"""Eigenvalues: all pairs are rotated, LAPACK agrees, and compiled loops give the same bits."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from defl.aggregation import kernels, kernels_numba, kernels_numpy
from defl.aggregation.eigen import (
    centred,
    largest_eigenvalues,
    main_direction,
    pairings,
    roughly_largest,
)

Matrix = NDArray[np.float64]


@pytest.mark.parametrize("size", range(1, 17))
def test_every_pair_occurs_once_and_pairs_of_a_step_are_disjoint(size: int) -> None:
    steps = pairings(size).tolist()
    pairs = [pair for p, q in steps for pair in zip(p, q, strict=True)]
    assert sorted(pairs) == [(p, q) for p in range(size) for q in range(p + 1, size)]
    assert all(len({*p, *q}) == len(p) + len(q) for p, q in steps)


@pytest.mark.parametrize("size", [1, 2, 5, 10, 11])
def test_largest_eigenvalues_agree_with_lapack(size: int) -> None:
    rng = np.random.default_rng(size)
    factors = rng.standard_normal((50, size, size))
    matrices = factors @ factors.swapaxes(1, 2)
    np.testing.assert_allclose(
        largest_eigenvalues(matrices), np.linalg.eigvalsh(matrices)[:, -1], rtol=1e-13
    )


def distances(points: Matrix) -> Matrix:
    squares = ((points[:, None] - points[None, :]) ** 2).sum(axis=-1)
    return squares / max(2.0 * squares.max(), 1.0)


def rounds_of(size: int) -> Matrix:
    """Distances between random points, equal points, points on a lattice, and with outliers."""
    rng = np.random.default_rng(size)
    random = rng.standard_normal((size, 6))
    outliers = random.copy()
    outliers[: size // 3] *= 1e9
    tiny = random * 1e-160
    kinds = (random, np.ones((size, 6)), np.round(random), outliers, tiny)
    return np.stack([distances(points) for points in kinds])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 10, 11, 31, 50])
@pytest.mark.parametrize(
    "function",
    [
        largest_eigenvalues,
        roughly_largest,
        lambda matrices: np.stack([main_direction(matrix) for matrix in matrices]),
    ],
    ids=["largest_eigenvalues", "roughly_largest", "main_direction"],
)
def test_compiled_loops_give_the_same_bits(
    size: int, function: Callable[[Matrix], Matrix], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrices = centred(rounds_of(size))
    results = []
    for loops in (kernels_numpy, kernels_numba):
        monkeypatch.setattr(kernels, "loaded", lambda loops=loops: loops)
        results.append(function(matrices).tobytes())
    assert results[0] == results[1]
