"""Standing: who does not go along is in doubt, and that allows nothing which the gate forbids."""

from itertools import combinations

import numpy as np
import pytest
from federations import VALUES, Federation, left_out
from hypothesis import given, settings
from hypothesis import strategies as st
from made_rounds import Row, ties_for, whole

from defl.aggregation.adaptive import adaptive, gate_for
from defl.aggregation.eigen import largest_variances
from defl.aggregation.gram import Gram
from defl.aggregation.reputation import (
    CALM_SHARE,
    FADING,
    GOING_ALONG,
    LOUD_SHARE,
    Past,
    Standing,
    along_with_others,
    in_doubt,
    standings_after,
)

# --- How far a member goes along -------------------------------------------------------------


def test_a_row_goes_along_by_its_cosine_with_the_calm_others() -> None:
    rows = [np.array(values, dtype=np.float32) for values in ([1, 0], [1, 1], [0, 2], [-3, 0])]
    gram = Gram(np.zeros(2, dtype=np.float32))
    gram.add(rows)
    found = along_with_others(gram.measured().geometry, {0, 1})
    half = 0.5**0.5
    assert found == pytest.approx([half, half, 1 / 5**0.5, -2 / 5**0.5])


def test_no_change_goes_along_with_nobody() -> None:
    gram = Gram(np.zeros(2, dtype=np.float32))
    gram.add([np.zeros(2, dtype=np.float32), np.ones(2, dtype=np.float32)])
    geometry = gram.measured().geometry
    assert along_with_others(geometry, {1}) == [0, 0]
    assert along_with_others(geometry, {0}) == [0, 0]


def test_a_round_counts_only_if_most_members_go_along() -> None:
    before = (Standing(1.0, 2.0), Standing(), Standing(-1.0, 2.0))
    counted = standings_after(Past(before, None), [0.5, GOING_ALONG, -0.5])
    assert [s.along for s in counted] == pytest.approx([FADING + 0.5, GOING_ALONG, -FADING - 0.5])
    assert [s.rounds for s in counted] == pytest.approx([2 * FADING + 1, 1, 2 * FADING + 1])
    assert standings_after(Past(before, None), [0.5, 0.09, -0.5]) == before


def test_the_others_of_this_round_and_the_last_aggregate_count_alike() -> None:
    before = (Standing(),) * 3
    past = Past(before, (0.8, 0.3, -0.9))
    found = standings_after(past, [0.2, 0.3, 0.4])
    assert [s.mean for s in found] == pytest.approx([0.5, 0.3, -0.25])


def test_old_rounds_fade_and_sums_stay_bounded() -> None:
    standing = Standing()
    for _ in range(2000):
        standing = standing.after(-1.0)
    assert standing.rounds == pytest.approx(1 / (1 - FADING), rel=1e-3)
    assert standing.mean == pytest.approx(-1)
    for _ in range(40):
        standing = standing.after(1.0)
    assert standing.mean > 0, "newer rounds outweigh older ones"


# --- Who is in doubt -------------------------------------------------------------------------


def test_a_calm_round_doubts_who_has_gone_along_less_than_a_share_of_one_usual_round() -> None:
    usual = Standing(4.0, 10.0)
    limit = CALM_SHARE * usual.mean
    little = [Standing(limit - 0.01, 1.0), Standing(limit, 10.0), Standing(-2.0, 10.0)]
    assert in_doubt([*little, *[usual] * 4], 3, loud=False) == {0, 2}


def test_a_loud_round_doubts_who_goes_along_less_than_a_share_of_what_is_usual() -> None:
    usual = Standing(4.0, 10.0)
    some = [Standing(LOUD_SHARE * 4.0 - 0.1, 10.0), Standing(LOUD_SHARE * 4.0, 10.0)]
    assert in_doubt([*some, *[usual] * 5], 3, loud=True) == {0}
    assert in_doubt([*some, *[usual] * 5], 3, loud=False) == frozenset()


def test_of_whom_nothing_is_known_is_doubted_in_loud_rounds_alone() -> None:
    """So a member that was away in the first rounds is not left out for ever."""
    standings = [Standing(), *[Standing(4.0, 10.0)] * 3]
    assert in_doubt(standings, 1, loud=False) == frozenset()
    assert in_doubt(standings, 1, loud=True) == {0}


def test_where_no_round_has_counted_nobody_is_doubted() -> None:
    assert in_doubt([Standing()] * 4, 1, loud=True) == frozenset()


def test_at_most_faults_max_are_doubted_the_lowest_first() -> None:
    low = [Standing(along, 10.0) for along in (-1.0, -3.0, -2.0)]
    standings = [*low, *[Standing(4.0, 10.0)] * 7]
    assert in_doubt(standings, 3, loud=False) == {0, 1, 2}
    assert in_doubt(standings, 2, loud=False) == {1, 2}
    assert in_doubt(standings, 0, loud=False) == frozenset()


# --- From round to round ---------------------------------------------------------------------


def test_flippers_that_one_round_cannot_tell_are_left_out_once_they_are_known() -> None:
    federation = Federation()
    for _ in range(12):
        federation.round()
    rows = federation.rows()
    forgetful = adaptive([r[:VALUES] for r in rows], federation.model[:VALUES], 2, ties_for(7))
    assert left_out(forgetful) != [0, 1]

    made = federation.round(rows)

    assert left_out(made) == [0, 1]
    assert "2 left out in doubt" in made.reason
    means = [standing.mean for standing in federation.standings]
    assert max(means[:2]) < 0 < min(means[2:])


def test_who_does_not_go_along_is_in_doubt_in_the_very_first_round() -> None:
    """Two rows that vary no more than the others, and lack what the others have in common."""
    rng = np.random.default_rng(3)
    common = whole(rng, 400, 12) / 2
    rows = [whole(rng, 400, 12) + (common if i > 1 else 0) for i in range(7)]
    base = np.zeros(400, dtype=np.float32)
    forgetful = adaptive(rows, base, 2, ties_for(7))
    assert left_out(forgetful) == []

    made = adaptive(rows, base, 2, ties_for(7), past=Past((Standing(),) * 7, None))

    assert left_out(made) == [0, 1]


def test_without_attack_nobody_is_ever_left_out() -> None:
    federation = Federation(flipping=0)
    for _ in range(30):
        assert left_out(federation.round()) == []


def test_a_member_that_behaves_again_comes_back_when_there_is_something_to_learn() -> None:
    federation = Federation()
    for _ in range(8):
        made = federation.round()
    assert left_out(made) == [0, 1]
    federation.flipping = 0
    for _ in range(20):
        assert left_out(federation.round()) == [0, 1], "a converged model tells nothing of anybody"
    rounds = 0
    while left_out(made):
        federation.points = [point + 1 for point in federation.points]
        made = federation.round()
        rounds += 1
        assert rounds < 50
    assert rounds > 1


# --- What memory can and cannot do -----------------------------------------------------------


@st.composite
def judged_rounds(draw: st.DrawFn) -> tuple[list[Row], Past, int]:
    size = draw(st.integers(4, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    rows = [whole(rng, 12, 12) * draw(st.sampled_from([1, 1, 1, 4])) for _ in range(size)]
    known = st.builds(Standing, st.sampled_from([-2.0, -0.5, 0.0, 2.0]), st.sampled_from([0, 1, 5]))
    standings = draw(st.lists(known, min_size=size, max_size=size))
    cosines = st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), min_size=size, max_size=size)
    going_on = draw(st.none() | cosines.map(tuple))
    past = Past(tuple(standings), going_on)
    return [r.astype(np.float32) for r in rows], past, (size - 1) // 3


@settings(max_examples=150, deadline=None, derandomize=True)
@given(judged_rounds())
def test_whatever_is_remembered_the_gate_holds_and_at_most_f_are_left_out(made) -> None:  # type: ignore[no-untyped-def]
    """So attackers who frame honest members gain no more than f honest rows left out."""
    rows, past, faults = made
    base = np.zeros(12, dtype=np.float32)
    result = adaptive(rows, base, faults, ties_for(len(rows)), past=past)
    kept = [i for i, weight in enumerate(result.weights) if weight > 0]
    assert len(kept) >= len(rows) - faults
    wide = np.stack(rows).astype(np.float64)
    distances = np.square(wide[:, None] - wide[None, :]).sum(axis=2)
    subsets = list(combinations(range(len(rows)), len(rows) - faults))
    calmest = min(largest_variances(distances, subsets))
    own = largest_variances(distances, [kept])[0]
    assert own <= gate_for(len(rows)) * calmest * 1.02


@settings(max_examples=100, deadline=None, derandomize=True)
@given(judged_rounds(), st.randoms(use_true_random=False))
def test_permuting_rows_and_their_past_permutes_weights_and_standings(made, random) -> None:  # type: ignore[no-untyped-def]
    rows, past, faults = made
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
        past=Past(
            tuple(past.standings[i] for i in order),
            None if past.going_on is None else tuple(past.going_on[i] for i in order),
        ),
    )
    assert [first.weights[i] for i in order] == list(second.weights)
    assert [first.standings[i] for i in order] == list(second.standings)


def test_when_the_others_alone_vary_too_much_memory_is_overruled() -> None:
    """Two honest members framed, and the rest are attackers far apart: the gate decides."""
    rng = np.random.default_rng(4)
    calm = [whole(rng, 50, 12) for _ in range(5)]
    rows = [*calm, *(30 * whole(rng, 50, 12) for _ in range(2))]
    past = Past((*[Standing(-9.0, 5.0)] * 2, *[Standing(3.0, 5.0)] * 5), None)
    made = adaptive(rows, np.zeros(50, dtype=np.float32), 2, ties_for(7), past=past)
    assert left_out(made) == [5, 6]
    assert "2 would be left out in doubt, but the others alone vary more" in made.reason
