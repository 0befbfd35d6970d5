"""Structured logging on top of the standard library: a readable event, and fields.

Only `defl node start` configures anything, and only the `defl` logger: a program that uses defl as
a library keeps its own handlers, levels and formats.
"""

import json
import logging
import time
from collections.abc import Hashable
from typing import TextIO

from defl.printable import printable_lines

ROOT = "defl"


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        own = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        return json.dumps({**own, **fields, **own}, default=str)


class HumanFormatter(logging.Formatter):
    """Time, event, and the fields as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        shown = " ".join(f"{name}={value}" for name, value in fields.items())
        mark = "" if record.levelno < logging.WARNING else f"{record.levelname}: "
        return printable_lines(f"{at} {mark}{record.getMessage()} {shown}".rstrip())


def configure_logging(*, as_json: bool, level: str = "info", stream: TextIO | None = None) -> None:
    """Log lines of this process go to the stream (standard error unless one is given)."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if as_json else HumanFormatter())
    logger = logging.getLogger(ROOT)
    logger.addHandler(handler)
    logger.setLevel(level.upper())


class Log:
    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger(f"{ROOT}.node")

    def debug(self, event: str, /, **fields: object) -> None:
        self._logger.debug(event, extra={"fields": fields}, stacklevel=2)

    def info(self, event: str, /, **fields: object) -> None:
        self._logger.info(event, extra={"fields": fields}, stacklevel=2)

    def warning(self, event: str, /, **fields: object) -> None:
        self._logger.warning(event, extra={"fields": fields}, stacklevel=2)


class LineLimit:
    """Passes a few lines about each subject, then one per interval, with a count of the rest.

    Lines that peers cause must not fill the disk.
    """

    def __init__(self, burst: int, every_s: float) -> None:
        self._burst = burst
        self._every_s = every_s
        self._state: dict[Hashable, tuple[float, float, int]] = {}  # lines left, when, withheld

    def withheld(self, subject: Hashable, now: float) -> int | None:
        """How many lines were withheld before this one; None: this one is withheld too."""
        left, at, withheld = self._state.get(subject, (float(self._burst), now, 0))
        left = min(float(self._burst), left + (now - at) / self._every_s)
        passes = left >= 1
        self._state[subject] = (left - 1, now, 0) if passes else (left, now, withheld + 1)
        return withheld if passes else None
