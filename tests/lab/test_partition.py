"""Who gets which samples: everything once, nobody nothing, the same for the same seed."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defl.errors import UserError
from defl.lab.experiments.partition_plot import plot_partition
from defl.lab.partition import ALPHA_MIN, counts, divide, divide_by_size

LABELS = np.repeat(np.arange(10), 500)

alphas = st.one_of(st.none(), st.floats(1e-6, 1e6), st.just(ALPHA_MIN))


@settings(deadline=None)
@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    nodes=st.integers(1, 12),
    alpha=alphas,
    least=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_every_sample_goes_to_exactly_one_node_and_no_node_is_empty(
    labels: list[int], nodes: int, alpha: float | None, least: int, seed: int
) -> None:
    array = np.array(labels, np.int64)
    if len(array) < nodes * least:
        with pytest.raises(UserError, match="too few"):
            divide(array, nodes, alpha, np.random.default_rng(seed), least=least)
        return

    parts = divide(array, nodes, alpha, np.random.default_rng(seed), least=least)

    assert len(parts) == nodes
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(array)))
    assert min(map(len, parts)) >= least
    have = counts(array, parts, 6)
    np.testing.assert_array_equal(have.sum(axis=0), np.bincount(array, minlength=6))


@settings(deadline=None)
@given(nodes=st.integers(1, 20), seed=st.integers(0, 2**32))
def test_parts_of_iid_data_differ_by_at_most_one_sample(nodes: int, seed: int) -> None:
    sizes = [len(part) for part in divide(LABELS, nodes, None, np.random.default_rng(seed))]

    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(alpha=alphas, seed=st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_parts(alpha: float | None, seed: int) -> None:
    one, two = (divide(LABELS, 7, alpha, np.random.default_rng(seed)) for _ in range(2))

    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_another_seed_gives_other_parts() -> None:
    one, two = (divide(LABELS, 4, 1.0, np.random.default_rng(seed)) for seed in (1, 2))

    assert any(not np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_shares_of_a_label_have_the_moments_of_the_dirichlet_distribution() -> None:
    """With n nodes a share has mean 1/n and variance (n - 1) / (n^2 (n alpha + 1))."""
    nodes, alpha = 4, 1.0
    shares = np.concatenate(
        [
            counts(LABELS, divide(LABELS, nodes, alpha, np.random.default_rng(seed)), 10) / 500
            for seed in range(300)
        ],
        axis=1,
    )

    assert shares.mean(axis=1) == pytest.approx(np.full(nodes, 1 / nodes), abs=0.02)
    variance = (nodes - 1) / (nodes**2 * (nodes * alpha + 1))
    assert shares.var(axis=1) == pytest.approx(np.full(nodes, variance), rel=0.1)


def test_smaller_alpha_gives_more_skewed_nodes() -> None:
    def one_sided(alpha: float | None) -> float:
        have = counts(LABELS, divide(LABELS, 10, alpha, np.random.default_rng(1)), 10)
        return float((have.max(axis=1) / have.sum(axis=1)).mean())

    assert one_sided(0.05) > one_sided(1.0) > one_sided(100.0)
    assert one_sided(1e6) == pytest.approx(one_sided(None), abs=0.03)


def test_smallest_alpha_gives_each_label_to_one_random_node() -> None:
    holders = [
        int(node)
        for seed in range(20)
        for node in counts(
            LABELS, divide(LABELS, 4, ALPHA_MIN, np.random.default_rng(seed)), 10
        ).argmax(axis=0)
    ]

    assert np.bincount(holders, minlength=4) == pytest.approx(np.full(4, 50), abs=20)


@pytest.mark.parametrize("alpha", [0.0, -1.0, 5e-324, ALPHA_MIN / 2, float("nan"), float("inf")])
def test_alpha_must_be_a_positive_number(alpha: float) -> None:
    with pytest.raises(UserError, match="positive"):
        divide(LABELS, 4, alpha, np.random.default_rng(1))


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_plot_of_a_partition_is_reproducible(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    have = counts(LABELS, divide(LABELS, 4, 1.0, np.random.default_rng(1)), 10)
    for name in ("one", "two"):
        plot_partition(have, tuple("abcdefghij"), "title", tmp_path / f"{name}.{ending}")

    drawn = (tmp_path / f"one.{ending}").read_bytes()
    assert drawn == (tmp_path / f"two.{ending}").read_bytes()
    assert drawn.startswith((b"\x89PNG", b"<?xml"))


def test_unknown_picture_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\.png or \.svg"):
        plot_partition(np.ones((2, 2), np.int64), ("a", "b"), "title", tmp_path / "x.gif")


@pytest.mark.parametrize("alpha", [None, 1.0, 0.3, 0.01])
def test_sizes_are_in_proportion_and_all_nodes_together_have_the_whole_data_set(
    alpha: float | None,
) -> None:
    sizes = [1, 1, 2, 7]
    parts = divide_by_size(LABELS, sizes, alpha, np.random.default_rng(1))

    assert sorted(np.concatenate(parts).tolist()) == list(range(len(LABELS)))
    for part, size in zip(parts, sizes, strict=True):
        assert abs(len(part) - len(LABELS) * size / sum(sizes)) <= 10, "one per class at most"
    skew = counts(LABELS, parts, 10).std(axis=1) / [len(part) for part in parts]
    assert (skew[:2].max() > 0.05) == (alpha is not None), "small nodes are skewed"


def test_too_few_samples_for_the_sizes_are_refused() -> None:
    with pytest.raises(UserError, match="too few for members of sizes"):
        divide_by_size(LABELS[:5], [1, 1000], None, np.random.default_rng(1))
