"""Log lines into a stream of the test's own."""

import logging
from typing import TextIO

from defl.node.report.log import HumanFormatter, JsonFormatter, Log


def log_to(stream: TextIO, *, as_json: bool = True) -> Log:
    """On a logger of its own, so that several nodes in one process keep their lines apart."""
    logger = logging.Logger("defl.test", logging.INFO)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if as_json else HumanFormatter())
    logger.addHandler(handler)
    return Log(logger)
