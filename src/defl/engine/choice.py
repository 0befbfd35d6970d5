"""Which engine the user asked for: `processes[:N]`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from defl.engine.book import Engine
from defl.engine.processes import ProcessEngine
from defl.errors import UserError

FORMS = "processes[:N]"


@contextmanager
def opened(choice: str) -> Iterator[Engine]:
    kind, colon, rest = choice.partition(":")
    if kind == "processes" and not colon:
        yield ProcessEngine(len(os.sched_getaffinity(0)))
    elif kind == "processes" and rest.isdigit():
        yield ProcessEngine(int(rest))
    else:
        raise UserError(f"an engine is {FORMS}, for example processes:4, not {choice!r}")
