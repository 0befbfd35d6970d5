"""Shamir secret sharing: any `needed` shares reconstruct a secret or a sum, fewer reveal nothing.

Shamir, How to share a secret, CACM 1979, applied to each value, in the field of the prime 2^31 - 1:
a share of a model is as large as the model in float32, and products fit 64 bits. Values are
fixed-point numbers, so sums of up to a hundred secrets are exact.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from defl.errors import PreconditionBroken
from defl.fields import MEMBERS_MAX
from defl.schema import Row

PRIME = 2**31 - 1
# A change is counted in steps of 2^-18 and clipped at +-32, 2^23 steps: a hundred of them stay
# below half of the prime, so the sum keeps its sign.
STEP_BITS = 18
STEPS_MAX = 2**23 - 1

Secret = NDArray[np.uint64]  # field elements


def fixed_point(change: Row) -> Secret:
    steps = np.rint(np.ldexp(change.astype(np.float64), STEP_BITS))
    codes = np.clip(steps, -STEPS_MAX, STEPS_MAX).astype(np.int64)
    return (codes % PRIME).astype(np.uint64)


def mean_of_sum(total: Secret, count: int) -> Row:
    """The mean change from the sum of `count` fixed-point changes."""
    if not 1 <= count <= MEMBERS_MAX:
        raise PreconditionBroken(f"a sum of {count} secrets; 1 to {MEMBERS_MAX} can be read")
    codes = total.astype(np.int64)
    codes[codes > PRIME // 2] -= PRIME
    return np.ldexp(codes / count, -STEP_BITS).astype(np.float32)


def split(secret: Secret, shares: int, needed: int, rng: np.random.Generator) -> list[Secret]:
    """Share i is the polynomial's value at i + 1; its constant term is the secret."""
    if not 1 <= needed <= shares < PRIME:
        raise PreconditionBroken(f"{needed} of {shares} shares cannot be needed")
    coefficients = [
        rng.integers(0, PRIME, secret.shape, dtype=np.uint64) for _ in range(needed - 1)
    ]
    values = []
    for x in range(1, shares + 1):
        value = np.zeros_like(secret)
        for coefficient in reversed(coefficients):
            value = (value + coefficient) * np.uint64(x) % np.uint64(PRIME)
        values.append((value + secret) % np.uint64(PRIME))
    return values


def added(shares: Sequence[Secret]) -> Secret:
    """A share of the sum of the secrets."""
    total = np.zeros_like(shares[0])
    for share in shares:
        total = (total + share) % np.uint64(PRIME)
    return total


def reconstruct(shares: Mapping[int, Secret], needed: int) -> Secret:
    """The secret from the shares by their index; Lagrange's polynomial at 0."""
    if len(shares) < needed:
        raise PreconditionBroken(f"{len(shares)} shares; {needed} are needed")
    chosen = sorted(shares)[:needed]
    secret = np.zeros_like(shares[chosen[0]])
    for i in chosen:
        over, under = 1, 1
        for j in chosen:
            if j != i:
                over = over * (j + 1) % PRIME
                under = under * (j - i) % PRIME
        factor = over * pow(under, -1, PRIME) % PRIME
        secret = (secret + shares[i] * np.uint64(factor)) % np.uint64(PRIME)
    return secret


def to_bytes(share: Secret) -> bytes:
    return share.astype("<u4").tobytes()


def from_bytes(data: bytes, values: int) -> Secret | None:
    """None if the bytes are not a share of this many values."""
    if len(data) != 4 * values:
        return None
    share = np.frombuffer(data, dtype="<u4").astype(np.uint64)
    return None if share.max() >= PRIME else share
