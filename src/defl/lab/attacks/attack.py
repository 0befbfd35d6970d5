"""What an attack is: a function from an honest change to a poisoned one.

Rows here are *changes*: an update minus the base of its round. `own` is what the attacker would
have sent if it were honest; `honest` are the changes of all honest members in this round, or None
for an attacker that sees only its own. Randomness is the generator that is passed. Attacks never
change their arguments, and know nothing of aggregation: one that optimises against a rule is given
the rule as a function.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float32]
Attack = Callable[[Row, Sequence[Row] | None, np.random.Generator], Row]


def poisoned_update(
    attack: Attack,
    own: Row,
    honest: Sequence[Row] | None,
    base: Row,
    rng: np.random.Generator,
) -> Row:
    """The attack on whole updates: taken off the base, poisoned, put back on it."""
    seen = None if honest is None else [row - base for row in honest]
    with np.errstate(over="ignore", invalid="ignore"):  # some attacks are not finite on purpose
        result: Row = base + attack(own - base, seen, rng)
    return result


def mean_and_spread(
    own: Row, honest: Sequence[Row] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of each coordinate over the rows that the attacker sees.

    Who sees only its own row takes it for the mean and its magnitudes for the spread.
    """
    if honest is None or len(honest) < 2:
        seen = own if not honest else honest[0]
        return seen.astype(np.float64), np.abs(seen).astype(np.float64)
    stack = np.stack(honest).astype(np.float64)
    return stack.mean(axis=0), stack.std(axis=0)
