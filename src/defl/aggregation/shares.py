"""Each kept row's share of the mean, from the members' agreed weights and a cap.

The cap: the f heaviest kept members together hold at most a third of the total, whoever they are.
It lowers the heaviest weights to one level, the highest that achieves this (water-filling), and
leaves the others as agreed. With k <= 3f kept rows no weights do better than equal ones, which give
any f of them f / k; so then all shares are equal. With f = 0 nothing is capped.

Why one level is well defined: lower all weights to a level L, and let L rise from 0. What the rest
hold minus twice what the f heaviest hold grows at first (k - 3f per step of L), ever more slowly as
weights of the rest are reached, then falls, and never rises again above zero. So the levels that
respect the cap are an interval from 0 on.

All of it is exact: integers and fractions, and one correctly rounded division per share at the end.
Equal weights give 1 / k in float64, the bits of the plain mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from defl.errors import PreconditionBroken

# The f heaviest hold one part where the others hold two.
OTHERS_PER_HEAVIEST = 2


def capped_shares(weights: Sequence[int], faults_max: int) -> tuple[Fraction, ...]:
    """The share of each kept row, in the order of the weights; they sum to 1."""
    if not weights or min(weights) < 1:
        raise PreconditionBroken(f"weights are whole numbers from 1 on, not {list(weights)}")
    level = cap_level(weights, faults_max)
    lowered = [min(Fraction(weight), level) if level else Fraction(1) for weight in weights]
    total = sum(lowered)
    return tuple(weight / total for weight in lowered)


def cap_level(weights: Sequence[int], faults_max: int) -> Fraction:
    """The highest level that respects the cap; the heaviest weight if nothing is capped, and 0 if
    the rows are too few for any weights."""
    heaviest_first = sorted(weights, reverse=True)

    def excess(level: int) -> int:
        lowered = [min(weight, level) for weight in heaviest_first]
        return OTHERS_PER_HEAVIEST * sum(lowered[:faults_max]) - sum(lowered[faults_max:])

    levels = [0, *sorted(set(weights))]  # between two of them the excess is linear
    place = max(i for i, level in enumerate(levels) if excess(level) <= 0)
    if place == len(levels) - 1:
        return Fraction(levels[place])
    below, above = levels[place], levels[place + 1]
    room, over = -excess(below), excess(above)
    return below + Fraction((above - below) * room, room + over)


@dataclass(frozen=True, slots=True)
class Weighing:
    """How the rows of one round weigh: what was agreed about their members, and the f of the cap.

    The rule chooses which rows to keep without it.
    """

    agreed: tuple[int, ...]  # one per row
    faults_max: int

    def shares(self, verdict: Sequence[float]) -> tuple[float, ...]:
        """Agreed shares of the rows that the verdict keeps (weight above 0), in float64.

        A row that the verdict clips, to less than 1 / k, keeps that part of its share.
        """
        kept = self._kept(verdict)
        whole = 1.0 / len(kept)
        shares = [0.0] * len(verdict)
        capped = capped_shares([self.agreed[i] for i in kept], self.faults_max)
        for i, share in zip(kept, capped, strict=True):
            shares[i] = float(share) * (verdict[i] / whole)
        return tuple(shares)

    def in_words(self, verdict: Sequence[float]) -> str | None:
        """A sentence for the reason; None if the kept rows count the same by agreement."""
        weights = [self.agreed[i] for i in self._kept(verdict)]
        if len(set(weights)) == 1:
            return None
        level = cap_level(weights, self.faults_max)
        if level <= min(weights):
            return (
                f"They count the same, though other weights were agreed: any {self.faults_max} of "
                f"{len(weights)} hold a third or more already."
            )
        capped = sum(weight > level for weight in weights)
        return "They count as agreed" + (f", {capped} of them capped." if capped else ".")

    def _kept(self, verdict: Sequence[float]) -> list[int]:
        return [i for i, weight in enumerate(verdict) if weight]
