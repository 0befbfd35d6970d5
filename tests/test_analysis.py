"""The paper's analysis as functions: eta, the conditions, the fit of exponents."""

from math import sqrt

import pytest

from defl.errors import PreconditionBroken
from defl.lab.experiments.analysis import (
    biscotti,
    consensus_holds,
    defl,
    defl_holds,
    defl_stored_paper,
    deviation,
    eta,
    exponent,
    krum_holds,
    sin_alpha,
)


def test_eta_is_the_papers_equation() -> None:
    # n = 10, f = 3: 2(7 + (3*5 + 9*6) / 2) = 2(7 + 34.5)
    assert eta(10, 3) == pytest.approx(sqrt(83))
    assert eta(7, 2) == pytest.approx(sqrt(2 * (5 + (2 * 3 + 4 * 4) / 1)))
    assert eta(5, 0) == pytest.approx(sqrt(10))


@pytest.mark.parametrize(("nodes", "faults"), [(4, 1), (6, 2), (2, 0), (10, -1)])
def test_eta_is_refused_where_krum_promises_nothing(nodes: int, faults: int) -> None:
    with pytest.raises(PreconditionBroken, match="2f"):
        eta(nodes, faults)


def test_eta_grows_with_the_root_of_n_for_few_faults_and_with_n_for_a_share() -> None:
    sizes = [100, 1000, 10000]

    assert exponent(sizes, [eta(n, 2) for n in sizes]) == pytest.approx(0.5, abs=0.03)
    assert exponent(sizes, [eta(n, n // 4) for n in sizes]) == pytest.approx(1.0, abs=0.03)


def test_eta_does_not_always_grow_with_n_as_the_paper_says() -> None:
    """The proof of Theorem 1 leans on it; near n = 2f + 3 it falls."""
    assert eta(7, 2) > eta(8, 2)
    assert eta(30, 2) > eta(12, 2)


@pytest.mark.parametrize(
    ("nodes", "faults", "consensus", "krum", "theorem"),
    [
        (4, 1, True, False, False),  # the paper's own smallest setting
        (5, 1, True, True, False),
        (6, 1, True, True, True),
        (7, 2, True, True, False),  # the paper's
        (9, 2, True, True, True),
        (10, 3, True, True, False),  # the paper's
        (12, 3, True, True, True),
        (3, 1, False, False, False),
    ],
)
def test_which_condition_holds_where(nodes, faults, consensus, krum, theorem) -> None:
    assert consensus_holds(nodes, faults) is consensus
    assert krum_holds(nodes, faults) is krum
    assert defl_holds(nodes, faults) is theorem


def test_the_angle_follows_from_eta() -> None:
    assert sin_alpha(10, 3, dimensions=100, sigma=0.01, gradient=2.0) == pytest.approx(
        eta(10, 3) * 0.05
    )


def test_the_papers_hundredfold_storage_is_what_the_formulas_say_at_200_rounds() -> None:
    for nodes in (4, 7, 10):
        chain = biscotti(nodes, 1, 200).stored
        assert chain / defl_stored_paper(nodes, 1) >= 100
        assert chain / defl(nodes, 1, 200).stored == pytest.approx(200 / 3)  # with grace and models


def test_flooding_costs_about_n_plus_one_times_defls_traffic() -> None:
    for nodes in (4, 7, 10):
        ratio = biscotti(nodes, 1, 1).sent / defl(nodes, 1, 1).sent
        assert ratio == pytest.approx(nodes + 1, rel=0.11)
        lean = biscotti(nodes, 1, 1, flood=False).sent / defl(nodes, 1, 1).sent
        assert 1.2 < lean < 1.8


def test_defls_traffic_is_quadratic_in_the_end() -> None:
    assert exponent([4, 7, 10], [defl(n, 1, 1).sent for n in (4, 7, 10)]) == pytest.approx(
        2.2, 0.01
    )
    assert exponent([100, 1000], [defl(n, 1, 1).sent for n in (100, 1000)]) == pytest.approx(
        2, 0.01
    )


def test_an_exponent_needs_two_points_and_positive_numbers() -> None:
    assert exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    for xs, ys in (([1], [1]), ([2, 2], [1, 1]), ([1, 2], [0, 1]), ([1, 2], [1])):
        with pytest.raises(PreconditionBroken):
            exponent(xs, ys)
    with pytest.raises(PreconditionBroken):
        deviation(1, 0)
