"""Whole models: distances over trainable entries, statistics follow, variances stay >= 0."""

import numpy as np
import pytest
from synthetic_rounds import synthetic_round, ties_for

from defl.aggregation.model import aggregate_model
from defl.aggregation.rules import RULES
from defl.schema import Entry, Role, Schema

SCHEMA = Schema(
    entries=(
        Entry("layer", (30, 10)),
        Entry("bias", (10,)),
        Entry("mean", (10,), role=Role.STATISTIC),
        Entry("variance", (10,), role=Role.VARIANCE),
        Entry("steps", (), role=Role.LOCAL),
        Entry("head", (20,)),
    )
)


def test_adjacent_columns_of_a_role_are_joined() -> None:
    assert SCHEMA.columns(Role.TRAINABLE) == [slice(0, 310), slice(330, 350)]
    assert SCHEMA.columns(Role.VARIANCE) == [slice(320, 330)]


@pytest.mark.parametrize("name", RULES)
def test_negative_variance_in_updates_never_reaches_the_aggregate(name: str) -> None:
    rows, base = synthetic_round(1, 7, 350)
    for row in rows:
        row[320:330] = 0.001
    for row in rows[:2]:
        row[320:330] = -50.0
    result = aggregate_model(
        name, SCHEMA, rows, base, faults_max=2, ties=ties_for(7), members=range(7)
    )
    assert (result.values[320:330] >= 0).all()


def test_statistics_do_not_count_in_distances() -> None:
    """An honest row with large running means is kept; a flipped one with small ones is not."""
    rows, base = synthetic_round(2, 4, 350, attackers=1)
    rows[3][310:330] = 1000.0
    result = aggregate_model(
        "multi_krum", SCHEMA, rows, base, faults_max=1, ties=ties_for(4), members=range(4)
    )
    assert result.weights == (0.0, 1 / 3, 1 / 3, 1 / 3)
    assert result.values[315] == pytest.approx((rows[1][315] + rows[2][315] + 1000) / 3)


def test_row_with_a_statistic_that_is_not_finite_is_left_out() -> None:
    rows, base = synthetic_round(3, 4, 350)
    rows[2][312] = np.nan
    result = aggregate_model(
        "multi_krum", SCHEMA, rows, base, faults_max=1, ties=ties_for(4), members=range(4)
    )
    assert result.weights[2] == 0
    assert np.isfinite(result.values).all()
