"""Reputation: how well members' changes aligned with the others' so far, and whom the rule trusts.

A single round hardly distinguishes an update trained on flipped labels, or with its sign flipped,
from an honest one trained on unusual data; a few rounds do. While the model learns fast, honest
members learn in a common direction, however different their data; a member that trains against
them does not. A member's alignment in a round is the mean of two cosines: of its change with the
sum of the other inliers' directions, and of its change with the last aggregate's. Its reputation is
the sum of its alignments, of which each round forgets a fiftieth. A round in which the median
member is not aligned adds nothing, but forgets: once a model has converged, steps are noise, and
what was held against a member fades.

Trust falls from 1 at a reputation of 0 to 0 at -DISTRUST. So a member that opposed the others a
little counts a little less, and is left out only for strong opposition over many rounds.

The cosines come from exact inner products (gram.py), then + - * / and square roots in a fixed
order, rounded to float32, because that is how the model carries them (memory.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ALIGNMENT_MIN = 0.05  # of the median member; a round below it adds nothing
DECAY = 0.98  # per round; half is gone after 34 of them
DISTRUST = 0.25  # a reputation of minus this much, or less, leaves no trust


@dataclass(frozen=True, slots=True)
class PastRounds:
    """Holds what earlier rounds say about the rows of a round, in member order."""

    reputations: tuple[float, ...]  # 0: nothing is known about the member
    # Each row's cosine with the last aggregate's change; None: there is no last aggregate.
    last_cosines: tuple[float, ...] | None


def updated_reputations(past: PastRounds, cosines: Sequence[float]) -> tuple[float, ...]:
    """The reputations after this round, given each row's cosine with the inliers."""
    alignments = (
        list(cosines)
        if past.last_cosines is None
        else [(now + last) / 2 for now, last in zip(cosines, past.last_cosines, strict=True)]
    )
    counts = lower_median(alignments) >= ALIGNMENT_MIN
    return tuple(
        float(np.float32(DECAY * reputation + (alignment if counts else 0.0)))
        for reputation, alignment in zip(past.reputations, alignments, strict=True)
    )


def trusts(reputations: Sequence[float], faults_max: int) -> tuple[float, ...]:
    """Return how much each row counts, from 0 to 1: less than 1 for at most faults_max rows, those
    of the lowest reputation.

    Everybody is trusted while the median member does not agree with the others. A member about whom
    nothing is known is trusted and does not lower the median: newcomers would take the places of
    known attackers, or hide them.
    """
    known = [reputation for reputation in reputations if reputation]
    if not known or lower_median(known) <= 0:
        return (1.0,) * len(reputations)
    lowest = sorted(range(len(reputations)), key=lambda i: (reputations[i], i))[:faults_max]
    return tuple(
        min(1.0, max(0.0, 1.0 + reputation / DISTRUST)) if i in lowest else 1.0
        for i, reputation in enumerate(reputations)
    )


def lower_median(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]
