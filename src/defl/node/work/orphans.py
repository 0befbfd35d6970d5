"""Ending a process together with its parent: a child at once, a node cleanly."""

import ctypes
import os
import signal
import sys

PARENT_VARIABLE = "DEFL_PARENT"  # names the process that a node ends with
_SET_PARENT_DEATH_SIGNAL = 1  # prctl's option


def die_with(parent: int) -> None:
    """Called by the child: without its parent its answer is useless."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)
