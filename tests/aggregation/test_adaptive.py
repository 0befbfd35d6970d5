"""The adaptive rule averages all updates that pass the gate and leaves out as few as needed."""

import numpy as np
import pytest
from synthetic_rounds import dyadic, synthetic_round, ties_for

from defl.aggregation.adaptive import GATE, GATE_TRUSTED, adaptive, explain_row, tightest_by_size
from defl.aggregation.fed_avg import fed_avg
from defl.aggregation.reputation import PastRounds, Reputation


@pytest.mark.parametrize("members", [4, 7, 10, 31])
def test_without_attack_it_is_the_plain_mean_bit_for_bit(members: int) -> None:
    rows, base = synthetic_round(members, members, 2000)
    faults = (members - 1) // 3
    result = adaptive(rows, base, faults, ties_for(members))
    plain = fed_avg(rows, base, 0, ties_for(members))
    np.testing.assert_array_equal(result.values, plain.values)
    assert result.reason.startswith(f"the mean of all {members} updates")


@pytest.mark.parametrize("attackers", [0, 1, 2, 3])
def test_exactly_the_attackers_are_left_out(attackers: int) -> None:
    rows, base = synthetic_round(5, 10, 2000)
    for i in range(attackers):
        rows[i] = (base - 6 * (rows[i] - base)).astype(np.float32)
    result = adaptive(rows, base, 3, ties_for(10))
    assert [weight == 0 for weight in result.weights] == [i < attackers for i in range(10)]


@pytest.mark.parametrize("trusted", [False, True])
def test_colluders_below_the_gate_stay_within_the_bound(trusted: bool) -> None:
    """Three identical rows, pushed out until they exceed the gate; also by members who have earned
    a good name, in a round that does not count."""
    past = PastRounds((Reputation(3.0, 6.0),) * 10, (-0.5,) * 10) if trusted else None
    gate = GATE_TRUSTED if trusted else GATE
    rng = np.random.default_rng(1)
    base = np.zeros(400, dtype=np.float32)
    honest = [dyadic(rng, 400, 12) for _ in range(7)]
    mean = np.mean(honest, axis=0)
    direction = dyadic(rng, 400, 12)
    farthest = 0.0
    for push in np.linspace(0, 5, 26):
        bad = (mean + push * direction).astype(np.float32)
        result = adaptive([*honest, bad, bad, bad], base, 3, ties_for(10), past=past)
        if result.weights[-1] > 0:
            farthest = max(farthest, float(np.linalg.norm(result.values - mean)))
    offsets = np.stack(honest).astype(float) - mean
    largest = np.linalg.eigvalsh(offsets @ offsets.T / 7)[-1]
    assert farthest > 0.8 * np.sqrt(gate * 3 / 7 * largest)
    assert farthest <= np.sqrt(gate * 3 / 7 * largest) * 1.02


def test_with_too_many_subsets_outliers_are_removed_one_at_a_time() -> None:
    rng = np.random.default_rng(2)
    points = rng.standard_normal((40, 6))
    points[:9] += 20
    distances = np.square(points[:, None] - points[None, :]).sum(axis=2)
    by_size = tightest_by_size(distances, 13)
    assert [len(kept) for kept, _ in by_size] == list(range(40, 26, -1))
    assert not set(by_size[-1][0]) & set(range(9))
    assert by_size[0][1] > GATE * by_size[-1][1]


# --- The rule's words about single rows -----------------------------------------------------------


def test_each_row_that_is_left_out_has_a_reason_and_no_other_has() -> None:
    rows, base = synthetic_round(5, 10, 2000)
    rows[4] = (base - 6 * (rows[4] - base)).astype(np.float32)
    result = adaptive(rows, base, 3, ties_for(10))

    assert result.details[4] == (
        "with it the updates would vary too much: the gate is 1.6 times the variance of the 7 most "
        "similar"
    )
    assert [bool(detail) for detail in result.details] == [i == 4 for i in range(10)]


def test_a_row_that_is_not_finite_says_so() -> None:
    rows, base = synthetic_round(5, 10, 2000)
    rows[3] = np.full_like(base, np.nan)
    result = adaptive(rows, base, 3, ties_for(10))

    assert result.details[3] == "its values are not finite numbers"
    assert sum(map(bool, result.details)) == 1


@pytest.mark.parametrize("kept", [True, False])
def test_a_suspect_is_named_whether_it_is_kept_or_not(kept: bool) -> None:
    text = explain_row(kept, is_suspect=True, suspects_left_out=not kept, gate=GATE, inliers=5)

    assert text.startswith("suspect")
    assert ("kept" in text) == kept


def test_an_outlier_that_is_suspect_too_is_left_out_for_the_gate_alone() -> None:
    """No subset without suspects passes the gate, so they are judged like the others."""
    text = explain_row(
        is_kept=False, is_suspect=True, suspects_left_out=False, gate=GATE, inliers=5
    )

    assert text.startswith("with it the updates would vary too much")
