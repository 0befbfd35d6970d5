"""The tail of the log that a node's training code writes. Its bytes may be anything."""

import os
from pathlib import Path

from defl.node.files import WORKER_LOG
from defl.printable import printable_lines

TAIL_BYTES = 32_768


def log_tail(state: Path) -> tuple[str, bool]:
    """The newest lines, and whether there are older ones; empty if there is no log."""
    try:
        descriptor = os.open(state / WORKER_LOG, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return "", False
    try:
        size = os.fstat(descriptor).st_size
        start = max(0, size - TAIL_BYTES)
        text = os.pread(descriptor, TAIL_BYTES, start).decode("utf-8", "replace")
    except OSError:
        return "", False
    finally:
        os.close(descriptor)
    if start:
        text = text.partition("\n")[2]  # the first line is cut
    return printable_lines(text), start > 0
