"""Nearest-neighbour mixing gives the bits of mixing every row and sorting every column."""

from types import ModuleType

import numpy as np
import pytest
from synthetic_rounds import Row, dyadic, synthetic_round

from defl.aggregation import kernels, kernels_numba, kernels_numpy
from defl.aggregation.geometric import measure
from defl.aggregation.mixing import nearest, nearest_neighbour_mixing
from defl.aggregation.workers import ALONE, Workers

COLUMNS = 300
ROWS, FAULTS = 10, 3


def mixed_and_trimmed(rows: list[Row], groups: list[tuple[int, ...]]) -> Row:
    """The definition: all mixed rows, then the mean of the middle of every sorted column."""
    mixed = [np.empty_like(row) for row in rows]
    for group, mean in zip(groups, mixed, strict=True):
        shares = [1.0 / len(group)] * len(group)
        kernels_numpy.weighted_sum([rows[i] for i in group], shares, mean)
    result = np.empty_like(rows[0])
    assert kernels_numpy.mean_of_middle(mixed, FAULTS, ROWS - 1 - FAULTS, result)
    return result


def at_places(*places: float) -> list[Row]:
    """Rows near the given places of one line."""
    rng = np.random.default_rng(1)
    return [dyadic(rng, COLUMNS, 10) / 64 + np.float32(place) for place in places]


ROUNDS = {
    "honest rows far from all attackers": (at_places(*[0] * 7, 90, 95, 99), 7),
    "one honest row too few": (at_places(*[0] * 6, 10, 10.5, 11, 11.5), 6),
    "rows along a line": (at_places(*range(10)), 4),
    "equal rows": ([np.full(COLUMNS, 0.1, dtype=np.float32)] * ROWS, 7),
    "random rows": (synthetic_round(3, ROWS, COLUMNS)[0], 1),
    "the largest and the smallest numbers": (
        [
            np.full(COLUMNS, value, dtype=np.float32)
            for value in (3.4e38, -3.4e38, 3.4e38, 1e-44, -1e-44, -0.0, 0.0, 1, 1, 3.4e38)
        ],
        6,
    ),
}


@pytest.mark.parametrize("loops", [kernels_numpy, kernels_numba], ids=lambda loops: loops.NAME)
@pytest.mark.parametrize("case", ROUNDS)
def test_mixing_equals_its_definition_for(
    case: str, loops: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, sharing = ROUNDS[case]
    monkeypatch.setattr(kernels, "best", lambda _: loops)
    base = np.zeros(COLUMNS, dtype=np.float32)
    groups = nearest(measure(rows, base, ALONE).geometry, ROWS - FAULTS)
    assert max(groups.count(group) for group in groups) == sharing

    ties = [bytes([i]) for i in range(ROWS)]
    for workers in (ALONE, Workers(3)):
        result = nearest_neighbour_mixing(rows, base, FAULTS, ties, workers=workers)
        assert result.values.tobytes() == mixed_and_trimmed(rows, groups).tobytes()


@pytest.mark.parametrize("loops", [kernels_numpy, kernels_numba], ids=lambda loops: loops.NAME)
@pytest.mark.parametrize("size", [1, 4, 5, 9, 12])
def test_means_of_groups_equal_weighted_sums(loops: ModuleType, size: int) -> None:
    rng = np.random.default_rng(size)
    rows = [rng.standard_normal(COLUMNS).astype(np.float32) for _ in range(12)]
    groups = np.array([sorted(rng.permutation(12)[:size]) for _ in range(7)], dtype=np.int32)
    means = np.empty((7, COLUMNS), dtype=np.float32)
    loops.group_means(rows, groups, 1 / size, means)
    for group, mean in zip(groups.tolist(), means, strict=True):
        expected = np.empty(COLUMNS, dtype=np.float32)
        kernels_numpy.weighted_sum([rows[i] for i in group], [1 / size] * size, expected)
        assert mean.tobytes() == expected.tobytes()
