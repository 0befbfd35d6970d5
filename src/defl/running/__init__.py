"""A whole federation on this machine: `defl.run` and its parts.

Real nodes, each a process with its own key, disk and TLS connections. Nothing here prints or knows
of a command line: `defl run`, `defl demo` and notebooks call `run`.
"""

from defl.running.active_run import RunFailed, RunInterrupted
from defl.running.progress import MemberNow, MemberState, RunProgress
from defl.running.runner import run

__all__ = ["MemberNow", "MemberState", "RunFailed", "RunInterrupted", "RunProgress", "run"]
