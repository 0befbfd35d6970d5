"""Reputation: opponents lose trust and recover, and nobody else does."""

import numpy as np
import pytest
from federations import VALUES, Federation, left_out
from synthetic_rounds import dyadic, ties_for

from defl.aggregation.adaptive import adaptive
from defl.aggregation.directions import Directions
from defl.aggregation.gram import Gram
from defl.aggregation.reputation import (
    ALIGNMENT_MIN,
    DECAY,
    DISTRUST,
    PastRounds,
    trusts,
    updated_reputations,
)

# --- Alignment -------------------------------------------------------------------------------


def cosines(rows: list[list[float]], inliers: set[int]) -> list[float]:
    gram = Gram(np.zeros(2, dtype=np.float32))
    gram.add([np.array(row, dtype=np.float32) for row in rows])
    return Directions(gram.measured().geometry, 0).cosines_with(inliers)


def test_alignment_is_the_cosine_with_the_directions_of_the_other_inliers() -> None:
    """A long change has no more say than a short one."""
    half = 0.5**0.5
    found = cosines([[1, 0], [50, 50], [0, 2], [-3, 0]], {0, 1})
    between = (1 + half) / (half**2 + (1 + half) ** 2) ** 0.5
    assert found == pytest.approx([half, half, half / (2 + 2 * half) ** 0.5, -between])


def test_a_change_of_no_length_is_aligned_with_no_member() -> None:
    rows: list[list[float]] = [[0, 0], [1, 1]]
    assert cosines(rows, {1}) == [0, 0]
    assert cosines(rows, {0}) == [0, 0]


def test_a_round_adds_only_if_the_median_member_is_aligned_and_always_forgets() -> None:
    before = PastRounds((1.0, 0.0, -1.0), None)
    counted = updated_reputations(before, [0.5, ALIGNMENT_MIN, -0.5])
    assert counted == pytest.approx([DECAY + 0.5, ALIGNMENT_MIN, -DECAY - 0.5])
    assert updated_reputations(before, [0.5, 0.04, -0.5]) == pytest.approx([DECAY, 0, -DECAY])


def test_inliers_and_last_aggregate_count_equally() -> None:
    past = PastRounds((0.0,) * 3, (0.8, 0.3, -0.9))
    assert updated_reputations(past, [0.2, 0.3, 0.4]) == pytest.approx([0.5, 0.3, -0.25])


def test_what_is_held_against_a_member_fades_without_new_rounds() -> None:
    """Also after the longest opposition that there can be."""
    worst = updated_reputations(PastRounds((-1 / (1 - DECAY), 2.0, 2.0), None), [-1.0, 1.0, 1.0])
    past, rounds = PastRounds(worst, None), 0
    while trusts((past.reputations[0], 1.0, 1.0), 1)[0] < 0.5:
        past = PastRounds(updated_reputations(past, [0.0] * 3), None)
        rounds += 1
        assert rounds < 350
    assert rounds > 200


# --- Trust -----------------------------------------------------------------------------------


def test_trust_falls_with_the_reputation_and_ends_at_the_margin() -> None:
    low = [-DISTRUST / 2, -DISTRUST, 0.01]
    assert trusts([*low, *[2.0] * 4], 2) == (0.5, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0)


def test_a_member_about_whom_nothing_is_known_is_trusted() -> None:
    """Neither one that joined nor one that was offline in the first rounds."""
    assert trusts([0.0, 4.0, 4.0, 4.0], 1) == (1.0,) * 4
    assert trusts([0.0] * 4, 1) == (1.0,) * 4


@pytest.mark.parametrize("total", [-4.0, -DISTRUST])
def test_newcomers_neither_replace_nor_hide_known_attackers(total: float) -> None:
    """n = 7, f = 2. Counted as 0, newcomers would, together with the attackers, pull the median
    down until everybody is trusted."""
    assert trusts([0.0, 0.0, total, total, 4.0, 4.0, 4.0], 2) == (1, 1, 0, 0, 1, 1, 1)


def test_everybody_is_trusted_while_the_median_member_does_not_agree() -> None:
    assert trusts([-4.0, -3.0, 2.0, 2.0], 1) == (1.0,) * 4


def test_at_most_faults_max_members_lose_trust_the_least_aligned_first() -> None:
    reputations = [-1.0, -3.0, -2.0, *[4.0] * 7]
    assert trusts(reputations, 3)[:3] == (0, 0, 0)
    assert trusts(reputations, 2)[:3] == (1, 0, 0)
    assert trusts(reputations, 0)[:3] == (1, 1, 1)


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
    assert "2 left out: opposed to the others over many rounds" in result.reason
    assert max(federation.reputations[:2]) < -DISTRUST < 0 < min(federation.reputations[2:])
    assert result.trusts == (0, 0, 1, 1, 1, 1, 1)
    assert [detail.startswith("opposes the others over many") for detail in result.details] == [
        True
    ] * 2 + [False] * 5


def test_a_little_opposition_in_the_first_round_costs_a_little_weight() -> None:
    """Two rows that vary no more than the others but go a little against their common direction."""
    rng = np.random.default_rng(3)
    common = dyadic(rng, 400, 12) / 2
    rows = [dyadic(rng, 400, 12) + (common if i > 1 else -common / 4) for i in range(7)]
    base = np.zeros(400, dtype=np.float32)

    result = adaptive(rows, base, 2, ties_for(7), past=PastRounds((0.0,) * 7, None))

    assert left_out(result) == []
    assert max(result.trusts[:2]) < 1
    assert (
        result.details[0] == f"counts {result.trusts[0]:.0%}: it opposed the others in past rounds"
    )
    assert result.weights[0] == pytest.approx(result.trusts[0] / 7, rel=0.3)


def test_known_attackers_and_not_newcomers_are_left_out_of_a_loud_round() -> None:
    """Two honest members are replaced by newcomers once the model has converged. Then one of the
    two known attackers is loud, in a round that adds to nobody's reputation."""
    federation = Federation()
    for _ in range(12):
        federation.round()
    rows = federation.rows()
    rows[0] = (4 * rows[0] - 3 * federation.model).astype(np.float32)

    result = federation.round(rows, members=[0, 1, 2, 3, 4, 7, 8])

    assert left_out(result) == [0, 1]


def test_without_attack_no_member_is_ever_left_out() -> None:
    federation = Federation(flipping=0)
    for _ in range(30):
        assert left_out(federation.round()) == []


def test_a_reformed_member_returns_by_itself_though_the_model_has_converged() -> None:
    federation = Federation()
    for _ in range(8):
        result = federation.round()
    assert left_out(result) == [0, 1]
    federation.flipping = 0
    rounds = 0
    while left_out(result):
        result = federation.round()
        rounds += 1
        assert rounds < 150
    assert rounds > 1


def test_opponents_are_kept_if_the_others_alone_do_not_pass_the_gate() -> None:
    """Two honest members are framed and two attackers point elsewhere: the gate decides."""
    rng = np.random.default_rng(4)
    common = 4 * dyadic(rng, 50, 12)
    inliers = [common + dyadic(rng, 50, 12) for _ in range(5)]
    rows = [*inliers, *(-common + dyadic(rng, 50, 12) for _ in range(2))]
    past = PastRounds((*[-9.0] * 2, *[3.0] * 5), None)
    result = adaptive(rows, np.zeros(50, dtype=np.float32), 2, ties_for(7), past=past)
    assert left_out(result) == [5, 6]
    assert result.trusts == (1.0,) * 7
