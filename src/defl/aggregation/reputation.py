"""Reputation: how well members' changes aligned with the others' so far, and which are suspect.

A single round hardly distinguishes an update trained on flipped labels, or with its sign flipped,
from an honest one trained on unusual data; a few rounds do. While the model learns fast, honest
members learn in a common direction, however different their data; a member that trains against
them does not. A member's alignment in a round is the mean of two cosines: of its change with the
sum of the other inliers' changes, and of its change with the last aggregate's. A round in which
the median member is aligned adds to every member's reputation. Other rounds change nothing: once a
model has converged, steps are noise.

The cosines come from exact inner products (gram.py), then + - * / and square roots in a fixed
order, rounded to float32, because that is how the model carries them (memory.py).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from defl.aggregation.gram import Geometry

ALIGNMENT_MIN = 0.05  # of the median member; a round below it does not count
DECAY = 0.98  # per counted round; half is gone after 34 of them
# A member is suspect if its total alignment is below this: most of what it sent opposed the others.
SUSPECT_BELOW = 0.0
# A member is in good standing if its mean alignment is at least this share of the median member's.
STANDING_SHARE_MIN = 0.7
# With fewer counted rounds than this (three, after their decay, are 2.94) too little is known about
# a member to leave it out in a round in which it is an inlier.
ROUNDS_MIN = 2.5


@dataclass(frozen=True, slots=True)
class Reputation:
    """A member's total alignment over the counted rounds, and their number; both decay."""

    alignment: float = 0.0
    rounds: float = 0.0

    @property
    def mean(self) -> float:
        """0 for a member with no counted rounds."""
        return self.alignment / self.rounds if self.rounds > 0 else 0.0

    def after(self, alignment: float) -> "Reputation":
        return Reputation(
            float(np.float32(DECAY * self.alignment + alignment)),
            float(np.float32(DECAY * self.rounds + 1)),
        )


@dataclass(frozen=True, slots=True)
class PastRounds:
    """What earlier rounds say about the rows of a round, in member order."""

    reputations: tuple[Reputation, ...]
    # Each row's cosine with the last aggregate's change; None: there is no last aggregate.
    last_cosines: tuple[float, ...] | None


def cosines_with_inliers(geometry: Geometry, inliers: Collection[int]) -> list[float]:
    """The cosine between each row and the sum of the inliers other than itself."""
    products, real = geometry.products, geometry.real
    with_inliers = [sum(row[j] for j in inliers) for row in products]
    square = sum(with_inliers[i] for i in inliers)
    cosines = []
    for i, inner in enumerate(with_inliers):
        own = products[i][i]
        others, length = (
            (inner - own, square - 2 * inner + own) if i in inliers else (inner, square)
        )
        both = sqrt(real(own)) * sqrt(real(length))
        cosines.append(real(others) / both if both > 0 else 0.0)
    return cosines


def updated_reputations(past: PastRounds, cosines: Sequence[float]) -> tuple[Reputation, ...]:
    """The reputations after this round, given each row's cosine with the inliers."""
    alignments = (
        list(cosines)
        if past.last_cosines is None
        else [(now + last) / 2 for now, last in zip(cosines, past.last_cosines, strict=True)]
    )
    if lower_median(alignments) < ALIGNMENT_MIN:
        return past.reputations
    return tuple(
        reputation.after(alignment)
        for reputation, alignment in zip(past.reputations, alignments, strict=True)
    )


def suspects(
    reputations: Sequence[Reputation], faults_max: int, inliers: Collection[int] = ()
) -> frozenset[int]:
    """The rows whose members are suspect, at most faults_max, the least aligned first.

    An inlier is not suspect for what it was like in one or two rounds: left out at once, an honest
    member falls behind the model and never returns, and the outlier that is the attacker stays.

    A member with no counted rounds is not suspect and does not lower the median: newcomers would
    take the places of known attackers, or hide them.
    """
    if median_mean(reputations) is None:
        return frozenset()

    low = [
        i
        for i, reputation in enumerate(reputations)
        if reputation.alignment < SUSPECT_BELOW
        and (i not in inliers or reputation.rounds >= ROUNDS_MIN)
    ]
    return frozenset(sorted(low, key=lambda i: (reputations[i].mean, i))[:faults_max])


def in_good_standing(reputations: Sequence[Reputation]) -> frozenset[int]:
    """The rows whose members' mean alignment is not far below the median member's."""
    median = median_mean(reputations)
    if median is None:
        return frozenset()
    return frozenset(
        i
        for i, reputation in enumerate(reputations)
        if reputation.rounds > 0 and reputation.mean >= STANDING_SHARE_MIN * median
    )


def suspect_below(reputations: Sequence[Reputation]) -> float | None:
    """The mean alignment below which a member is suspect; None: nobody can be."""
    return None if median_mean(reputations) is None else SUSPECT_BELOW


def median_mean(reputations: Sequence[Reputation]) -> float | None:
    """Over members with counted rounds; None: nobody can be suspect."""
    known = [reputation.mean for reputation in reputations if reputation.rounds > 0]
    median = lower_median(known) if known else 0.0
    return median if median > 0 else None


def lower_median(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]
