"""The definition of Krum used here: golden vectors for neighbours, squares, ties and counts."""

from collections.abc import Sequence

import numpy as np
import pytest
from synthetic_rounds import ties_for

from defl.aggregation.krum import Neighbours, krum, multi_krum
from defl.aggregation.rules import RULES
from defl.errors import PreconditionBroken


def line(*places: float) -> list[np.ndarray]:
    """Rows on a line: row i is (place, 0, 0)."""
    return [np.array([place, 0, 0], dtype=np.float32) for place in places]


BASE = np.zeros(3, dtype=np.float32)

# Rows at 0, 1, 3, 7, 15 with faults_max = 1. Sums of *squared* distances
#   to the 3 nearest others (m - f = 4 with itself):  0: 1+9+49  1: 1+4+36  3: 4+9+16  7: 16+36+49
#   to the 2 nearest others (m - f - 2):              0: 1+9     1: 1+4     3: 4+9     7: 16+36
GOLDEN: list[tuple[Neighbours, list[float], list[float]]] = [
    ("defl", [59, 41, 29, 101, 64 + 144 + 196], [0.25, 0.25, 0.25, 0.25, 0]),
    ("blanchard", [10, 5, 13, 52, 64 + 144], [0.25, 0.25, 0.25, 0.25, 0]),
]


@pytest.mark.parametrize(("neighbours", "scores", "weights"), GOLDEN)
def test_scores_are_sums_of_squares_over_the_stated_neighbours(
    neighbours: Neighbours, scores: Sequence[float], weights: Sequence[float]
) -> None:
    result = multi_krum(line(0, 1, 3, 7, 15), BASE, 1, ties_for(5), neighbours=neighbours)
    assert list(result.scores) == scores
    assert list(result.weights) == weights
    assert result.values.tolist() == [2.75, 0, 0]


def test_krum_returns_the_one_best_row_itself() -> None:
    result = krum(line(0, 1, 3, 7, 15), BASE, 1, ties_for(5))
    assert result.weights == (0, 1, 0, 0, 0)
    assert result.values.tolist() == [1, 0, 0]


def test_counting_the_row_itself_changes_the_winner() -> None:
    """Rows at 0, 1, 3, 7, 15: with two others row 1 is best, with three others row 3 is."""
    blanchard = krum(line(0, 1, 3, 7, 15), BASE, 1, ties_for(5), neighbours="blanchard")
    defl = krum(line(0, 1, 3, 7, 15), BASE, 1, ties_for(5), neighbours="defl")
    assert blanchard.values[0] == 1
    assert defl.values[0] == 3


def test_tie_breakers_not_places_decide_among_identical_rows() -> None:
    """Four identical rows, three kept: the largest tie-breaker loses, at every place."""
    rows = line(5, 5, 5, 5)
    for last in range(4):
        ties = [b"\x00" + bytes([i]) for i in range(4)]
        ties[last] = b"\xff"
        result = multi_krum(rows, BASE, 1, ties)
        assert [i for i, weight in enumerate(result.weights) if weight == 0] == [last]


def test_the_papers_own_setting_works_and_reports_that_it_is_outside_the_proof() -> None:
    rows = line(0, 1, 2, 50)
    result = RULES["multi_krum"](rows, BASE, 1, ties_for(4))
    assert result.weights[3] == 0
    assert "Outside the proof" in result.reason
    assert "6 rows" in result.reason
    with pytest.raises(PreconditionBroken, match="3f \\+ 3"):
        RULES["multi_krum"](rows, BASE, 1, ties_for(4), strict=True)


def test_counts_are_never_clamped() -> None:
    """n = 4, f = 2 leaves no neighbour by Blanchard's count; the authors' code used max(1, 0)."""
    with pytest.raises(PreconditionBroken, match="no neighbour"):
        multi_krum(line(0, 1, 2, 50), BASE, 2, ties_for(4), neighbours="blanchard")
    with pytest.raises(PreconditionBroken, match="must be 1 to 3"):
        multi_krum(line(0, 1, 2, 50), BASE, 1, ties_for(4), keep=4)
    with pytest.raises(PreconditionBroken, match="must be 1 to 3"):
        multi_krum(line(0, 1, 2, 50), BASE, 1, ties_for(4), keep=0)
