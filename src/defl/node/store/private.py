"""Folders of the node alone: real ones, of mode 0700, whose files have mode 0600.

They hold all members' updates, and the node overwrites and deletes files in them. So a link is
refused, since somebody else's files may be behind it, and nothing is deleted or changed whose name
is not of the node's own form. The process's umask does not matter.
"""

import os
import stat
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

from defl.errors import UserError

FOLDER_MODE = 0o700
FILE_MODE = 0o600

IsOurs = Callable[[str], bool]  # whether a file's name is of the form that the node itself writes


def open_to_others(path: Path) -> int:
    """Return the mode of a file or folder that others can access; 0 if only its owner can."""
    mode = stat.S_IMODE(path.stat().st_mode)
    return mode if mode & 0o077 else 0


def privately(path: str | Path, flags: int) -> int:
    """Open as `open` does, so that only its owner can read a file that this creates."""
    return os.open(path, flags, FILE_MODE)


def create_file(path: Path) -> FileIO:
    """Open a file for writing, new or emptied; a link in its place is replaced, not followed."""
    if path.is_symlink():
        path.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    return FileIO(privately(path, flags), "wb")


def make_folder(path: Path) -> None:
    """Make the folder and those above it that are missing; an existing one must be real."""
    require_real(path)
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(FOLDER_MODE, exist_ok=True)  # no umask widens it


def require_real(path: Path) -> None:
    """Refuse a link or a file at a place where the node keeps a folder, if anything is there."""
    if path.is_symlink():
        raise UserError(
            f"{path} is a link, and the node deletes files in this folder: put the folder itself "
            f"there (it is now {path.resolve()}), or name the folder behind the link as `state` "
            "in node.toml"
        )
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is not a folder; move it away, the node makes its own")


def own_files(folder: Path, is_ours: IsOurs) -> Iterator[Path]:
    """Return the regular files directly in a folder whose names have the node's form, sorted."""
    with os.scandir(folder) as entries:
        names = [
            entry.name
            for entry in entries
            if is_ours(entry.name) and entry.is_file(follow_symlinks=False)
        ]
    return (folder / name for name in sorted(names))


def exposed(folder: Path, is_ours: IsOurs) -> list[Path]:
    """Return the folder and the node's files in it, as far as other users can access them."""
    if not folder.exists():
        return []
    return [path for path in (folder, *own_files(folder, is_ours)) if open_to_others(path)]


def close_to_others(path: Path) -> None:
    """Take all access from other users; refuse if that is not in this process's power."""
    advice = (
        f"others may read it (mode {open_to_others(path):04o}), and all members' updates with it"
    )
    try:
        path.chmod(FOLDER_MODE if path.is_dir() else FILE_MODE)
    except PermissionError as error:
        raise UserError(
            f"{path}: {advice}, and it belongs to another user; make it this user's, with chown"
        ) from error
    if open_to_others(path):
        raise UserError(
            f"{path}: {advice}, and its file system does not keep modes; name a folder on another "
            "disk as `state` in node.toml"
        )
