"""Properties of every rule, tested on rows that Hypothesis generates."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_rounds import ties_for

from defl.aggregation.directions import REACH
from defl.aggregation.rules import RULES

COLUMNS = 5
DETERMINISTIC = settings(derandomize=True, deadline=None, max_examples=30)

small = st.integers(-64, 64)
any_size = st.one_of(
    small,
    st.sampled_from([10**4, -(10**6), 2**40, -(2**100), 2.0**-100, 3.0e38]),
)


def rows_of(values: list[list[float]]) -> list[np.ndarray]:
    return [np.array(row, dtype=np.float32) for row in values]


@st.composite
def rounds(draw: st.DrawFn) -> tuple[list[np.ndarray], np.ndarray, int]:
    """Honest rows first, then faults_max arbitrary rows."""
    faults = draw(st.integers(0, 2))
    members = draw(st.integers(3 * faults + 3, 4 * faults + 4))
    row = st.lists(small, min_size=COLUMNS, max_size=COLUMNS)
    bad = st.lists(any_size, min_size=COLUMNS, max_size=COLUMNS)
    honest = draw(st.lists(row, min_size=members - faults, max_size=members - faults))
    faulty = draw(st.lists(bad, min_size=faults, max_size=faults))
    base = draw(row)
    return rows_of(honest + faulty), rows_of([base])[0], faults


@pytest.mark.parametrize("name", RULES)
@DETERMINISTIC
@given(drawn=rounds(), shuffle=st.randoms(use_true_random=False))
def test_permuting_rows_permutes_weights_and_scores_exactly(name, drawn, shuffle) -> None:
    rows, base, faults = drawn
    ties = ties_for(len(rows))
    order = list(range(len(rows)))
    shuffle.shuffle(order)
    before = RULES[name](rows, base, faults, ties)
    after = RULES[name]([rows[i] for i in order], base, faults, [ties[i] for i in order])
    assert after.weights == tuple(before.weights[i] for i in order)
    assert after.scores == tuple(before.scores[i] for i in order)
    np.testing.assert_allclose(after.values, before.values, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", RULES)
@DETERMINISTIC
@given(drawn=rounds(), power=st.integers(-20, 20))
def test_scaling_by_a_power_of_two_scales_the_aggregate_exactly(name, drawn, power) -> None:
    rows, base, faults = drawn
    rows = [np.clip(row, -(2.0**60), 2.0**60) for row in rows]
    rows = [np.where(np.abs(row) < 2.0**-30, 0, row).astype(np.float32) for row in rows]
    scale = np.float32(2.0**power)
    ties = ties_for(len(rows))
    before = RULES[name](rows, base, faults, ties)
    after = RULES[name]([row * scale for row in rows], base * scale, faults, ties)
    assert after.weights == before.weights
    np.testing.assert_array_equal(after.values, before.values * scale)


@pytest.mark.parametrize("name", RULES)
@DETERMINISTIC
@given(drawn=rounds(), shift=st.lists(small, min_size=COLUMNS, max_size=COLUMNS))
def test_translating_everything_translates_the_aggregate(name, drawn, shift) -> None:
    """Integers this small are exact in float32, so the changes stay the same."""
    rows, base, faults = drawn
    rows = [np.clip(np.rint(row), -(2**20), 2**20) for row in rows]
    by = rows_of([shift])[0]
    ties = ties_for(len(rows))
    before = RULES[name](rows, base, faults, ties)
    after = RULES[name]([row + by for row in rows], base + by, faults, ties)
    assert after.weights == before.weights
    np.testing.assert_allclose(after.values, before.values + by, rtol=1e-5, atol=1e-3)


def diameter(rows: list[np.ndarray]) -> float:
    wide = np.stack(rows).astype(np.float64)
    return max(float(np.linalg.norm(a - b)) for a in wide for b in wide)


def bound(name: str, rows: list[np.ndarray], base: np.ndarray, faults: int) -> float:
    """The rule's bound on the aggregate's distance from the first honest row.

    `across` is the honest rows' diameter; docs/AGGREGATION.md lists the bounds.
    """
    m, f = len(rows), faults
    across = diameter(rows[: m - f])
    if name.startswith(("krum", "multi_krum")):
        return across * (1 + np.sqrt((m - f - 1) / (m - 2 * f - 1)))
    if name == "geometric_median":
        return across * 2 * (m - f) / (m - 2 * f)
    if name == "smallest_eigenvalue_subset":
        return across * (1 + np.sqrt(f / (2 * (m - 2 * f))))
    if name in ("centered_clipping", "adaptive"):
        honest = np.stack(rows[: m - f]).astype(np.float64) - base
        reach = REACH if name == "adaptive" else 1
        return (1 + reach) * float(np.linalg.norm(honest, axis=1).max())
    return across * 2 * np.sqrt(COLUMNS)


@pytest.mark.parametrize("name", [name for name in RULES if name != "fed_avg"])
@DETERMINISTIC
@given(drawn=rounds())
def test_faults_max_arbitrary_rows_move_the_aggregate_within_the_bound(name, drawn) -> None:
    rows, base, faults = drawn
    result = RULES[name](rows, base, faults, ties_for(len(rows)))
    away = float(np.linalg.norm(result.values.astype(np.float64) - rows[0]))
    # The grid moves each row by up to 0.3 % of its norm, and kept rows are near the honest ones.
    grid = 0.03 * (1 + max(float(np.linalg.norm(row - base)) for row in rows[: len(rows) - faults]))
    assert away <= bound(name, rows, base, faults) * 1.02 + grid


@pytest.mark.parametrize("name", ["coordinate_median", "trimmed_mean"])
@DETERMINISTIC
@given(drawn=rounds())
def test_every_coordinate_stays_within_the_honest_range(name, drawn) -> None:
    rows, base, faults = drawn
    result = RULES[name](rows, base, faults, ties_for(len(rows)))
    honest = np.stack(rows[: len(rows) - faults])
    assert (result.values >= honest.min(axis=0)).all()
    assert (result.values <= honest.max(axis=0)).all()
