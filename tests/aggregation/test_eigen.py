"""Eigenvalues by rotations of disjoint pairs cover every pair and agree with LAPACK."""

import numpy as np
import pytest

from defl.aggregation.eigen import largest_eigenvalues, pairings


@pytest.mark.parametrize("size", range(1, 17))
def test_every_pair_occurs_once_and_pairs_of_a_step_are_disjoint(size: int) -> None:
    steps = pairings(size)
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
