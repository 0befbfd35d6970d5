"""The attacks on updates by name, with the settings under which they are measured.

Attacks on training data (label flipping, a backdoor's trigger) are in data.py. An attack on the
rule itself needs the rule: functools.partial(crafted.against_rule, aggregate=...).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from defl.errors import UserError
from defl.lab.attacks import crafted, simple
from defl.lab.attacks.attack import Attack, Row


@dataclass(frozen=True, slots=True)
class NamedAttack:
    """An attack that `--attack` and the tables know by name."""

    name: str
    summary: str  # one line for the documentation
    function: Attack

    def __call__(self, own: Row, honest: Sequence[Row] | None, rng: np.random.Generator) -> Row:
        return self.function(own, honest, rng)


ATTACKS: dict[str, NamedAttack] = {
    attack.name: attack
    for attack in (
        NamedAttack("gaussian", "adds noise of variance 1 to every coordinate", simple.gaussian),
        NamedAttack("sign_flip", "sends the negative of the honest change", simple.sign_flip),
        NamedAttack(
            "sign_flip_4",
            "sends -4 times the honest change",
            partial(simple.sign_flip, factor=-4.0),
        ),
        NamedAttack(
            "sign_flip_10",
            "sends -10 times the honest change; one of seven reverses a plain mean",
            partial(simple.sign_flip, factor=-10.0),
        ),
        NamedAttack(
            "alie",
            "A Little Is Enough: the honest mean minus one standard deviation per coordinate",
            crafted.alie,
        ),
        NamedAttack(
            "inner_product",
            "Fall of Empires: half the honest mean, reversed",
            crafted.inner_product,
        ),
        NamedAttack(
            "min_max",
            "as far from the mean as the two most distant honest updates are from each other",
            crafted.min_max,
        ),
        NamedAttack(
            "min_sum",
            "as min_max, by the sum of squared distances to all honest updates",
            crafted.min_sum,
        ),
        NamedAttack("mimic", "all attackers copy one honest update", crafted.mimic),
        NamedAttack("same_value", "sends 1 in every coordinate", simple.same_value),
        NamedAttack("scaled", "sends 10 times the honest change", simple.scaled),
        NamedAttack("zero", "sends no change: a free rider", simple.zero),
        NamedAttack("replay", "sends the change of an earlier round again", simple.replay),
        NamedAttack("nan", "one coordinate is NaN", partial(simple.one_value, value=float("nan"))),
        NamedAttack(
            "infinity", "one coordinate is infinite", partial(simple.one_value, value=float("inf"))
        ),
        NamedAttack(
            "huge",
            "one coordinate is float32's maximum",
            partial(simple.one_value, value=float(np.finfo(np.float32).max)),
        ),
        NamedAttack(
            "denormal", "denormal numbers, which some processors flush to zero", simple.denormal
        ),
    )
}


def attack_named(name: str) -> NamedAttack:
    if name not in ATTACKS:
        raise UserError(f"no attack is named {name!r}; there are: {', '.join(ATTACKS)}")
    return ATTACKS[name]
