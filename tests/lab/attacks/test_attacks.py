"""Each attack does what its paper says, from what it is allowed to see."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from defl.errors import UserError
from defl.lab.attacks.attack import Row, poisoned_update
from defl.lab.attacks.attacks import ATTACKS, attack_named
from defl.lab.attacks.crafted import against_rule, alie_deviation, min_max, min_sum
from defl.lab.attacks.data import flipped_labels, stamped
from defl.lab.attacks.simple import replay


def honest_changes(count: int = 7, columns: int = 40) -> list[Row]:
    rng = np.random.default_rng(5)
    common = rng.standard_normal(columns)
    return [(common + rng.standard_normal(columns)).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("sees_all", [True, False])
def test_attack_is_a_pure_function_of_what_it_sees_and_its_generator(
    name: str, sees_all: bool
) -> None:
    honest = honest_changes()
    own = honest[0].copy()
    before = [row.copy() for row in honest]
    visible = honest if sees_all else None
    first = ATTACKS[name](own, visible, np.random.default_rng(1))
    second = ATTACKS[name](own, visible, np.random.default_rng(1))
    np.testing.assert_array_equal(first, second)
    assert first.dtype == np.float32
    assert first.shape == own.shape
    assert first is not own
    for row, kept in zip(honest, before, strict=True):
        np.testing.assert_array_equal(row, kept)


def test_poisoned_update_is_the_base_plus_the_poisoned_change() -> None:
    base = np.full(40, 2.0, dtype=np.float32)
    own = base + 0.5
    poisoned = poisoned_update(ATTACKS["sign_flip"], own, None, base, np.random.default_rng(1))
    np.testing.assert_array_equal(poisoned, base - 0.5)


def squares_to(row: Row, rows: list[Row]) -> list[float]:
    return [float(np.square(row.astype(np.float64) - other).sum()) for other in rows]


def test_min_max_and_min_sum_reach_their_bound_and_not_more() -> None:
    honest = honest_changes()
    rng = np.random.default_rng(1)
    farthest = max(max(squares_to(row, honest)) for row in honest)
    most = max(sum(squares_to(row, honest)) for row in honest)
    assert max(squares_to(min_max(honest[0], honest, rng), honest)) == pytest.approx(farthest)
    assert sum(squares_to(min_sum(honest[0], honest, rng), honest)) == pytest.approx(most)


def test_alie_uses_the_number_of_deviations_from_its_paper() -> None:
    """n = 50, f = 24: s = 2, z = inverse of (26 - 2) / 26."""
    assert alie_deviation(50, 24) == pytest.approx(1.4261, abs=1e-3)


def test_mimic_copies_one_honest_row() -> None:
    honest = honest_changes()
    poisoned = ATTACKS["mimic"](honest[0], honest, np.random.default_rng(1))
    assert any(np.array_equal(poisoned, row) for row in honest)


def test_attack_against_the_rule_reverses_the_aggregate() -> None:
    honest = honest_changes()
    mean = np.mean(honest, axis=0)

    def plain_mean(rows: list[Row]) -> Row:
        return np.mean(rows, axis=0, dtype=np.float32)

    attack = partial(against_rule, aggregate=plain_mean, attackers=2)
    poisoned = attack(honest[0], honest, np.random.default_rng(1))
    assert float(plain_mean([*honest, poisoned, poisoned]) @ mean) < 0


def test_replay_sends_the_earlier_change_again() -> None:
    honest = honest_changes()
    poisoned = replay(honest[0], None, np.random.default_rng(1), earlier=honest[3])
    np.testing.assert_array_equal(poisoned, honest[3])


def test_flipped_labels_are_those_of_the_paper() -> None:
    assert flipped_labels(np.array([0, 1, 9]), 10).tolist() == [9, 8, 0]
    assert flipped_labels(np.array([0, 1]), 2).tolist() == [1, 0]


def test_trigger_changes_only_its_corner() -> None:
    images = np.zeros((2, 8, 8), dtype=np.float32)
    poisoned = stamped(images)
    assert poisoned.sum() == 2 * 9
    assert images.sum() == 0


def test_unknown_attack_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="sign_flip"):
        attack_named("nothing")


def test_documentation_lists_every_attack_as_its_record_describes_it() -> None:
    page = (Path(__file__).parents[3] / "docs" / "AGGREGATION.md").read_text(encoding="utf-8")
    section = page.split("\n## Attacks\n")[1].split("\n## ")[0]
    listed = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, flags=re.MULTILINE))
    assert listed == {attack.name: attack.summary for attack in ATTACKS.values()}
