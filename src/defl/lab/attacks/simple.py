"""Simple attacks: noise, flipped signs, constants, invalid numbers, replayed updates.

The first two are the DeFL paper's (Section 5), applied to the change of local training.
"""

from collections.abc import Sequence

import numpy as np

from defl.lab.attacks.attack import Row


def gaussian(
    own: Row,
    honest: Sequence[Row] | None,  # noqa: ARG001 - every attack has this signature
    rng: np.random.Generator,
    *,
    sigma: float = 1.0,
) -> Row:
    """The change plus N(0, sigma^2) in every coordinate."""
    return own + np.float32(sigma) * rng.standard_normal(own.shape, dtype=np.float32)


def sign_flip(
    own: Row,
    honest: Sequence[Row] | None,  # noqa: ARG001 - as above
    rng: np.random.Generator,  # noqa: ARG001 - as above
    *,
    factor: float = -1.0,
) -> Row:
    """The change times a negative factor (the DeFL paper: -1, -2, -4)."""
    return own * np.float32(factor)


def scaled(
    own: Row,
    honest: Sequence[Row] | None,  # noqa: ARG001 - as above
    rng: np.random.Generator,  # noqa: ARG001 - as above
    *,
    factor: float = 10.0,
) -> Row:
    """The change, enlarged to survive averaging.

    Bagdasaryan et al., AISTATS 2020 (model replacement): `own` was trained on data with a
    backdoor (data.py) and the factor is the number of members.
    """
    return own * np.float32(factor)


def same_value(
    own: Row,
    honest: Sequence[Row] | None,  # noqa: ARG001 - as above
    rng: np.random.Generator,  # noqa: ARG001 - as above
    *,
    value: float = 1.0,
) -> Row:
    """Every coordinate the same value (Li et al., RSA, AAAI 2019)."""
    return np.full_like(own, value)


def zero(
    own: Row,
    honest: Sequence[Row] | None,  # noqa: ARG001 - as above
    rng: np.random.Generator,  # noqa: ARG001 - as above
) -> Row:
    """No change at all: a free rider."""
    return np.zeros_like(own)


def replay(
    own: Row,
    honest: Sequence[Row] | None,  # noqa: ARG001 - as above
    rng: np.random.Generator,  # noqa: ARG001 - as above
    *,
    earlier: Row | None = None,
) -> Row:
    """The change of an earlier round again; in the first round, no change."""
    return np.zeros_like(own) if earlier is None else earlier.copy()


def one_value(
    own: Row,
    honest: Sequence[Row] | None,  # noqa: ARG001 - as above
    rng: np.random.Generator,
    *,
    value: float,
) -> Row:
    """The honest change with one coordinate replaced: NaN, infinity, float32's maximum."""
    result = own.copy()
    result[rng.integers(own.shape[0])] = value
    return result


def denormal(
    own: Row,
    honest: Sequence[Row] | None,  # noqa: ARG001 - as above
    rng: np.random.Generator,
) -> Row:
    """Numbers so small that some processors flush them to zero and others slow down."""
    result = np.full_like(own, 1e-40)
    result[rng.integers(0, 2, own.shape[0]) == 0] *= -1
    return result
