"""A client's local entries on disk: values that never leave the node, as of the last training.

The client's process writes them after each training; its successor continues from them, and an
export completes the shared model with them.
"""

import sys
import zipfile
from pathlib import Path

import numpy as np

from defl.node.store.private import privately
from defl.schema import Array, Role, Schema

LOCAL_FILE = "client-local.npz"  # in the node's state folder


def local_names(schema: Schema) -> list[str]:
    return [entry.name for entry in schema.entries if entry.role is Role.LOCAL]


def read_local(path: Path, schema: Schema) -> dict[str, Array]:
    """The saved entries; none if the file is missing, damaged or of another schema."""
    names = local_names(schema)
    if not names or not path.exists():
        return {}
    try:
        with np.load(path, allow_pickle=False) as saved:
            if saved["schema"].tobytes() != schema.digest:
                return {}
            return {name: saved[f"entry{index}"] for index, name in enumerate(names)}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        sys.stderr.write(f"{path} cannot be read ({error}): its local entries are ignored\n")
        return {}


def write_local(path: Path, schema: Schema, local: dict[str, Array]) -> None:
    if not local:
        return
    entries = {f"entry{index}": array for index, array in enumerate(local.values())}
    new = path.with_name(f"{path.name}.new")
    with open(new, "wb", opener=privately) as file:
        np.savez(file, schema=np.frombuffer(schema.digest, dtype=np.uint8), **entries)  # type: ignore[arg-type]
    new.replace(path)
