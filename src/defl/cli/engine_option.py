"""The option --engine: where many cells or scenarios run."""

from collections.abc import Callable
from typing import Any

import click

from defl.engine.choice import FORMS


def engine_option(default: str, what: str) -> Callable[[Any], Any]:
    return click.option(
        "--engine",
        default=default,
        show_default=True,
        metavar=FORMS,
        help=f"{what} run in N processes of this machine (without :N, one for each core), or on "
        "the Ray cluster whose head is at ADDRESS (without it, the one that this machine belongs "
        "to).",
    )
