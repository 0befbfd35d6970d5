"""A process that ends with the one that started it, whatever it is doing then."""

import ctypes
import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1  # prctl's number for it


def die_with(parent: int) -> None:
    """Called by the child: nobody is left to want its answer."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)
