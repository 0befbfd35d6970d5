"""The grid on which the geometry of a round is measured: constants that all nodes must share.

A change is split into blocks of BLOCK columns. In each block of each row, 2^e is the smallest power
of two above every magnitude, and each value becomes the nearest whole number (ties to even) of
steps of 2^(e - NUMBER_BITS), at most NUMBER_MAX of them. Each value moves by at most half a step
(less than one in the last half step below 2^e), while the block's norm is at least half of 2^e;
so rounding moves a whole row by at most

    sqrt(BLOCK) * 2^-NUMBER_BITS = 0.28 %  of its own norm, whatever its values

(with random values, about a tenth of that).

Why these numbers: BLOCK products of NUMBER_MAX stay below 2^31, so one block's product is exact
in 32-bit integers, which processors multiply fastest.
"""

from collections.abc import Iterator
from typing import Final

BLOCK: Final = 128
NUMBER_BITS: Final = 12
NUMBER_MAX: Final = (1 << NUMBER_BITS) - 1

# Blocks below this power share its grid. Changes below 2^-103 then count as zero, also on a
# processor that flushes denormal numbers.
EXPONENT_MIN: Final = -90
EXPONENT_MAX: Final = 128  # no finite float32 lies above 2^128

# Sums of block products are kept apart by the power of their unit: one per sum of two exponents.
SUMS_PER_PAIR: Final = 2 * (EXPONENT_MAX - EXPONENT_MIN) + 1
UNIT_POWER: Final = 2 * (EXPONENT_MIN - NUMBER_BITS)  # the products' common unit is 2^UNIT_POWER

# Each block adds less than 2^31 to a 64-bit sum.
COLUMNS_MAX: Final = 1 << 38

NOT_FINITE: Final = 0x7F800000  # the bits of infinity; those of a NaN are above
ROUNDER: Final = 12582912.0  # 1.5 * 2^23: adding it rounds a small float32 to a whole number


def new_pairs(first: int, rows: int) -> Iterator[tuple[int, int]]:
    """The pairs i >= j of which row i is new: `first` or later."""
    for i in range(first, rows):
        for j in range(i + 1):
            yield i, j
