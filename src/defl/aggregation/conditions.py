"""The condition under which each rule's theorem holds, and what every round must satisfy.

A rule outside its theorem may still be useful (the DeFL paper's own n = 4, f = 1 is outside
Krum's), but its reason says so; with `strict` it refuses. A rule always refuses what it cannot
compute at all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from defl.errors import PreconditionBroken


@dataclass(frozen=True, slots=True)
class Condition:
    """The fewest rows m with which a rule's theorem covers `faults_max` Byzantine ones."""

    formula: str  # for the documentation
    rows_min: Callable[[int], int | None]  # None: no number of rows is enough
    words: str  # the condition as its source states it

    def outside(self, rows: int, faults_max: int) -> str | None:
        """Why the theorem does not cover these numbers; None if it does.

        For a federation, pass the fewest rows with which a round may close, n - f.
        """
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
        reason = self.outside(rows, faults_max)
        if reason is not None and strict:
            raise PreconditionBroken(reason)
        return reason


def check_round(
    rows: Sequence[NDArray[np.float32]],
    base: NDArray[np.float32],
    faults_max: int,
    ties: Sequence[bytes],
) -> None:
    """Refuse rows that no rule can aggregate."""
    if not rows:
        raise PreconditionBroken("there are no rows to aggregate")
    if len(ties) != len(rows):
        raise PreconditionBroken(f"{len(rows)} rows need one tie-breaker each, not {len(ties)}")
    if not 0 <= faults_max < len(rows):
        raise PreconditionBroken(
            f"faults_max is {faults_max}; with {len(rows)} rows it must be 0 to {len(rows) - 1}"
        )
    for i, row in enumerate((*rows, base)):
        if row.shape != (base.size,) or row.dtype != np.float32:
            which = "the base" if i == len(rows) else f"row {i}"
            raise PreconditionBroken(
                f"{which} is {row.shape} {row.dtype}; all must be ({base.size},) float32"
            )


NO_FAULT = Condition(
    "f = 0", lambda faults: 1 if faults == 0 else None, "the mean tolerates no Byzantine row"
)
MAJORITY = Condition(
    "m >= 2f + 1",
    lambda faults: 2 * faults + 1,
    "the honest must be a majority, m >= 2f + 1",
)
BLANCHARD = Condition(
    "m >= 2f + 3",
    lambda faults: 2 * faults + 3,
    "Krum (Blanchard et al. 2017) needs m >= 2f + 3",
)
DEFL = Condition(
    "m >= 3f + 3", lambda faults: 3 * faults + 3, "DeFL's Multi-Krum needs m >= 3f + 3"
)
CLIPPING = Condition(
    "m >= 10f",
    lambda faults: 10 * faults,
    "centred clipping is proved for at most a tenth Byzantine",
)
