"""Shamir's shares: any `needed` of them give the secret back, fewer give nothing."""

from itertools import combinations

import numpy as np
import pytest

from defl.errors import PreconditionBroken
from defl.lab.baselines.shamir import (
    PRIME,
    added,
    fixed_point,
    from_bytes,
    mean_of_sum,
    reconstruct,
    split,
    to_bytes,
)


def secrets(count: int, values: int = 200) -> list[np.ndarray]:
    rng = np.random.default_rng(count)
    return [rng.standard_normal(values, dtype=np.float32) for _ in range(count)]


@pytest.mark.parametrize(("shares", "needed"), [(1, 1), (3, 2), (5, 3), (5, 5)])
def test_any_needed_shares_reconstruct_the_secret(shares: int, needed: int) -> None:
    secret = fixed_point(secrets(1)[0])
    made = split(secret, shares, needed, np.random.default_rng(1))

    for chosen in combinations(range(shares), needed):
        assert (reconstruct({i: made[i] for i in chosen}, needed) == secret).all()


def test_too_few_shares_are_refused_and_do_not_reveal_the_secret() -> None:
    secret = fixed_point(secrets(1)[0])
    made = split(secret, 3, 2, np.random.default_rng(1))

    with pytest.raises(PreconditionBroken):
        reconstruct({0: made[0]}, 2)
    assert (made[0] != secret).mean() > 0.99


def test_single_share_is_independent_of_the_secret() -> None:
    zero, large = np.zeros(20_000, dtype=np.uint64), np.full(20_000, PRIME - 1, dtype=np.uint64)
    means = [
        split(secret, 3, 2, np.random.default_rng(7))[0].mean() / PRIME for secret in (zero, large)
    ]

    assert means == pytest.approx([0.5, 0.5], abs=0.02)


@pytest.mark.parametrize("count", [1, 7, 100])
def test_sum_of_shares_opens_to_the_mean_change(count: int) -> None:
    changes = secrets(count)
    rng = np.random.default_rng(2)
    shared = [split(fixed_point(change), 3, 2, rng) for change in changes]
    sums = {i: added([shares[i] for shares in shared]) for i in (0, 2)}

    opened = mean_of_sum(reconstruct(sums, 2), count)

    np.testing.assert_allclose(opened, np.mean(changes, axis=0), atol=2**-18)


def test_sum_of_a_hundred_largest_changes_does_not_overflow() -> None:
    largest = fixed_point(np.array([1e9, -1e9], dtype=np.float32))
    total = added([largest] * 100)

    np.testing.assert_allclose(mean_of_sum(total, 100), [32, -32], rtol=1e-5)


def test_bytes_that_are_not_a_share_are_rejected() -> None:
    share = split(fixed_point(secrets(1)[0]), 1, 1, np.random.default_rng(1))[0]

    assert (from_bytes(to_bytes(share), share.size) == share).all()
    assert from_bytes(to_bytes(share)[:-1], share.size) is None
    assert from_bytes(b"\xff" * 4 * share.size, share.size) is None
