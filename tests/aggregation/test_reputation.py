"""Reputation: unaligned members become suspect, and the gate holds whatever is remembered."""

from itertools import combinations

import numpy as np
import pytest
from federations import VALUES, Federation, left_out
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_rounds import Row, dyadic, ties_for

from defl.aggregation.adaptive import FEW, GATE_TRUSTED, adaptive, gate_for
from defl.aggregation.aggregate import AggregationResult
from defl.aggregation.eigen import largest_variances
from defl.aggregation.gram import Gram
from defl.aggregation.reputation import (
    ALIGNMENT_MIN,
    DECAY,
    STANDING_SHARE_MIN,
    SUSPECT_BELOW,
    PastRounds,
    Reputation,
    cosines_with_inliers,
    in_good_standing,
    suspect_below,
    suspects,
    updated_reputations,
)

# --- Alignment -------------------------------------------------------------------------------


def test_alignment_is_the_cosine_with_the_other_inliers() -> None:
    rows = [np.array(values, dtype=np.float32) for values in ([1, 0], [1, 1], [0, 2], [-3, 0])]
    gram = Gram(np.zeros(2, dtype=np.float32))
    gram.add(rows)
    cosines = cosines_with_inliers(gram.measured().geometry, {0, 1})
    half = 0.5**0.5
    assert cosines == pytest.approx([half, half, 1 / 5**0.5, -2 / 5**0.5])


def test_zero_change_is_aligned_with_no_member() -> None:
    gram = Gram(np.zeros(2, dtype=np.float32))
    gram.add([np.zeros(2, dtype=np.float32), np.ones(2, dtype=np.float32)])
    geometry = gram.measured().geometry
    assert cosines_with_inliers(geometry, {1}) == [0, 0]
    assert cosines_with_inliers(geometry, {0}) == [0, 0]


def test_round_counts_only_if_the_median_member_is_aligned() -> None:
    before = (Reputation(1.0, 2.0), Reputation(), Reputation(-1.0, 2.0))
    counted = updated_reputations(PastRounds(before, None), [0.5, ALIGNMENT_MIN, -0.5])
    assert [r.alignment for r in counted] == pytest.approx(
        [DECAY + 0.5, ALIGNMENT_MIN, -DECAY - 0.5]
    )
    assert [r.rounds for r in counted] == pytest.approx([2 * DECAY + 1, 1, 2 * DECAY + 1])
    assert updated_reputations(PastRounds(before, None), [0.5, 0.04, -0.5]) == before


def test_inliers_and_last_aggregate_count_equally() -> None:
    before = (Reputation(),) * 3
    past = PastRounds(before, (0.8, 0.3, -0.9))
    after = updated_reputations(past, [0.2, 0.3, 0.4])
    assert [r.mean for r in after] == pytest.approx([0.5, 0.3, -0.25])


def test_old_rounds_decay_and_totals_stay_bounded() -> None:
    reputation = Reputation()
    for _ in range(2000):
        reputation = reputation.after(-1.0)
    assert reputation.rounds == pytest.approx(1 / (1 - DECAY), rel=1e-3)
    assert reputation.mean == pytest.approx(-1)
    for _ in range(40):
        reputation = reputation.after(1.0)
    assert reputation.mean > 0, "newer rounds outweigh older ones"


# --- Suspects --------------------------------------------------------------------------------


def test_a_member_that_opposed_the_others_more_than_it_agreed_is_suspect() -> None:
    usual = Reputation(4.0, 10.0)
    some = [Reputation(-0.01, 1.0), Reputation(0.01, 10.0), Reputation(-2.0, 10.0)]
    assert suspects([*some, *[usual] * 4], 3) == {0, 2}


def test_good_standing_needs_most_of_the_median_members_alignment() -> None:
    limit = STANDING_SHARE_MIN * 4.0
    some = [Reputation(limit - 0.1, 10.0), Reputation(limit + 0.1, 10.0), Reputation()]
    assert in_good_standing([*some, *[Reputation(4.0, 10.0)] * 4]) == {1, 3, 4, 5, 6}


def test_an_inlier_is_not_suspect_for_one_or_two_rounds() -> None:
    """They must not remove an inlier in favour of the outlier. A known attacker stays suspect, also
    while another one is louder."""
    reputations = [Reputation(1.3, 10.0), Reputation(-0.3, 1.0), *[Reputation(2.0, 10.0)] * 2]
    assert suspects(reputations, 1, [0]) == {1}
    assert suspects(reputations, 1, [1, 2, 3]) == frozenset()
    known = Reputation().after(-0.3).after(-0.3).after(-0.3)
    assert suspects([reputations[0], known, *reputations[2:]], 1, [1, 2, 3]) == {1}


def test_member_without_counted_rounds_is_never_suspect() -> None:
    """Neither one that joined nor one that was offline in the first rounds."""
    reputations = [Reputation(), *[Reputation(4.0, 10.0)] * 3]
    assert suspects(reputations, 1) == frozenset()
    assert 0 not in in_good_standing(reputations)


@pytest.mark.parametrize("attackers_total", [-4.0, -0.1])
def test_newcomers_neither_replace_nor_hide_known_attackers(attackers_total: float) -> None:
    """n = 7, f = 2. Counted as 0, newcomers would, together with the attackers, pull the median
    down until nobody can be suspect."""
    attackers, newcomers = [Reputation(attackers_total, 10.0)] * 2, [Reputation()] * 2
    reputations = [*newcomers, *attackers, *[Reputation(4.0, 10.0)] * 3]
    assert suspects(reputations, 2) == {2, 3}


def test_no_member_is_suspect_before_a_round_has_counted() -> None:
    assert suspects([Reputation()] * 4, 1) == frozenset()
    assert in_good_standing([Reputation()] * 4) == frozenset()


def test_at_most_faults_max_are_suspect_the_least_aligned_first() -> None:
    low = [Reputation(total, 10.0) for total in (-1.0, -3.0, -2.0)]
    reputations = [*low, *[Reputation(4.0, 10.0)] * 7]
    assert suspects(reputations, 3) == {0, 1, 2}
    assert suspects(reputations, 2) == {1, 2}
    assert suspects(reputations, 0) == frozenset()


def test_there_is_no_bound_before_anybody_can_be_suspect() -> None:
    assert suspect_below([Reputation()] * 4) is None
    assert suspect_below([Reputation(-1.0, 2.0)] * 4) is None
    assert suspect_below([Reputation(), *[Reputation(1.0, 2.0)] * 3]) == SUSPECT_BELOW


# --- From round to round ---------------------------------------------------------------------


def test_flippers_that_pass_the_gate_are_left_out_once_they_have_a_reputation() -> None:
    federation = Federation()
    for _ in range(12):
        federation.round()
    rows = federation.rows()
    memoryless = adaptive([r[:VALUES] for r in rows], federation.model[:VALUES], 2, ties_for(7))
    assert left_out(memoryless) != [0, 1]

    result = federation.round(rows)

    assert left_out(result) == [0, 1]
    assert "2 left out as suspect" in result.reason
    means = [reputation.mean for reputation in federation.reputations]
    assert max(means[:2]) < 0 < min(means[2:])
    assert result.suspects == {0, 1}
    assert [detail.startswith("suspect: ") for detail in result.details] == [True] * 2 + [False] * 5
    assert result.suspect_below == SUSPECT_BELOW


def test_opposing_member_is_suspect_in_the_very_first_round() -> None:
    """Two rows that vary no more than the others but go a little against their common direction."""
    rng = np.random.default_rng(3)
    common = dyadic(rng, 400, 12) / 2
    rows = [dyadic(rng, 400, 12) + (common if i > 1 else -common / 4) for i in range(7)]
    base = np.zeros(400, dtype=np.float32)
    memoryless = adaptive(rows, base, 2, ties_for(7))
    assert left_out(memoryless) == []

    result = adaptive(rows, base, 2, ties_for(7), past=PastRounds((Reputation(),) * 7, None))

    assert left_out(result) == [0, 1]


def test_known_attackers_and_not_newcomers_are_left_out_of_a_loud_round() -> None:
    """Two honest members are replaced by newcomers once the model has converged. Then one of the
    two known attackers is loud, in a round that counts for nobody."""
    federation = Federation()
    for _ in range(12):
        federation.round()
    rows = federation.rows()
    rows[0] = (4 * rows[0] - 3 * federation.model).astype(np.float32)
    before = federation.reputations

    result = federation.round(rows, members=[0, 1, 2, 3, 4, 7, 8])

    assert federation.reputations == before
    assert left_out(result) == [0, 1]
    assert "2 left out as suspect" in result.reason


def test_without_attack_no_member_is_ever_left_out() -> None:
    federation = Federation(flipping=0)
    for _ in range(30):
        assert left_out(federation.round()) == []


def test_reformed_member_returns_once_the_model_learns_something_new() -> None:
    federation = Federation()
    for _ in range(8):
        result = federation.round()
    assert left_out(result) == [0, 1]
    federation.flipping = 0
    for _ in range(20):
        assert left_out(federation.round()) == [0, 1], "no round of a converged model counts"
    rounds = 0
    while left_out(result):
        federation.points = [point + 1 for point in federation.points]
        result = federation.round()
        rounds += 1
        assert rounds < 50
    assert rounds > 1


# --- Memory cannot override the gate ---------------------------------------------------------


@st.composite
def remembered_rounds(draw: st.DrawFn) -> tuple[list[Row], PastRounds, int]:
    size = draw(st.integers(4, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    rows = [dyadic(rng, 12, 12) * draw(st.sampled_from([1, 1, 1, 4])) for _ in range(size)]
    totals, counts = st.sampled_from([-2.0, -0.5, 0.0, 2.0]), st.sampled_from([0, 1, 5])
    known = st.builds(Reputation, totals, counts)
    reputations = draw(st.lists(known, min_size=size, max_size=size))
    cosines = st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), min_size=size, max_size=size)
    last_cosines = draw(st.none() | cosines.map(tuple))
    past = PastRounds(tuple(reputations), last_cosines)
    return [r.astype(np.float32) for r in rows], past, (size - 1) // 3


@settings(max_examples=150, deadline=None, derandomize=True)
@given(remembered_rounds())
def test_whatever_is_remembered_the_gate_holds_and_at_most_f_are_left_out(drawn) -> None:  # type: ignore[no-untyped-def]
    """So attackers that frame honest members cause at most f honest rows to be left out."""
    rows, past, faults = drawn
    base = np.zeros(12, dtype=np.float32)
    result = adaptive(rows, base, faults, ties_for(len(rows)), past=past)
    kept = [i for i, weight in enumerate(result.weights) if weight > 0]
    assert len(kept) >= len(rows) - faults
    wide = np.stack(rows).astype(np.float64)
    distances = np.square(wide[:, None] - wide[None, :]).sum(axis=2)
    subsets = list(combinations(range(len(rows)), len(rows) - faults))
    tightest = min(largest_variances(distances, subsets))
    own = largest_variances(distances, [kept])[0]
    trusted = set(kept) <= in_good_standing(result.reputations) and len(rows) > FEW
    gate = GATE_TRUSTED if trusted else gate_for(len(rows))
    assert own <= gate * tightest * 1.02


@settings(max_examples=100, deadline=None, derandomize=True)
@given(remembered_rounds(), st.randoms(use_true_random=False))
def test_permuting_rows_and_their_past_permutes_weights_and_reputations(drawn, random) -> None:  # type: ignore[no-untyped-def]
    rows, past, faults = drawn
    ties = ties_for(len(rows))
    order = list(range(len(rows)))
    random.shuffle(order)
    base = np.zeros(12, dtype=np.float32)
    first = adaptive(rows, base, faults, ties, past=past)
    second = adaptive(
        [rows[i] for i in order],
        base,
        faults,
        [ties[i] for i in order],
        past=PastRounds(
            tuple(past.reputations[i] for i in order),
            None if past.last_cosines is None else tuple(past.last_cosines[i] for i in order),
        ),
    )
    assert [first.weights[i] for i in order] == list(second.weights)
    assert [first.reputations[i] for i in order] == list(second.reputations)


@pytest.mark.parametrize(("members", "faults"), [(7, 2), (4, 1)])
def test_outlier_in_good_standing_is_kept_up_to_a_wider_gate(members: int, faults: int) -> None:
    """An honest member that was away: its update is longer than those of members who fit the
    converged model. A newcomer with the same update is left out, and so is whoever is too far."""
    rng = np.random.default_rng(6)
    base = np.zeros(400, dtype=np.float32)
    others = [dyadic(rng, 400, 12) for _ in range(members - 1)]
    direction = dyadic(rng, 400, 12)
    good = Reputation(3.0, 6.0)

    def outcome(length: float, own: Reputation) -> AggregationResult:
        past = PastRounds((own, *[good] * (members - 1)), (0.0,) * members)  # does not count
        rows = [(length * direction).astype(np.float32), *others]
        return adaptive(rows, base, faults, ties_for(members), past=past)

    away = outcome(2.5, good)
    assert left_out(outcome(1.0, good)) == []
    assert left_out(away) == ([] if members > FEW else [0])
    assert ("all of members in good standing" in away.reason) == (members > FEW)
    assert left_out(outcome(2.5, Reputation())) == [0]
    assert left_out(outcome(6.0, good)) == [0]


def test_suspects_are_kept_if_the_others_alone_exceed_the_gate() -> None:
    """Two honest members are framed and two attackers are far off: the gate decides."""
    rng = np.random.default_rng(4)
    inliers = [dyadic(rng, 50, 12) for _ in range(5)]
    rows = [*inliers, *(30 * dyadic(rng, 50, 12) for _ in range(2))]
    past = PastRounds((*[Reputation(-9.0, 5.0)] * 2, *[Reputation(3.0, 5.0)] * 5), None)
    result = adaptive(rows, np.zeros(50, dtype=np.float32), 2, ties_for(7), past=past)
    assert left_out(result) == [5, 6]
    assert "2 suspect but kept: the others alone exceed the gate" in result.reason
