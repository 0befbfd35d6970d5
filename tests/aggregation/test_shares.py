"""Agreed weights: the cap, its bounds, and means that are the same bits everywhere."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_rounds import synthetic_round, ties_for

from defl.aggregation.adaptive import adaptive
from defl.aggregation.directions import REACH
from defl.aggregation.rules import RULES
from defl.aggregation.shares import Weighing, cap_level, capped_shares
from defl.committee import WEIGHS_MEMBERS
from defl.errors import PreconditionBroken
from defl.fields import WEIGHT_MAX

DETERMINISTIC = settings(derandomize=True, deadline=None, max_examples=200)
weights_and_faults = st.tuples(
    st.lists(st.integers(1, WEIGHT_MAX) | st.integers(1, 5), min_size=1, max_size=40),
    st.integers(0, 13),
)


def heaviest(shares: tuple[Fraction, ...], faults: int) -> Fraction:
    return sum(sorted(shares, reverse=True)[:faults], Fraction(0))


@pytest.mark.parametrize(
    ("weights", "faults", "shares"),
    [
        ([1, 1, 1, 1], 1, ["1/4"] * 4),
        ([7, 2, 1, 1], 1, ["1/3", "1/3", "1/6", "1/6"]),
        ([1000, 1, 1, 1, 1], 1, ["1/3", "1/6", "1/6", "1/6", "1/6"]),
        ([3, 2, 2, 2], 1, ["1/3", "2/9", "2/9", "2/9"]),  # exactly a third: nothing is lowered
        ([1000, 1000, 1, 1], 1, ["1/3", "1/3", "1/6", "1/6"]),
        ([9, 9, 9, 1, 1], 1, ["9/29", "9/29", "9/29", "1/29", "1/29"]),  # below a third
        ([7, 2, 1], 1, ["1/3"] * 3),  # of 3f any f hold a third already
        ([7, 2], 1, ["1/2"] * 2),
        ([1000, 1, 1], 0, ["500/501", "1/1002", "1/1002"]),  # everybody is trusted
        ([5, 4, 3, 1, 1, 1, 1], 2, ["1/6", "1/6", "1/6", "1/8", "1/8", "1/8", "1/8"]),
    ],
)
def test_the_heaviest_are_lowered_to_one_level(
    weights: list[int], faults: int, shares: list[str]
) -> None:
    assert [str(share) for share in capped_shares(weights, faults)] == shares


@DETERMINISTIC
@given(drawn=weights_and_faults)
def test_the_f_heaviest_kept_hold_at_most_a_third_wherever_that_is_possible(drawn) -> None:
    weights, faults = drawn
    shares = capped_shares(weights, faults)
    assert sum(shares) == 1
    assert heaviest(shares, faults) <= max(Fraction(1, 3), Fraction(faults, len(weights)))


@DETERMINISTIC
@given(drawn=weights_and_faults)
def test_the_cap_lowers_no_more_than_it_must(drawn) -> None:
    weights, faults = drawn
    level = cap_level(weights, faults)
    total = sum(weights)
    if heaviest(tuple(Fraction(w, total) for w in weights), faults) <= Fraction(1, 3):
        assert capped_shares(weights, faults) == tuple(Fraction(w, total) for w in weights)
    elif len(weights) > 3 * faults:
        higher = [min(Fraction(w), level + Fraction(1, 10**6)) for w in weights]
        assert 3 * heaviest(tuple(higher), faults) > sum(higher)


@DETERMINISTIC
@given(drawn=weights_and_faults)
def test_who_weighs_more_never_counts_less_and_the_order_does_not_matter(drawn) -> None:
    weights, faults = drawn
    shares = capped_shares(weights, faults)
    for (weight, share), (other, its) in zip(
        sorted(zip(weights, shares, strict=True)),
        sorted(zip(weights, shares, strict=True))[1:],
        strict=False,
    ):
        assert share <= its
        assert share == its or weight < other
    assert capped_shares(weights[::-1], faults) == shares[::-1]


@pytest.mark.parametrize("bad", [[], [0, 1], [1, -3]])
def test_weights_start_at_one(bad: list[int]) -> None:
    with pytest.raises(PreconditionBroken, match="from 1 on"):
        capped_shares(bad, 1)


# --- In the rules ----------------------------------------------------------------------------

MEMBERS, FAULTS, COLUMNS = 10, 2, 300


def round_of(seed: int):
    rows, base = synthetic_round(seed, MEMBERS, COLUMNS, FAULTS)
    return rows, base, FAULTS, ties_for(MEMBERS)


@pytest.mark.parametrize("name", WEIGHS_MEMBERS)
@pytest.mark.parametrize("weight", [1, 7])
def test_equal_weights_give_the_bits_of_the_plain_mean(name: str, weight: int) -> None:
    for seed in range(5):
        plain = RULES[name](*round_of(seed))
        weighed = RULES[name](*round_of(seed), agreed=[weight] * MEMBERS)
        assert weighed.values.tobytes() == plain.values.tobytes()
        assert (weighed.weights, weighed.scores, weighed.reason) == (
            plain.weights,
            plain.scores,
            plain.reason,
        )


@pytest.mark.parametrize("name", WEIGHS_MEMBERS)
def test_the_rule_keeps_the_same_updates_and_the_mean_uses_the_capped_shares(name: str) -> None:
    agreed = [1, 2, 7, 1, 2, 7, 1, 2, 700, 1]
    for seed in range(5):
        rows, base, faults, ties = round_of(seed)
        plain = RULES[name](rows, base, faults, ties)
        weighed = RULES[name](rows, base, faults, ties, agreed=agreed)
        kept = [i for i, weight in enumerate(plain.weights) if weight]
        assert [i for i, weight in enumerate(weighed.weights) if weight] == kept
        shares = capped_shares([agreed[i] for i in kept], faults)
        assert [weighed.weights[i] for i in kept] == [float(share) for share in shares]
        mean = sum(weighed.weights[i] * rows[i].astype(np.float64) for i in kept)
        np.testing.assert_array_equal(weighed.values, mean.astype(np.float32))
        assert weighed.scores == plain.scores


@pytest.mark.parametrize("name", WEIGHS_MEMBERS)
def test_permuting_members_permutes_their_shares(name: str) -> None:
    agreed = [1, 2, 7, 1, 2, 7, 1, 2, 700, 1]
    rows, base, faults, ties = round_of(3)
    order = [int(i) for i in np.random.default_rng(1).permutation(MEMBERS)]
    before = RULES[name](rows, base, faults, ties, agreed=agreed)
    after = RULES[name](
        [rows[i] for i in order],
        base,
        faults,
        [ties[i] for i in order],
        agreed=[agreed[i] for i in order],
    )
    assert after.weights == tuple(before.weights[i] for i in order)
    np.testing.assert_allclose(after.values, before.values, rtol=1e-6, atol=1e-6)


def test_weights_go_with_the_rules_that_average_whole_updates() -> None:
    for name, rule in RULES.items():
        assert rule.weighs == (name in WEIGHS_MEMBERS)
        if not rule.weighs:
            with pytest.raises(PreconditionBroken, match="unequal weights"):
                rule(*round_of(1), agreed=range(1, MEMBERS + 1))
            rule(*round_of(1), agreed=[3] * MEMBERS)
    assert set(WEIGHS_MEMBERS) <= set(RULES)
    with pytest.raises(PreconditionBroken, match="agreed weights"):
        RULES["fed_avg"](*round_of(1), agreed=[1, 2])


def test_a_row_that_is_clipped_keeps_that_part_of_its_share() -> None:
    assert Weighing((1, 2, 3, 2), 0).shares([0.25, 0.25, 0.125, 0.0625]) == (
        1 / 8, 2 / 8, 3 / 16, 1 / 16,
    )  # fmt: skip
    for kept in range(1, 101):
        equal = Weighing((5,) * kept, 0).shares([1.0 / kept] * kept)
        assert equal == (1.0 / kept,) * kept


def test_the_reason_says_how_updates_were_weighed() -> None:
    rows, base, faults, ties = round_of(1)
    uncapped = RULES["fed_avg"](rows, base, faults, ties, agreed=[2, 2, *[1] * 8])
    capped = RULES["fed_avg"](rows, base, faults, ties, agreed=[900, 2, *[1] * 8])
    few = RULES["fed_avg"](rows[:6], base, faults, ties[:6], agreed=[900, *[1] * 5])
    assert "all 10 updates. They count as agreed. " in uncapped.reason
    assert "They count as agreed, 1 of them capped." in capped.reason
    assert "They count the same, though other weights were agreed" in few.reason


# --- The bound -------------------------------------------------------------------------------


def largest_variance(rows: np.ndarray) -> float:
    centred = rows - rows.mean(axis=0)
    return float(np.linalg.eigvalsh(centred @ centred.T / len(rows))[-1])


@pytest.mark.parametrize("seed", range(60))
def test_attackers_of_any_weight_move_the_mean_by_a_third_of_twice_the_reference(
    seed: int,
) -> None:
    """All at one point, near or far; with so few rows kept that weights mean nothing, by f / k."""
    rng = np.random.default_rng(seed)
    members = int(rng.integers(4, 12))
    faults = (members - 1) // 3
    agreed = [int(w) for w in rng.choice([1, 2, 7, 50, 1000], members)]
    honest = rng.normal(size=(members, 6)) + 1
    direction = rng.normal(size=6) + 1
    tried = 0.0
    for distance in np.geomspace(0.1, 1e6, 30):
        rows = honest.copy()
        rows[:faults] = distance * direction
        result = adaptive(
            [row.astype(np.float32) for row in rows],
            np.zeros(6, dtype=np.float32),
            faults,
            ties_for(members),
            weighing=Weighing(tuple(agreed), faults),
        )
        lengths = np.linalg.norm(rows, axis=1)
        reference = np.sort(lengths)[members - faults - 1]
        kept = sum(weight > 0 for weight in result.weights)
        share = max(1 / 3, faults / kept)
        moved = float((np.array(result.weights) * lengths)[:faults].sum())
        assert moved <= share * REACH * reference * (1 + 1e-3)
        tried = max(tried, moved)
    assert tried > 0, "no attacker was let through"


@pytest.mark.parametrize("seed", range(20))
def test_weights_move_the_mean_no_further_than_the_spread_of_the_kept_updates(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(4, 12))
    rows = rng.normal(size=(count, 5))
    weights = [int(w) for w in rng.integers(1, 1000, count)]
    shares = np.array([float(s) for s in capped_shares(weights, (count - 1) // 3)])
    moved = float(np.linalg.norm(shares @ rows - rows.mean(axis=0)))
    spread = largest_variance(rows) * (count * (shares**2).sum() - 1)
    assert moved <= np.sqrt(max(spread, 0.0)) * (1 + 1e-9) + 1e-12
