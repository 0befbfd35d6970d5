"""Which engine the user asked for: `processes[:N]` or `ray[:ADDRESS]`."""

import os
from contextlib import AbstractContextManager, nullcontext

from defl.engine.book import Engine
from defl.engine.processes import ProcessEngine
from defl.engine.ray_engine import joined
from defl.engine.version import code_version
from defl.errors import UserError

FORMS = "processes[:N] | ray[:ADDRESS]"
DIGITS_MAX = 4  # of the number of processes


def opened(choice: str, *, gpus_per_task: float = 0.0) -> AbstractContextManager[Engine]:
    code_version()  # of what is loaded now: files may change while data are prepared
    kind, colon, rest = choice.partition(":")
    if kind == "ray" and (rest or not colon):
        return joined(rest or None, gpus_per_task)
    if gpus_per_task:
        raise UserError("GPUs are given out by --engine ray; processes share those of the machine")
    if kind == "processes" and not colon:
        return nullcontext(ProcessEngine(len(os.sched_getaffinity(0))))
    if kind == "processes" and rest.isdecimal() and len(rest) <= DIGITS_MAX:
        return nullcontext(ProcessEngine(int(rest)))
    raise UserError(f"an engine is {FORMS}, for example processes:4, not {choice!r}")
