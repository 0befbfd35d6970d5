"""Attacks that hide among the honest rows: small enough to be kept, all in one direction.

Colluding attackers all send the same row, which makes them one another's nearest neighbours.
"""

from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from defl.lab.attacks.attack import Row, mean_and_spread

HALVINGS = 20  # of a line search: precise to one part in a million


def alie_deviation(members: int, attackers: int) -> float:
    """How many standard deviations ALIE may move and still find supporters among the honest."""
    supporters = members // 2 + 1 - attackers
    honest = members - attackers
    share = (honest - supporters) / honest
    return NormalDist().inv_cdf(min(max(share, 0.5), 0.999))


def alie(
    own: Row,
    honest: Sequence[Row] | None,
    rng: np.random.Generator,  # noqa: ARG001 - every attack has this signature
    *,
    deviations: float = 1.0,
) -> Row:
    """A Little Is Enough (Baruch, Baruch, Goldberg, NeurIPS 2019): the mean minus z deviations."""
    mean, spread = mean_and_spread(own, honest)
    return (mean - deviations * spread).astype(np.float32)


def inner_product(
    own: Row,
    honest: Sequence[Row] | None,
    rng: np.random.Generator,  # noqa: ARG001 - as above
    *,
    epsilon: float = 0.5,
) -> Row:
    """Fall of Empires (Xie, Koyejo, Gupta, UAI 2019): a small step against the mean."""
    mean, _ = mean_and_spread(own, honest)
    return (-epsilon * mean).astype(np.float32)


def largest(accepted: Callable[[float], bool], start: float = 1.0) -> float:
    """The largest accepted factor, by doubling and then bisection."""
    low, high = 0.0, start
    while accepted(high) and high < 1e6:
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if accepted(middle) else (low, middle)
    return low


def away_from_mean(own: Row, honest: Sequence[Row] | None, kind: str) -> NDArray[np.float64]:
    """The direction in which to deviate: against the mean, its signs, or the deviations."""
    mean, spread = mean_and_spread(own, honest)
    if kind == "unit":
        norm = float(np.sqrt(np.square(mean).sum()))
        return -mean / norm if norm > 0 else -mean
    return -np.sign(mean) if kind == "sign" else -spread


def min_max(
    own: Row,
    honest: Sequence[Row] | None,
    rng: np.random.Generator,  # noqa: ARG001 - as above
    *,
    direction: str = "spread",
) -> Row:
    """As far off as possible while no honest row is farther than the honest rows' diameter.

    Shejwalkar, Houmansadr: Manipulating the Byzantine, NDSS 2021.
    """
    return farthest_within(own, honest, direction, worst=max)


def min_sum(
    own: Row,
    honest: Sequence[Row] | None,
    rng: np.random.Generator,  # noqa: ARG001 - as above
    *,
    direction: str = "spread",
) -> Row:
    """As min_max, with the sum of squared distances to all honest rows as the bound."""
    return farthest_within(own, honest, direction, worst=sum)


def farthest_within(
    own: Row,
    honest: Sequence[Row] | None,
    direction: str,
    *,
    worst: Callable[[list[float]], float],
) -> Row:
    visible = [own] if not honest else list(honest)
    mean, _ = mean_and_spread(own, honest)
    step = away_from_mean(own, honest, direction)
    stack = np.stack(visible).astype(np.float64)
    bound = max(worst([float(np.square(a - b).sum()) for b in stack]) for a in stack)
    if len(visible) == 1:  # a blind attacker stays within twice its own length
        bound = 4 * float(np.square(stack[0]).sum())
    # |mean + g*step - row|^2 is a quadratic in g; its coefficients are computed once.
    offsets = [mean - row for row in stack]
    fixed = [float(np.square(offset).sum()) for offset in offsets]
    linear = [2 * float((offset * step).sum()) for offset in offsets]
    square = float(np.square(step).sum())

    def accepted(factor: float) -> bool:
        squares = [
            c + factor * b + factor * factor * square for c, b in zip(fixed, linear, strict=True)
        ]
        return worst(squares) <= bound

    if square == 0.0:
        return mean.astype(np.float32)
    return (mean + largest(accepted) * step).astype(np.float32)


def mimic(
    own: Row,
    honest: Sequence[Row] | None,
    rng: np.random.Generator,  # noqa: ARG001 - as above
) -> Row:
    """All attackers copy one honest row, the farthest along the direction of largest variance.

    Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets, ICLR 2022.
    """
    if not honest:
        return own.copy()
    stack = np.stack(honest).astype(np.float64)
    offsets = stack - stack.mean(axis=0)
    products = offsets @ offsets.T
    along = np.ones(len(honest)) + np.arange(len(honest))
    for _ in range(50):
        along = products @ along
        size = float(np.abs(along).max())
        if size == 0.0:
            return honest[0].copy()
        along = along / size
    return honest[int(np.argmax(np.abs(along)))].copy()


def against_rule(
    own: Row,
    honest: Sequence[Row] | None,
    rng: np.random.Generator,  # noqa: ARG001 - as above
    *,
    aggregate: Callable[[Sequence[Row]], Row],
    attackers: int = 1,
    factors: Sequence[float] = (0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 20.0),
) -> Row:
    """Tries directions and lengths against the rule in use and sends the most harmful one.

    `aggregate` maps the changes of a round, honest ones first, to the aggregate's change. Harm is
    how far the aggregate moves against the honest mean's direction (Fang et al., USENIX Security
    2020, in spirit: a line search on the rule itself).
    """
    visible = [own] if not honest else list(honest)
    mean, _ = mean_and_spread(own, honest)
    norm = float(np.sqrt(np.square(mean).sum()))
    forward = mean / norm if norm > 0 else mean
    worst, best = np.inf, own.copy()
    for kind in ("unit", "spread"):
        step = away_from_mean(own, honest, kind)
        length = float(np.sqrt(np.square(step).sum()))
        if length == 0.0:
            continue
        for factor in factors:
            poisoned = (mean + factor * norm / length * step).astype(np.float32)
            progress = float((aggregate([*visible, *[poisoned] * attackers]) * forward).sum())
            if progress < worst:
                worst, best = progress, poisoned
    return best
