"""What a command's exit code means: one table for all commands.

OPERATING.md has the same table, and a test compares the two.
"""

from enum import IntEnum

from defl.errors import DeflError, LocalFault, WorkerFailed


class ExitCode(IntEnum):
    DONE = 0
    FAILED = 1
    REFUSED = 2
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.DONE: "done, and every check holds",
    ExitCode.FAILED: "a check does not hold, or this machine failed: damaged state, a full disk",
    ExitCode.REFUSED: "it cannot be carried out as asked, and the message says what to do",
    ExitCode.INTERRUPTED: "interrupted",
}

# The request was in order; the node's own state or machine failed.
FAILURES = (LocalFault, WorkerFailed)


def exit_code(error: DeflError) -> ExitCode:
    return ExitCode.FAILED if isinstance(error, FAILURES) else ExitCode.REFUSED
