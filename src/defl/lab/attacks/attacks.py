"""The attacks on updates by name, with the settings under which they are measured."""

from functools import partial

import numpy as np

from defl.errors import UserError
from defl.lab.attacks.attack import Attack
from defl.lab.attacks.crafted import alie, inner_product, mimic, min_max, min_sum
from defl.lab.attacks.simple import (
    denormal,
    gaussian,
    one_value,
    replay,
    same_value,
    scaled,
    sign_flip,
)
from defl.lab.attacks.simple import zero as zero_change

# Label flipping and the backdoor's data are in data.py; an attack on the rule itself needs the
# rule and is made with functools.partial(crafted.against_rule, aggregate=...).
ATTACKS: dict[str, Attack] = {
    "gaussian": gaussian,
    "sign_flip": sign_flip,
    "sign_flip_4": partial(sign_flip, factor=-4.0),
    "sign_flip_10": partial(sign_flip, factor=-10.0),  # one of seven turns a plain mean around
    "alie": alie,
    "inner_product": inner_product,
    "min_max": min_max,
    "min_sum": min_sum,
    "mimic": mimic,
    "same_value": same_value,
    "scaled": scaled,
    "zero": zero_change,
    "replay": replay,
    "nan": partial(one_value, value=float("nan")),
    "infinity": partial(one_value, value=float("inf")),
    "huge": partial(one_value, value=float(np.finfo(np.float32).max)),
    "denormal": denormal,
}


def attack_named(name: str) -> Attack:
    if name not in ATTACKS:
        raise UserError(f"no attack is named {name!r}; there are: {', '.join(ATTACKS)}")
    return ATTACKS[name]
