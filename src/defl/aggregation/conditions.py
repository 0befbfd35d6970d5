"""Under which condition each rule's theorem holds, in numbers and in words.

A rule outside its theorem may still be useful (the paper's own n = 4, f = 1 is outside Krum's),
but it says so; with `strict` it refuses. What a rule cannot compute at all is always refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from defl.errors import PreconditionBroken


@dataclass(frozen=True, slots=True)
class Condition:
    """The fewest rows for which the rule's promise holds with `faults_max` Byzantine among them."""

    rows_min: Callable[[int], int | None]  # None: no number of rows is enough
    words: str  # the condition as its source states it

    def outside(self, rows: int, faults_max: int) -> str | None:
        """What to tell a person when the theorem does not cover these numbers."""
        needed = self.rows_min(faults_max)
        if needed is None:
            return f"Outside the proof: {self.words}, and faults_max is {faults_max}."
        if rows >= needed:
            return None
        return (
            f"Outside the proof: {self.words}, so {faults_max} Byzantine rows need at least "
            f"{needed} rows and there are {rows}."
        )

    def check(self, rows: int, faults_max: int, *, strict: bool) -> str | None:
        words = self.outside(rows, faults_max)
        if words is not None and strict:
            raise PreconditionBroken(words)
        return words


def check_round(
    rows: Sequence[NDArray[np.float32]],
    base: NDArray[np.float32],
    faults_max: int,
    ties: Sequence[bytes],
) -> None:
    """What every rule needs before it can compute anything."""
    if not rows:
        raise PreconditionBroken("there are no rows to aggregate")
    if len(ties) != len(rows):
        raise PreconditionBroken(f"{len(rows)} rows need one tie-breaker each, not {len(ties)}")
    if not 0 <= faults_max < len(rows):
        raise PreconditionBroken(
            f"faults_max is {faults_max}; with {len(rows)} rows it lies from 0 to {len(rows) - 1}"
        )
    for i, row in enumerate((*rows, base)):
        if row.shape != (base.size,) or row.dtype != np.float32:
            which = "the base" if i == len(rows) else f"row {i}"
            raise PreconditionBroken(
                f"{which} is {row.shape} {row.dtype}; all must be ({base.size},) float32"
            )


NO_FAULT = Condition(
    lambda faults: 1 if faults == 0 else None, "the mean tolerates no Byzantine row"
)
MAJORITY = Condition(lambda faults: 2 * faults + 1, "the honest must be a majority, m >= 2f + 1")
KRUM = Condition(lambda faults: 2 * faults + 3, "Krum (Blanchard et al. 2017) needs m >= 2f + 3")
DEFL = Condition(lambda faults: 3 * faults + 3, "DeFL's Multi-Krum needs m >= 3f + 3")
CLIPPING = Condition(
    lambda faults: 10 * faults, "centred clipping is proved for at most a tenth Byzantine"
)
