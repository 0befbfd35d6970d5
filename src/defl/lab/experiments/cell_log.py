"""cells.jsonl: one line for each finished cell, appended by one driver at a time."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from defl.errors import UserError

CELLS_FILE = "cells.jsonl"


def make_folder(folder: Path, option: str = "--out") -> None:
    """For results. It is refused before anything is measured."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be written to ({error.strerror}); name another folder ({option})"
        ) from error


@contextmanager
def appending(folder: Path) -> Iterator[BinaryIO]:
    """The log, opened for new lines; refused while another process has it open like this."""
    make_folder(folder)
    with (folder / CELLS_FILE).open("ab") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"another run writes to {folder}: wait until it has ended, or name another folder "
                "(--out)"
            ) from error
        log.write(b"\n")  # ends a line that a crash truncated
        yield log


def append(log: BinaryIO, line: bytes) -> None:
    log.write(line + b"\n")
    log.flush()
