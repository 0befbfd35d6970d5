"""Models as safetensors files: what a federation starts from, and what each round ends with.

Only entries that the federation shares are written; what stays local never reaches such a file.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from defl.committee import Federation
from defl.errors import LocalFault, UserError, WeightsError
from defl.ids import Digest
from defl.schema import Array, Row, Schema
from defl.work import model_blob


def write_model(path: Path, schema: Schema, row: Row, metadata: Mapping[str, str]) -> None:
    """In place at once: a reader sees the old file or the new one, never a part."""
    beside = path.with_name(f".{path.name}.writing")
    try:
        save_file(schema.unflatten(row), beside, metadata=dict(metadata))
        beside.chmod(0o644)  # a model is for others to read; whether they may enter is the folder's
        os.replace(beside, path)
    except SafetensorError as error:  # its writer's only way to say that the disk is full
        raise LocalFault(f"{path} cannot be written: {error}") from error
    finally:
        beside.unlink(missing_ok=True)


def read_model(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """All arrays of a safetensors file, and its metadata."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; name a .safetensors file")
    try:
        with safe_open(path, framework="numpy") as opened:
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - it is no mapping
            return arrays, dict(opened.metadata() or {})
    except (SafetensorError, TypeError, ValueError, OSError) as error:
        raise UserError(f"{path}: not a safetensors file that can be read: {error}") from error


def read_npz(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(
            f"{path}: not an .npz file of plain arrays: {error}; "
            "write it with numpy.savez(path, name=array, ...)"
        ) from error


def shared_row(path: Path, schema: Schema) -> tuple[Row, dict[str, str]]:
    """The row of a model's file, which must hold the shared entries and nothing else."""
    arrays, metadata = read_model(path)
    extra = sorted(set(arrays) - {entry.name for entry in schema.shared})
    if extra:
        raise WeightsError(f"entry {extra[0]!r} is not among the federation's shared entries")
    return schema.flatten(arrays), metadata


def model_digest(federation: Federation, row: Row) -> Digest:
    return model_blob(federation, row)[0].digest
