"""Rounds for the tests, made from whole numbers so that they are the same on every machine."""

from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float32]


def ties_for(count: int) -> list[bytes]:
    return [sha256(bytes([i])).digest() for i in range(count)]


def whole(rng: np.random.Generator, columns: int, bits: int) -> Row:
    """Random whole numbers below 2^bits, times 2^-bits: exact in float32, no libm involved."""
    return (rng.integers(-(1 << bits), 1 << bits, columns) * 0.5**bits).astype(np.float32)


def made_round(seed: int, rows: int, columns: int, attackers: int = 0) -> tuple[list[Row], Row]:
    """Rows near a common change; the first `attackers` of them flip it and double it."""
    rng = np.random.default_rng(seed)
    base = whole(rng, columns, 12)
    common = whole(rng, columns, 16) / 64
    made = [base + common + whole(rng, columns, 16) / 64 for _ in range(rows)]
    for i in range(attackers):
        made[i] = base - 2 * (made[i] - base)
    return [row.astype(np.float32) for row in made], base
