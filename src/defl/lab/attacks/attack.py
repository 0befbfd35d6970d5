"""What an attack is: a function from an honest change to a poisoned one.

Rows here are *changes*: an update minus the base of its round. `own` is what the attacker would
send if it were honest. `honest` are the changes of all honest members in this round, or None for
a blind attacker, who sees only its own. Randomness comes from the generator passed in. Attacks
never modify their arguments and know nothing about aggregation: an attack that optimises against a
rule is given the rule as a function.
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
    """Apply the attack to a whole update: subtract the base, poison the change, add the base."""
    changes = None if honest is None else [row - base for row in honest]
    with np.errstate(over="ignore", invalid="ignore"):  # some attacks are not finite on purpose
        result: Row = base + attack(own - base, changes, rng)
    return result


def mean_and_spread(
    own: Row, honest: Sequence[Row] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of each coordinate over the rows that the attacker sees.

    A blind attacker takes its own row for the mean and its magnitudes for the deviation.
    """
    if honest is None or len(honest) < 2:
        row = own if not honest else honest[0]
        return row.astype(np.float64), np.abs(row).astype(np.float64)
    stack = np.stack(honest).astype(np.float64)
    return stack.mean(axis=0), stack.std(axis=0)
