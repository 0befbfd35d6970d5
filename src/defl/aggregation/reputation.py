"""Standing: what a member's rounds so far say of it, and who is in doubt because of it.

One round alone hardly tells an update made from flipped labels, or with its sign flipped, from an
honest one trained on unusual data; a few rounds do. Honest members, however different their data,
tend to learn in a common direction while the model learns fast; whoever trains against the others
does not. So each round in which most members go along adds to every member's standing how far its
change went along: the mean of two cosines, with the sum of the calmest other changes of the round,
and with the change that the last aggregate made. Other rounds say nothing (once a model has
converged, steps are noise) and change nothing.

The cosines come from exact inner products (gram.py), then + - * / and square roots in a fixed
order, rounded to float32, as the model will carry them (memory.py).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from defl.aggregation.gram import Geometry

# A round counts when the median member goes along at least this far.
GOING_ALONG = 0.1
FADING = 0.98  # with each round that counts; half is gone after 34 of them
# In a calm round in doubt is who has gone along, in all rounds together, less than this share of
# what the median member does in one: who goes along at all is soon believed, who goes against the
# others never. In a loud one, which varies more than honest members would, in doubt is who goes
# along less than this share of the median member's mean.
CALM_SHARE = 1 / 3
LOUD_SHARE = 1 / 2


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a member went along, summed over the rounds that counted, and how many they were."""

    along: float = 0.0
    rounds: float = 0.0

    @property
    def mean(self) -> float:
        return self.along / self.rounds if self.rounds > 0 else 0.0

    def after(self, cosine: float) -> "Standing":
        return Standing(
            float(np.float32(FADING * self.along + cosine)),
            float(np.float32(FADING * self.rounds + 1)),
        )


@dataclass(frozen=True, slots=True)
class Past:
    """What is known of the rows of a round from earlier rounds, in member order."""

    standings: tuple[Standing, ...]
    going_on: tuple[float, ...] | None  # cosines with the last aggregate's change; None: no last


def along_with_others(geometry: Geometry, calm: Collection[int]) -> list[float]:
    """The cosine between each row and the sum of the calm rows other than itself."""
    products, real = geometry.products, geometry.real
    with_calm = [sum(row[j] for j in calm) for row in products]
    square = sum(with_calm[i] for i in calm)
    found = []
    for i, inner in enumerate(with_calm):
        own = products[i][i]
        others, length = (inner - own, square - 2 * inner + own) if i in calm else (inner, square)
        both = sqrt(real(own)) * sqrt(real(length))
        found.append(real(others) / both if both > 0 else 0.0)
    return found


def standings_after(past: Past, beside: Sequence[float]) -> tuple[Standing, ...]:
    """The standings with this round, in which the rows went along `beside` the calm ones."""
    found = (
        list(beside)
        if past.going_on is None
        else [(now + on) / 2 for now, on in zip(beside, past.going_on, strict=True)]
    )
    if lower_median(found) < GOING_ALONG:
        return past.standings
    return tuple(
        standing.after(cosine) for standing, cosine in zip(past.standings, found, strict=True)
    )


def in_doubt(standings: Sequence[Standing], faults_max: int, *, loud: bool) -> frozenset[int]:
    """The rows whose members went along too little; of more than faults_max the lowest ones.

    Of whom no round has counted yet, nothing bad is known: that is enough in a calm round.
    """
    middle = lower_median([standing.mean for standing in standings])
    if middle <= 0:
        return frozenset()

    def doubted(standing: Standing) -> bool:
        if loud:
            return standing.mean < LOUD_SHARE * middle
        return standing.rounds > 0 and standing.along < CALM_SHARE * middle

    low = [i for i, standing in enumerate(standings) if doubted(standing)]
    return frozenset(sorted(low, key=lambda i: (standings[i].mean, i))[:faults_max])


def lower_median(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]
