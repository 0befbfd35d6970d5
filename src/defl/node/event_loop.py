"""Which event loop a node runs on, and what becomes of errors that nobody awaits.

uvloop's if it is installed (extra `fast`), else asyncio's own. They behave the same; uvloop takes
less processor time for the same bytes.
"""

import asyncio
import errno
from collections.abc import Callable
from importlib.metadata import version

from defl.node.report.log import LineLimit, Log

# Earlier ones close a socket twice if its call is cancelled while they take it over; the second
# time it may be another connection's (github.com/MagicStack/uvloop/issues/738).
UVLOOP_FROM = (0, 23)
LOOP_LINES_EVERY_S = 60.0
# Tracebacks of one type of error: enough to find a bug by. A bug that somebody can trigger at will
# must not fill the disk.
TRACEBACKS_BURST = 5


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.new_event_loop
    if tuple(map(int, version("uvloop").split(".")[:2])) < UVLOOP_FROM:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


class LoopErrors:
    """Without descriptors, asyncio's server reports 100 failed accepts a second with their
    tracebacks: they would fill the disk. Everything else is reported in full, but not too often.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._lines = LineLimit(1, LOOP_LINES_EVERY_S)
        self._tracebacks = LineLimit(TRACEBACKS_BURST, LOOP_LINES_EVERY_S)

    def report(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            self._report_in_full(loop, context)
            return
        withheld = self._lines.withheld("accept", loop.time())
        if withheld is not None:
            self._log.warning("telemetry accepts no connection", why=error, withheld=withheld)

    def _report_in_full(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        kind = type(context.get("exception")).__name__
        withheld = self._tracebacks.withheld(kind, loop.time())
        if withheld is None:
            return
        loop.default_exception_handler(context)
        if withheld:
            self._log.warning("more errors of this type", type=kind, withheld=withheld)
