"""For tests that read log lines: a log that writes to a given stream."""

import logging
from typing import TextIO

from defl.node.report.log import HumanFormatter, JsonFormatter, Log


def log_to(stream: TextIO, *, as_json: bool = True) -> Log:
    """Each log has its own logger, so several nodes in one process do not mix their lines."""
    logger = logging.Logger("defl.test", logging.INFO)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if as_json else HumanFormatter())
    logger.addHandler(handler)
    return Log(logger)
