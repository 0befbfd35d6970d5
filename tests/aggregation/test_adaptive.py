"""The adaptive rule judges directions, shortens what is long, and leaves out as few as needed."""

import numpy as np
import pytest
from federations import left_out
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_rounds import Row, dyadic, synthetic_round, ties_for

from defl.aggregation.adaptive import GATE, SUBSETS_MAX, Judgement, adaptive
from defl.aggregation.aggregate import AggregationResult
from defl.aggregation.directions import GROSS, REACH, Directions
from defl.aggregation.eigen import largest_variances
from defl.aggregation.fed_avg import fed_avg
from defl.aggregation.gram import Gram
from defl.aggregation.reputation import PastRounds
from defl.aggregation.shares import Weighing

ROUNDING = 1e-3  # of the grid on which changes are measured


def along(rng: np.random.Generator, common: Row, length: float, own: float = 0.5) -> Row:
    """A change of this length that mostly follows a common direction."""
    change = common + own * rng.standard_normal(common.size) * np.linalg.norm(common) / 20
    return (length * change / np.linalg.norm(change)).astype(np.float32)


def round_of(*lengths: float, seed: int = 1) -> tuple[list[Row], Row]:
    """Members with similar data that trained for longer or shorter."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(400).astype(np.float32)
    return [along(rng, common, length) for length in lengths], np.zeros(400, dtype=np.float32)


def judged(rows: list[Row], base: Row, faults: int, **more: object) -> AggregationResult:
    return adaptive(rows, base, faults, ties_for(len(rows)), **more)  # type: ignore[arg-type]


def directions(rows: list[Row], faults: int) -> Directions:
    gram = Gram(np.zeros_like(rows[0]))
    gram.add(rows)
    return Directions(gram.measured().geometry, faults)


# --- Without attack ----------------------------------------------------------------------------


@pytest.mark.parametrize("members", [4, 7, 10, 31])
def test_updates_of_similar_length_give_the_plain_mean_bit_for_bit(members: int) -> None:
    rows, base = round_of(*[1.0 + i / 100 for i in range(members)])
    faults = (members - 1) // 3
    rows.sort(key=lambda row: -float(np.linalg.norm(row)))
    result = judged([rows[-1], *rows[1:]], base, faults)
    plain = fed_avg([rows[-1], *rows[1:]], base, 0, ties_for(members))
    np.testing.assert_array_equal(result.values, plain.values)
    assert result.reason.startswith(f"the mean of all {members} updates")
    assert set(result.details) == {""}


@pytest.mark.parametrize("lengths", [(7.0, 2.0, 1.0, 1.0), (4.0, 1.1, 1.0, 0.9, 0.8, 0.7, 0.6)])
def test_the_largest_site_is_shortened_and_not_left_out(lengths: tuple[float, ...]) -> None:
    """One epoch of a larger site is more steps, so its change is longer."""
    rows, base = round_of(*lengths)
    faults = (len(lengths) - 1) // 3
    reference = sorted(lengths)[len(lengths) - faults - 1]

    result = judged(rows, base, faults)

    assert left_out(result) == []
    assert result.weights[0] == pytest.approx(
        REACH * reference / lengths[0] / len(lengths), ROUNDING
    )
    times = lengths[0] / reference
    assert result.details[0] == (
        f"points the same way, but is {times:.1f} times longer: more steps per round?"
    )
    assert set(result.details[1:]) == {""}


@pytest.mark.parametrize("idle", [0, 1])
def test_a_member_that_sends_the_model_back_makes_nobody_else_an_outlier(idle: int) -> None:
    """A free rider, or a member with a single class: its change has no length."""
    rng = np.random.default_rng(3)
    rows, base = round_of(1.0, 1.0, 1.0, 1.0)
    unusual = along(rng, rows[0], 1.0, own=2.0)
    rows[3] = unusual
    rows[idle] = base.copy()

    result = judged(rows, base, 1)

    assert left_out(result) == []
    assert result.details[idle] == "no length: it sent the model back as it was"


def test_most_members_have_no_length_so_the_model_stays() -> None:
    rows, base = round_of(1.0, 1.0, 1.0, 1.0)
    rows[:3] = [base.copy()] * 3
    result = judged(rows, base, 1)
    np.testing.assert_array_equal(result.values, base)
    assert result.details[3].endswith("longer than most, which have no length")


# --- Under attack ------------------------------------------------------------------------------


@pytest.mark.parametrize("attackers", [0, 1, 2, 3])
def test_exactly_the_attackers_are_left_out(attackers: int) -> None:
    rows, base = synthetic_round(5, 10, 2000)
    for i in range(attackers):
        rows[i] = (base - 6 * (rows[i] - base)).astype(np.float32)
    result = adaptive(rows, base, 3, ties_for(10))
    assert [weight == 0 for weight in result.weights] == [i < attackers for i in range(10)]


def test_a_long_change_that_points_another_way_is_left_out_whatever_the_gate_says() -> None:
    """Honest members that disagree among themselves do not make room for it."""
    rng = np.random.default_rng(8)
    base = np.zeros(400, dtype=np.float32)
    rows = [along(rng, rng.standard_normal(400).astype(np.float32), 1.0) for _ in range(4)]
    just, over = (rows[0] * (GROSS - 0.1)), (rows[0] * (GROSS + 0.2))

    kept, gone = judged([just, *rows[1:]], base, 1), judged([over, *rows[1:]], base, 1)

    assert left_out(kept) == []
    assert kept.weights[0] == pytest.approx(1 / (GROSS - 0.1) / 4, ROUNDING)
    assert "points another way" in kept.details[0]
    assert kept.details[0].endswith("times longer: shortened")
    assert left_out(gone) == [0]
    assert "and is 3." in gone.details[0]
    assert "1 left out: far too long, pointing another way" in gone.reason


def test_at_most_f_rows_are_gross_the_longest_first() -> None:
    rng = np.random.default_rng(9)
    rows = [along(rng, rng.standard_normal(400).astype(np.float32), 1.0) for _ in range(7)]
    for i, times in enumerate((50.0, 90.0, 70.0)):
        rows[i] = (times * rows[i]).astype(np.float32)
    assert directions(rows, 3).gross(3) == [1, 2, 0]
    assert directions(rows, 3).gross(2) == [1, 2]


def test_agreement_needs_half_of_the_members() -> None:
    """Two colluders that agree with each other are not enough."""
    rng = np.random.default_rng(10)
    common, theirs = (rng.standard_normal(400).astype(np.float32) for _ in range(2))
    rows = [along(rng, theirs, 1.0) for _ in range(2)]
    rows += [along(rng, common, 1.0) for _ in range(5)]
    found = directions(rows, 2)
    assert [found.agrees(i) for i in range(7)] == [False] * 2 + [True] * 5


@st.composite
def any_rounds(draw: st.DrawFn) -> tuple[list[Row], PastRounds, int]:
    size = draw(st.integers(4, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    common = dyadic(rng, 12, 12) * draw(st.sampled_from([0, 1]))
    rows = [
        (dyadic(rng, 12, 12) + common) * draw(st.sampled_from([0, 1, 1, 1, -1, 4, 1000]))
        for _ in range(size)
    ]
    known = st.sampled_from([-2.0, -0.2, -0.05, 0.0, 2.0])
    reputations = draw(st.lists(known, min_size=size, max_size=size))
    cosines = st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), min_size=size, max_size=size)
    last_cosines = draw(st.none() | cosines.map(tuple))
    past = PastRounds(tuple(reputations), last_cosines)
    return [r.astype(np.float32) for r in rows], past, (size - 1) // 3


@settings(max_examples=200, deadline=None, derandomize=True)
@given(any_rounds())
def test_whatever_comes_at_most_f_are_left_out_and_nobody_moves_the_model_far(drawn) -> None:  # type: ignore[no-untyped-def]
    """So attackers that frame honest members cause at most f honest rows to be left out, and each
    of the k rows that are kept moves the model by at most twice the reference length over k."""
    rows, past, faults = drawn
    base = np.zeros(12, dtype=np.float32)
    result = judged(rows, base, faults, past=past)
    lengths = [float(np.linalg.norm(row)) for row in rows]
    reference = sorted(lengths)[len(rows) - faults - 1]
    kept = [i for i, weight in enumerate(result.weights) if weight > 0]
    if reference > 0:
        assert len(kept) >= len(rows) - faults
    assert all(
        result.weights[i] * lengths[i] <= REACH * reference / len(kept) * (1 + ROUNDING)
        for i in kept
    )
    assert sum(result.weights) <= 1 + 1e-9


@settings(max_examples=100, deadline=None, derandomize=True)
@given(any_rounds())
def test_the_kept_directions_pass_the_gate(drawn) -> None:  # type: ignore[no-untyped-def]
    rows, past, faults = drawn
    found = directions(rows, faults)
    judgement = Judgement(found, faults)
    judgement.trust(past.reputations)
    distances = found.distances(range(len(rows)))
    own = largest_variances(distances, [judgement.kept])[0]
    inliers = judgement._tightest_by_size([i for i in range(len(rows)) if i not in judgement.gross])
    assert own <= GATE * inliers[-1][1] * (1 + 1e-9)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(any_rounds(), st.randoms(use_true_random=False))
def test_the_order_of_members_does_not_matter(drawn, random) -> None:  # type: ignore[no-untyped-def]
    rows, past, faults = drawn
    order = list(range(len(rows)))
    random.shuffle(order)
    ties = ties_for(len(rows))
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


def test_with_many_members_the_choice_costs_no_more_than_with_ten() -> None:
    """Outliers are removed one at a time instead of trying all subsets."""
    rng = np.random.default_rng(2)
    common = rng.standard_normal(400).astype(np.float32)
    rows = [along(rng, common, 1.0) for _ in range(16)]
    rows[:5] = [along(rng, -common, 1.0) for _ in range(5)]
    found = directions(rows, 5)
    by_size = Judgement(found, 5)._tightest_by_size(range(16))
    assert [len(kept) for kept, _ in by_size] == list(range(16, 10, -1))
    assert set(by_size[-1][0]) == set(range(5, 16))
    assert SUBSETS_MAX < 4368


def test_agreed_weights_and_shortening_go_together() -> None:
    """The shares are those agreed, capped; a long change counts for less of its share."""
    rows, base = round_of(6.0, 1.0, 1.0, 1.0, 1.0)
    weighing = Weighing((3, 1, 1, 1, 3), 1)
    plain = judged([rows[1], *rows[1:]], base, 1, weighing=weighing)
    shortened = judged(rows, base, 1, weighing=weighing)
    assert shortened.weights[1:] == pytest.approx(plain.weights[1:])
    assert shortened.weights[0] == pytest.approx(plain.weights[0] * REACH / 6, ROUNDING)


# --- The rule's words about single rows -----------------------------------------------------------


def test_each_row_that_is_left_out_has_a_reason_and_no_other_has() -> None:
    rows, base = round_of(*[1.0] * 10)
    rows[4] = -rows[4]
    result = judged(rows, base, 3)

    assert left_out(result) == [4]
    assert result.details[4].startswith("points another way than the others (cosine -0.")
    assert [bool(detail) for detail in result.details] == [i == 4 for i in range(10)]


def test_a_row_that_is_not_finite_says_so() -> None:
    rows, base = round_of(*[1.0] * 10)
    rows[3] = np.full_like(base, np.nan)
    result = judged(rows, base, 3)

    assert result.details[3] == "its values are not finite numbers"
    assert sum(map(bool, result.details)) == 1
