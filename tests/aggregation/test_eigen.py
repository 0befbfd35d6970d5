"""Eigenvalues by rotations of disjoint pairs: every pair has its turn, and LAPACK agrees."""

import numpy as np
import pytest

from defl.aggregation.eigen import largest_eigenvalues, pairings


@pytest.mark.parametrize("size", range(1, 17))
def test_every_pair_meets_once_and_nobody_twice_in_a_step(size: int) -> None:
    steps = pairings(size)
    met = [pair for one, other in steps for pair in zip(one, other, strict=True)]
    assert sorted(met) == [(p, q) for p in range(size) for q in range(p + 1, size)]
    assert all(len({*one, *other}) == len(one) + len(other) for one, other in steps)


@pytest.mark.parametrize("size", [1, 2, 5, 10, 11])
def test_the_largest_eigenvalues_are_those_of_lapack(size: int) -> None:
    rng = np.random.default_rng(size)
    factors = rng.standard_normal((50, size, size))
    matrices = factors @ factors.swapaxes(1, 2)
    np.testing.assert_allclose(
        largest_eigenvalues(matrices), np.linalg.eigvalsh(matrices)[:, -1], rtol=1e-13
    )
