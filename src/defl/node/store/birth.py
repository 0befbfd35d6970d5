"""The birth record: a file that says that nothing was ever signed with a key.

It is written with the key and deleted once the node's state exists: from then on the state says
what was signed. A key without either, such as one from a backup, may have signed anything, so it
never signs again.
"""

from pathlib import Path

from defl.ids import digest_of
from defl.node.store.disk import disk_faults, sync, sync_folder

BIRTH_FILE = "birth"

WITHOUT_BIRTH = (
    "this key came without its birth record (from a backup?), so what was signed with it is not "
    "known; make a new key with defl node init and have it replace this one: "
    "defl federation propose --replace-key"
)

_FORMAT = b"defl-birth-1 "


def _text(public_key: bytes) -> bytes:
    head = _FORMAT + public_key.hex().encode()
    return head + b" " + digest_of(head).hex()[:16].encode() + b"\n"


def write_birth(folder: Path, public_key: bytes) -> None:
    """Only for a key that was made just now."""
    path = folder / BIRTH_FILE
    with disk_faults(f"write {path}"), path.open("xb", buffering=0) as file:
        file.write(_text(public_key))
        sync(file.fileno(), str(path))
        sync_folder(folder)


def has_birth(folder: Path, public_key: bytes) -> bool:
    """Does the folder hold this key's birth record?"""
    path = folder / BIRTH_FILE
    with disk_faults(f"read {path}"):
        return path.exists() and path.read_bytes() == _text(public_key)


def consume_birth(folder: Path) -> None:
    """Before the first signature: a copy of the folder must not be born a second time."""
    path = folder / BIRTH_FILE
    if path.exists():
        with disk_faults(f"delete {path}"):
            path.unlink()
            sync_folder(folder)
