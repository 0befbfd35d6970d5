"""Whole models: distances over trainable entries, statistics along, variances not below zero."""

import numpy as np
import pytest
from made_rounds import made_round, ties_for

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


def test_columns_of_a_role_are_joined_where_they_touch() -> None:
    assert SCHEMA.columns(Role.TRAINABLE) == [slice(0, 310), slice(330, 350)]
    assert SCHEMA.columns(Role.VARIANCE) == [slice(320, 330)]


@pytest.mark.parametrize("name", RULES)
def test_a_variance_turned_negative_never_leaves_the_aggregate_negative(name: str) -> None:
    rows, base = made_round(1, 7, 350)
    for row in rows:
        row[320:330] = 0.001
    for row in rows[:2]:
        row[320:330] = -50.0
    made = aggregate_model(name, SCHEMA, rows, base, faults_max=2, ties=ties_for(7))
    assert (made.values[320:330] >= 0).all()


def test_a_large_statistic_does_not_count_in_distances() -> None:
    """An honest row with large running means is kept; a flipped one with quiet ones is not."""
    rows, base = made_round(2, 4, 350, attackers=1)
    rows[3][310:330] = 1000.0
    made = aggregate_model("multi_krum", SCHEMA, rows, base, faults_max=1, ties=ties_for(4))
    assert made.weights == (0.0, 1 / 3, 1 / 3, 1 / 3)
    assert made.values[315] == pytest.approx((rows[1][315] + rows[2][315] + 1000) / 3)


def test_a_statistic_that_is_not_finite_leaves_its_row_out() -> None:
    rows, base = made_round(3, 4, 350)
    rows[2][312] = np.nan
    made = aggregate_model("multi_krum", SCHEMA, rows, base, faults_max=1, ties=ties_for(4))
    assert made.weights[2] == 0
    assert np.isfinite(made.values).all()
