"""Synthetic rounds built from integers, so that they are the same on every machine."""

from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float32]


def ties_for(count: int) -> list[bytes]:
    return [sha256(bytes([i])).digest() for i in range(count)]


def dyadic(rng: np.random.Generator, columns: int, bits: int) -> Row:
    """Random integers below 2^bits, times 2^-bits: exact in float32, no libm involved."""
    return (rng.integers(-(1 << bits), 1 << bits, columns) * 0.5**bits).astype(np.float32)


def synthetic_round(
    seed: int, rows: int, columns: int, attackers: int = 0
) -> tuple[list[Row], Row]:
    """Rows near a common change; the first `attackers` of them flip and double it."""
    rng = np.random.default_rng(seed)
    base = dyadic(rng, columns, 12)
    common = dyadic(rng, columns, 16) / 64
    updates = [base + common + dyadic(rng, columns, 16) / 64 for _ in range(rows)]
    for i in range(attackers):
        updates[i] = base - 2 * (updates[i] - base)
    return [row.astype(np.float32) for row in updates], base
