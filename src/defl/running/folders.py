"""The folders of runs: the lock, what is kept after the end, what `defl clean` may delete."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from defl.errors import UserError
from defl.node.setup.config import CONFIG_FILE, KEY_FILE
from defl.node.setup.local import Local
from defl.node.work.local_entries import LOCAL_FILE

PREFIX = "defl-run-"
# Includes the prefix that the demonstrations of older releases used.
PREFIXES = (PREFIX, "defl-demo-")
STATE = "state"


def require_own(folder: Path) -> None:
    """A plan and node.toml name code that is run, and keys will lie beside them.

    The owner of a folder can change everything in it, whoever made what is inside.
    """
    if folder.stat().st_uid not in (os.getuid(), 0):
        raise UserError(
            f"{folder} belongs to another user, who could replace the nodes' code and keys; "
            "name a folder of your own with --out"
        )


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the folder for one run at a time; the lock ends with the process, even if killed."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{folder}: another run is using it; wait until it ends, or name a new folder "
                "with --out"
            ) from None
        yield
    finally:
        os.close(handle)


def running_nodes(folder: Path) -> list[Path]:
    """Nodes of an earlier run whose processes are still alive."""
    from defl.node.store.storage import lock_holder  # noqa: PLC0415 - a new run needs no store

    nodes = sorted(path.parent for path in folder.glob(f"*/{CONFIG_FILE}"))
    return [node for node in nodes if lock_holder(node / STATE) is not None]


def strip(local: Local) -> None:
    """Keep models, certificates, logs and settings; delete the keys and the nodes' state.

    Only an unfinished run needs those. A temporary folder is no place for keys, and the state is
    many times the size of the models. The local entries stay: an export needs them.
    """
    for node in local.nodes:
        (node / KEY_FILE).unlink(missing_ok=True)
        for path in (node / STATE).glob("*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != LOCAL_FILE:
                path.unlink(missing_ok=True)
        with suppress(OSError):  # it holds local entries
            (node / STATE).rmdir()


@dataclass(frozen=True, slots=True)
class LeftOver:
    """The folder of an earlier run in the temporary directory."""

    folder: Path
    size_bytes: int
    age_s: float
    in_use: bool


def left_overs() -> list[LeftOver]:
    """This user's folders with the names that `defl run` gives, the oldest first."""
    now = time.time()
    folders = [
        LeftOver(folder, _size_bytes(folder), now - folder.stat().st_mtime, _in_use(folder))
        for prefix in PREFIXES
        for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*")
        if not folder.is_symlink() and folder.is_dir() and folder.stat().st_uid == os.getuid()
    ]
    return sorted(folders, key=lambda left_over: -left_over.age_s)


def _in_use(folder: Path) -> bool:
    try:
        with held(folder):
            return bool(running_nodes(folder))
    except UserError:
        return True


def _size_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # deleted meanwhile
            total += 0 if path.is_dir() else path.lstat().st_size
    return total
