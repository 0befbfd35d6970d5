"""The grid: its definition, exact selection on it, and the error that it can cause."""

from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from synthetic_rounds import dyadic, synthetic_round, ties_for

from defl.aggregation import kernels_numba, kernels_numpy
from defl.aggregation.gram import Geometry, Gram
from defl.aggregation.grid import (
    BLOCK,
    EXPONENT_MIN,
    NUMBER_BITS,
    NUMBER_MAX,
    SUMS_PER_PAIR,
)
from defl.aggregation.krum import multi_krum
from defl.aggregation.workers import Workers
from defl.errors import PreconditionBroken

LOOPS = [kernels_numpy, kernels_numba]


def on_grid(row: np.ndarray, base: np.ndarray) -> list[Fraction]:
    """The grid's definition, once more in rational arithmetic."""
    change = [Fraction(float(value)) for value in row - base]
    result: list[Fraction] = []
    for start in range(0, len(change), BLOCK):
        block = change[start : start + BLOCK]
        power = EXPONENT_MIN
        while Fraction(2) ** power <= max(abs(value) for value in block) and power < 128:
            power += 1
        step = Fraction(2) ** (power - NUMBER_BITS)
        result += [max(-NUMBER_MAX, min(NUMBER_MAX, round(value / step))) * step for value in block]
    return result


def products(rows: list[list[Fraction]]) -> list[list[Fraction]]:
    return [
        [sum((a * b for a, b in zip(x, y, strict=True)), Fraction(0)) for y in rows] for x in rows
    ]


def exact(geometry: Geometry) -> list[list[Fraction]]:
    unit = Fraction(2) ** (2 * (EXPONENT_MIN - NUMBER_BITS))
    return [[entry * unit for entry in row] for row in geometry.products]


@pytest.mark.parametrize("loops", LOOPS, ids=lambda loops: loops.NAME)
@pytest.mark.parametrize("spread", [0, 20, 100])
def test_inner_products_equal_those_of_rational_arithmetic_on_the_grid(
    loops: object, spread: int
) -> None:
    rng = np.random.default_rng(spread)
    rows, base = synthetic_round(3, 5, 3 * BLOCK + 17)
    for row in rows:
        np.multiply(
            row, np.ldexp(np.float32(1), rng.integers(-spread, spread + 1, row.shape)), out=row
        )
    gram = Gram(base, loops=loops)
    gram.add(rows)
    assert exact(gram.measured().geometry) == products([on_grid(row, base) for row in rows])


@pytest.mark.parametrize("loops", LOOPS, ids=lambda loops: loops.NAME)
def test_rows_added_one_by_one_in_any_order_give_the_same_products(loops: object) -> None:
    rows, base = synthetic_round(4, 4, 1000)
    at_once = Gram(base, loops=loops)
    at_once.add(rows)
    for order in permutations(range(4)):
        gram = Gram(base, loops=loops, workers=Workers(3))
        for i in order:
            gram.add([rows[i]])
        back = [order.index(i) for i in range(4)]
        assert gram.measured(back) == at_once.measured()


def test_blocks_full_of_the_largest_number_do_not_overflow() -> None:
    base = np.zeros(4 * BLOCK, dtype=np.float32)
    row = np.full(4 * BLOCK, np.nextafter(np.float32(2), np.float32(0)))
    for loops in LOOPS:
        gram = Gram(base, loops=loops)
        gram.add([row, -row])
        (same, opposite), _ = exact(gram.measured().geometry)
        assert same == 4 * BLOCK * Fraction(NUMBER_MAX * 2, 1 << NUMBER_BITS) ** 2
        assert opposite == -same


def test_rounding_moves_a_row_by_at_most_the_stated_share_of_its_norm() -> None:
    """The worst case: one large value per block, all others half a step off the grid."""
    bound = Fraction(BLOCK) / Fraction(4) ** NUMBER_BITS  # its square
    step = 2.0**-NUMBER_BITS
    worst = np.full(2 * BLOCK, step * 0.4999, dtype=np.float32)
    worst[::BLOCK] = 0.5
    rng = np.random.default_rng(1)
    base = np.zeros(2 * BLOCK, dtype=np.float32)
    for row in (worst, dyadic(rng, 2 * BLOCK, 20), rng.standard_cauchy(2 * BLOCK).astype("f4")):
        moved = [q - Fraction(float(v)) for q, v in zip(on_grid(row, base), row, strict=True)]
        norm = sum(Fraction(float(v)) ** 2 for v in row)
        assert sum(m * m for m in moved) <= bound * norm


@pytest.mark.parametrize("seed", range(5))
def test_selection_on_near_ties_equals_that_of_rational_arithmetic(seed: int) -> None:
    """Rows that differ by single steps of the grid, where float64 scores collapse into ties."""
    rng = np.random.default_rng(seed)
    base = np.zeros(BLOCK, dtype=np.float32)
    common = dyadic(rng, BLOCK, NUMBER_BITS)
    common[0] = 2.0**60  # makes every norm huge, so that float64 loses the differences
    rows = []
    for _ in range(7):
        row = common.copy()
        row[0] += np.float32(2.0**49 * rng.integers(-2, 3))
        rows.append(row)
    ties = ties_for(7)
    result = multi_krum(rows, base, 2, ties)

    grid = [on_grid(row, base) for row in rows]
    scores = []
    for i in range(7):
        apart = sorted(
            sum((a - b) ** 2 for a, b in zip(grid[i], grid[j], strict=True))
            for j in range(7)
            if j != i
        )
        scores.append(sum(apart[:4]))
    kept = sorted(range(7), key=lambda i: (scores[i], ties[i]))[:5]
    assert {i for i in range(7) if result.weights[i] > 0} == set(kept)


def test_rows_closer_than_half_a_grid_step_are_ties() -> None:
    """A difference below half a step is rounded away: the tie-breaker decides."""
    base = np.zeros(BLOCK, dtype=np.float32)
    rows = [np.ones(BLOCK, dtype=np.float32) for _ in range(4)]
    rows[2][7] += np.float32(2.0**-14)
    result = multi_krum(rows, base, 1, [b"d", b"b", b"a", b"c"])
    assert result.scores == (0, 0, 0, 0)
    assert result.weights[0] == 0


def test_compiled_loops_refuse_rows_that_are_not_contiguous_float32() -> None:
    """They walk raw memory: another array would be read as garbage, or past its end."""
    base = np.zeros(8, dtype=np.float32)
    sums = np.zeros((SUMS_PER_PAIR, 1), dtype=np.int64)
    for row in (np.zeros(16, dtype=np.float32)[::2], np.zeros(8), np.zeros(7, dtype=np.float32)):
        with pytest.raises(PreconditionBroken, match="contiguous"):
            kernels_numba.measure([row], base, 0, sums)


@pytest.mark.parametrize("loops", LOOPS, ids=lambda loops: loops.NAME)
def test_products_with_a_row_that_is_not_finite_count_as_zero(loops: object) -> None:
    rows, base = synthetic_round(5, 3, 2 * BLOCK + 5)
    rows[1][BLOCK] = np.nan
    gram = Gram(base, loops=loops)
    gram.add(rows)
    measured = gram.measured()
    assert measured.finite == (True, False, True)
    assert measured.geometry.products[1] == (0, 0, 0)
    assert measured.geometry.products[0][2] != 0
