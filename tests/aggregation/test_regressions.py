"""Inputs that break other implementations, and how ours handles them."""

import numpy as np
import pytest
from synthetic_rounds import synthetic_round, ties_for

from defl.aggregation.fed_avg import fed_avg
from defl.aggregation.krum import multi_krum
from defl.aggregation.rules import RULES
from defl.errors import PreconditionBroken

ROBUST = [name for name in RULES if name != "fed_avg"]


def kept_by_float32_norms_and_dots(rows: list[np.ndarray], faults: int) -> set[int]:
    """Krum as usually written: |x|^2 + |y|^2 - 2xy on weights (not changes) in float32."""
    stack = np.stack(rows)
    squares = np.array([np.dot(row, row) for row in stack], dtype=np.float32)
    apart = squares[:, None] + squares[None, :] - 2 * (stack @ stack.T)
    scores = np.sort(apart, axis=1)[:, : len(rows) - faults].sum(axis=1)
    return set(np.argsort(scores, kind="stable")[: len(rows) - faults].tolist())


def test_krum_detects_sign_flips_in_small_updates_of_large_weights() -> None:
    """|w| = 50, d = 10^6, updates of norm 0.02, 3 of 10 flip their sign."""
    columns, fooled = 1_000_000, 0
    for seed in range(2):
        rng = np.random.default_rng(seed)
        base = (rng.standard_normal(columns) * 0.05).astype(np.float32)
        common = rng.standard_normal(columns)
        rows = []
        for i in range(10):
            change = (common + rng.standard_normal(columns)) * (0.02 / np.sqrt(2 * columns))
            rows.append((base + (-change if i < 3 else change)).astype(np.float32))
        fooled += bool(kept_by_float32_norms_and_dots(rows, 3) & {0, 1, 2})
        result = multi_krum(rows, base, 3, ties_for(10))
        assert result.weights[:3] == (0, 0, 0)
    assert fooled


def test_claimed_count_of_a_billion_weighs_no_more_than_the_bound() -> None:
    rows, base = synthetic_round(1, 4, 50)
    result = fed_avg(rows, base, 0, ties_for(4), counts=[100, 200, 100, 10**9], count_max=200)
    assert result.weights == (1 / 6, 2 / 6, 1 / 6, 2 / 6)
    assert "Rows [3] claimed more than 200" in result.reason
    with pytest.raises(PreconditionBroken, match="count_max"):
        fed_avg(rows, base, 0, ties_for(4), counts=[1, 1, 1, 10**9])


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_value_that_is_not_finite_never_reaches_the_aggregate(name: str, value: float) -> None:
    rows, base = synthetic_round(2, 10, 1000)
    rows[4][123] = value
    result = RULES[name](rows, base, 3, ties_for(10))
    assert np.isfinite(result.values).all()
    honest = np.delete(np.stack(rows), 4, axis=0)
    assert (result.values >= honest.min(axis=0) - 0.05).all()
    assert (result.values <= honest.max(axis=0) + 0.05).all()


@pytest.mark.parametrize("name", ROBUST)
def test_more_rows_that_are_not_finite_than_faults_max_are_refused(name: str) -> None:
    rows, base = synthetic_round(2, 5, 300)
    for row in rows[:3]:
        row[:] = np.nan
    with pytest.raises(PreconditionBroken, match="not finite"):
        RULES[name](rows, base, 1, ties_for(5))


@pytest.mark.parametrize("name", ROBUST)
def test_float32_maximum_does_not_overflow(name: str) -> None:
    rows, base = synthetic_round(2, 10, 1000)
    rows[0][:] = np.finfo(np.float32).max
    rows[1][:] = -np.finfo(np.float32).max
    result = RULES[name](rows, base, 3, ties_for(10))
    assert np.isfinite(result.values).all()
    if name != "centered_clipping":
        assert np.abs(result.values - base).max() < 0.1


@pytest.mark.parametrize("name", ROBUST)
def test_negative_variance_of_one_row_does_not_reach_the_aggregate(name: str) -> None:
    """Like a batch norm's running_var of 1, which one row turns to -5."""
    rows, base = synthetic_round(5, 7, 256)
    for row in rows:
        row[:8] = 1.0
    base[:8] = 1.0
    rows[3][:8] = -5.0
    result = RULES[name](rows, base, 2, ties_for(7))
    assert (result.values[:8] > 0).all()


def test_identical_rows_aggregate_to_themselves() -> None:
    rows, base = synthetic_round(6, 1, 500)
    for name, rule in RULES.items():
        result = rule(rows * 7, base, 1, ties_for(7))
        np.testing.assert_allclose(result.values, rows[0], rtol=1e-6, err_msg=name)


def test_denormal_changes_count_as_zero() -> None:
    base = np.zeros(300, dtype=np.float32)
    tiny = np.full(300, 1e-40, dtype=np.float32)
    result = multi_krum([base, tiny, -tiny, base], base, 1, ties_for(4))
    assert result.scores == (0, 0, 0, 0)


def test_rows_of_wrong_shape_or_type_are_refused() -> None:
    rows, base = synthetic_round(7, 4, 100)
    for malformed in (rows[0][:99], rows[0].astype(np.float64)):
        for name in RULES:
            with pytest.raises(PreconditionBroken):
                RULES[name]([malformed, *rows[1:]], base, 0, ties_for(4))
