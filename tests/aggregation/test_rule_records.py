"""The rules' records, their conditions, and small cases of each rule."""

import re
from inspect import signature
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from synthetic_rounds import synthetic_round, ties_for

from defl.aggregation import kernels_numba, kernels_numpy
from defl.aggregation.aggregate import weighted_sum
from defl.aggregation.eigen import largest_eigenvalues, largest_variances, tightest
from defl.aggregation.geometric_median import judge_geometric_median
from defl.aggregation.gram import Gram
from defl.aggregation.krum import multi_krum
from defl.aggregation.network import middle_network, sorting_network
from defl.aggregation.rules import RULES, rule_named
from defl.aggregation.subset import peeled
from defl.committee import DEFAULTS
from defl.errors import PreconditionBroken, UserError


def test_condition_says_whether_the_theorem_covers_a_round() -> None:
    krum, mean = RULES["multi_krum"].condition, RULES["fed_avg"].condition
    assert krum.outside(12, 3) is None
    assert "12 rows and there are 7" in str(krum.outside(7, 3))
    assert "no Byzantine row" in str(mean.outside(10, 1))
    assert mean.outside(10, 0) is None


@pytest.mark.parametrize("name", RULES)
def test_record_states_what_its_function_takes(name: str) -> None:
    rule = RULES[name]
    options = signature(rule.function).parameters
    assert ("measured" in options, "past" in options) == (rule.geometric, rule.remembers)
    assert rule.name == name


def test_only_the_default_rule_remembers() -> None:
    assert [name for name, rule in RULES.items() if rule.remembers] == [DEFAULTS.aggregation]


def test_documentation_lists_every_rule_as_its_record_describes_it() -> None:
    page = (Path(__file__).parents[2] / "docs" / "AGGREGATION.md").read_text(encoding="utf-8")
    for rule in RULES.values():
        memory = "yes" if rule.remembers else "no"
        cells = (f"`{rule.name}`", rule.summary, rule.condition.formula, memory, rule.score)
        assert "| " + " | ".join(cells) + " |" in page
    listed = re.findall(r"^\| `(\w+)` \| .*\| (?:yes|no) \|", page, flags=re.MULTILINE)
    assert listed == list(RULES)


@pytest.mark.parametrize("name", ["mean", "bulyan"])
def test_unknown_rule_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UserError, match=f"no aggregation rule is named '{name}'.*multi_krum"):
        rule_named(name)


@pytest.mark.parametrize("name", RULES)
def test_rounds_without_rows_ties_or_a_valid_faults_max_are_refused(name: str) -> None:
    rows, base = synthetic_round(1, 4, 20)
    for round_ in (([], base, 0, []), (rows, base, 4, ties_for(4)), (rows, base, 0, ties_for(3))):
        with pytest.raises(PreconditionBroken):
            RULES[name](*round_)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 10, 13, 50])
def test_sorting_network_sorts_every_column(size: int) -> None:
    rng = np.random.default_rng(size)
    columns = rng.integers(0, 6, (size, 400))
    ordered = columns.copy()
    for low, high in sorting_network(size):
        ordered[[low, high]] = np.sort(ordered[[low, high]], axis=0)
    np.testing.assert_array_equal(ordered, np.sort(columns, axis=0))
    first, last = (size - 1) // 2, size // 2
    middle = columns.copy()
    for low, high in middle_network(size, first, last).tolist():
        middle[[low, high]] = np.sort(middle[[low, high]], axis=0)
    np.testing.assert_array_equal(middle[first : last + 1], ordered[first : last + 1])


@pytest.mark.parametrize("size", [*range(1, 10), 16, 50])
def test_compiled_and_numpy_loops_average_the_middle_bit_for_bit_alike(size: int) -> None:
    rng = np.random.default_rng(size)
    powers = rng.integers(-60, 60, (size, 301))
    rows = list(np.ldexp(rng.standard_normal((size, 301)), powers).astype(np.float32))
    first, last = (size - 1) // 3, size - 1 - (size - 1) // 3
    plain, fast = np.zeros((2, 301), dtype=np.float32)
    assert kernels_numpy.mean_of_middle(rows, first, last, plain)
    assert kernels_numba.mean_of_middle(rows, first, last, fast)
    np.testing.assert_array_equal(fast.view(np.int32), plain.view(np.int32))


@pytest.mark.parametrize("rows", [4, 7, 10])
def test_median_and_trimmed_mean_equal_their_definition(rows: int) -> None:
    updates, base = synthetic_round(rows, rows, 3001)
    stack = np.stack(updates).astype(np.float64)
    median = RULES["coordinate_median"](updates, base, 1, ties_for(rows))
    trimmed = RULES["trimmed_mean"](updates, base, 1, ties_for(rows))
    np.testing.assert_allclose(median.values, np.median(stack, axis=0), rtol=1e-6)
    inner = np.sort(stack, axis=0)[1:-1].mean(axis=0)
    np.testing.assert_allclose(trimmed.values, inner, rtol=1e-5, atol=1e-9)
    assert sum(median.weights) == pytest.approx(1)


def test_unit_pulls_cancel_at_the_geometric_median() -> None:
    rows, base = synthetic_round(8, 7, 64, attackers=2)
    result = RULES["geometric_median"](rows, base, 2, ties_for(7))
    stack = np.stack(rows).astype(np.float64)
    point = np.array(result.weights) @ stack
    offsets = stack - point
    pull = (offsets / np.linalg.norm(offsets, axis=1)[:, None]).sum(axis=0)
    assert np.linalg.norm(pull) < 0.01  # only the grid keeps it from zero
    assert "converged after" in result.reason


def test_row_that_is_the_geometric_median_needs_no_iteration() -> None:
    rows = [np.array([x, 0], dtype=np.float32) for x in (0, 1, 2, 4, 64)]
    gram = Gram(np.zeros(2, dtype=np.float32))
    gram.add(rows)
    verdict = judge_geometric_median(gram.measured().geometry, 2)
    assert verdict.weights == (0, 0, 1, 0, 0)
    assert "after 0 steps" in verdict.reason


def test_eigenvalues_agree_with_lapack() -> None:
    rng = np.random.default_rng(1)
    matrices = rng.standard_normal((20, 9, 9))
    symmetric = matrices + matrices.transpose(0, 2, 1)
    np.testing.assert_allclose(
        largest_eigenvalues(symmetric), np.linalg.eigvalsh(symmetric)[:, -1], rtol=1e-12
    )


def test_largest_variance_of_a_subset_is_that_of_its_covariance() -> None:
    rng = np.random.default_rng(2)
    points = rng.standard_normal((6, 3))
    distances = np.square(points[:, None] - points[None, :]).sum(axis=2)
    for subset in ((0, 1, 2, 3), (1, 3, 4, 5)):
        covariance = np.cov(points[list(subset)].T, bias=True)
        (variance,) = largest_variances(distances, [subset])
        assert variance == pytest.approx(np.linalg.eigvalsh(covariance)[-1])


def test_tightest_subset_is_that_of_exact_eigenvalues() -> None:
    rng = np.random.default_rng(4)
    for _ in range(20):
        points = rng.standard_normal((9, 4)) * rng.choice([0.1, 1, 3], (9, 1))
        distances = np.square(points[:, None] - points[None, :]).sum(axis=2)
        subsets = list(combinations(range(9), 6))
        variances = largest_variances(distances, subsets)
        assert tightest(distances, subsets) == (int(np.argmin(variances)), min(variances))


def test_with_too_many_subsets_far_rows_are_still_left_out() -> None:
    rng = np.random.default_rng(3)
    points = rng.standard_normal((40, 5))
    points[:9] += 30
    distances = np.square(points[:, None] - points[None, :]).sum(axis=2)
    kept, _ = peeled(distances, 31)[-1]
    assert set(kept) == set(range(9, 40))


def test_rows_measured_while_arriving_give_the_same_result() -> None:
    rows, base = synthetic_round(10, 7, 5000, attackers=2)
    gram = Gram(base)
    for i in (3, 1, 0, 2, 6, 5, 4):
        gram.add([rows[i]])
    order = [(3, 1, 0, 2, 6, 5, 4).index(i) for i in range(7)]
    later = multi_krum(rows, base, 2, ties_for(7), measured=gram.measured(order))
    at_once = multi_krum(rows, base, 2, ties_for(7))
    np.testing.assert_array_equal(later.values, at_once.values)
    assert later.scores == at_once.scores


def test_rows_may_be_mapped_files(tmp_path) -> None:
    rows, base = synthetic_round(11, 5, 4000, attackers=1)
    mapped = []
    for i, row in enumerate(rows):
        np.save(tmp_path / f"{i}.npy", row)
        mapped.append(np.load(tmp_path / f"{i}.npy", mmap_mode="r"))
    for name in ("multi_krum", "trimmed_mean", "fed_avg"):
        from_files = RULES[name](mapped, base, 1, ties_for(5))
        from_memory = RULES[name](rows, base, 1, ties_for(5))
        np.testing.assert_array_equal(from_files.values, from_memory.values)


def test_row_of_weight_zero_is_not_read() -> None:
    broken = np.full(3, np.nan, dtype=np.float32)
    fine = np.ones(3, dtype=np.float32)
    assert weighted_sum([broken, fine], [0.0, 0.5]).tolist() == [0.5, 0.5, 0.5]


def test_memory_beyond_input_and_output_stays_small() -> None:
    import tracemalloc  # noqa: PLC0415 - only here

    rows, base = synthetic_round(12, 10, 1_000_000)
    for name in ("multi_krum", "trimmed_mean", "nearest_neighbour_mixing"):
        tracemalloc.start()
        RULES[name](rows, base, 3, ties_for(10))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 64e6, name
