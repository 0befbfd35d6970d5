"""Progress of a simulation or a run: one line that a terminal or a notebook keeps up to date.

Neither IPython nor a terminal is required: where there is neither, nothing is shown.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from defl.printable import printable
from defl.results import RoundRecord

# None: shown in a terminal and in a notebook, silent elsewhere. True: always shown. False: never.
# A function is called with the record of each closed round.
Progress = bool | Callable[[RoundRecord], None] | None


class ProgressDisplay:
    """Use as a context manager: the line ends with the block, even on an exception."""

    def __init__(self, progress: Progress, rounds: int) -> None:
        self._rounds = rounds
        self._call = progress if callable(progress) else None
        wanted = progress is True or progress is None
        self._notebook = _display_handle() if wanted else None
        self._terminal = wanted and self._notebook is None and (progress or sys.stderr.isatty())
        self._width = 0

    def __enter__(self) -> "ProgressDisplay":
        self.show(f"0 of {self._rounds} rounds closed")
        return self

    def __exit__(self, *_error: object) -> None:
        if self._terminal:
            sys.stderr.write("\n")

    def closed(self, record: RoundRecord) -> None:
        if self._call is not None:
            self._call(record)
            return
        metric = next(iter(record.metric_names), None)
        mean = "" if metric is None else f", {metric} {record.mean(metric):.4f}"
        without = ", ".join(omission.member for omission in record.omissions)
        omitted = f", without {without}" if without else ""
        self.show(f"{record.number} of {self._rounds} rounds closed{mean}{omitted}")

    def show(self, text: str) -> None:
        text = printable(text)
        if self._notebook is not None:
            self._notebook.update({"text/plain": text}, raw=True)
        elif self._terminal:
            # Spaces overwrite the rest of a longer previous line.
            sys.stderr.write(f"\r{text.ljust(self._width)}")
            sys.stderr.flush()
            self._width = len(text)


def _display_handle() -> Any:
    """A notebook's display that can be updated in place; None anywhere else.

    IPython is present only if another program loaded it, and only a notebook's shell has a kernel.
    """
    if not in_notebook():
        return None
    return import_module("IPython.display").display({"text/plain": ""}, raw=True, display_id=True)


def in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
