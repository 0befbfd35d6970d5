"""Models as safetensors files: the initial weights, and the model of each round.

`write_model` writes the entries that the federation shares, and only those: local entries never
reach such a file. Nodes that hold the same model write the same bytes.
"""

import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from defl.committee import Federation
from defl.errors import LocalFault, UserError, WeightsError
from defl.ids import Digest
from defl.schema import ENTRIES_MAX, Array, Row, Schema
from defl.work import model_blob

# An .npz may be compressed. Trained weights hardly shrink, but initial zeros do: a file may unpack
# to this many bytes, and a larger one to this many times its own size.
UNPACKED_BYTES_MAX = 256 * 2**20
UNPACKED_TIMES_MAX = 16

# What zipfile and numpy raise for bytes that are not an archive of arrays.
_NPZ_ERRORS = (
    OSError,
    ValueError,
    AttributeError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


# A model's file says how many of the model's entries it lacks because they stay local.
LOCAL_ENTRIES = "local_entries"

# Of the dtypes that a schema may have, as the safetensors format names them.
_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "uint8": "U8",
    "bool": "BOOL",
}
_HEADER_ALIGNMENT = 8


def write_model(path: Path, schema: Schema, row: Row, metadata: Mapping[str, str]) -> None:
    """Replace the file atomically: a reader sees the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.writing")
    if local := len(schema.entries) - len(schema.shared):
        metadata = {**metadata, LOCAL_ENTRIES: str(local)}
    try:
        write_safetensors(temporary, schema.unflatten(row), metadata)
        temporary.chmod(0o644)  # the folder's own mode guards access
        os.replace(temporary, path)
    except OSError as error:
        raise LocalFault(f"{path} cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_safetensors(path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Write canonical bytes: equal arrays and metadata always make equal files.

    The library's own writer puts the metadata in random order. The arrays are in the library's
    order, widest dtype first, so that each one is aligned.
    """
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    end = 0
    for name in names:
        start, end = end, end + arrays[name].nbytes
        dtype, shape = _DTYPES[arrays[name].dtype.name], arrays[name].shape
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            little_endian = arrays[name].dtype.newbyteorder("<")
            file.write(np.ascontiguousarray(arrays[name], dtype=little_endian).data)


def read_model(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """All arrays of a safetensors file, copied, and its metadata."""
    with _opened(path) as file:
        names = file.keys()
        if len(names) > ENTRIES_MAX:
            raise UserError(
                f"{path}: {len(names)} entries, more than the {ENTRIES_MAX} that a model has"
            )
        return {name: file.get_tensor(name) for name in names}, dict(file.metadata() or {})


def read_metadata(path: Path) -> dict[str, str]:
    with _opened(path) as file:
        return dict(file.metadata() or {})


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.is_file():
        what = "not a file" if path.exists() else "no such file"
        raise UserError(f"{path}: {what}; name a .safetensors file")
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, TypeError, ValueError, OSError) as error:
        raise UserError(f"{path}: not a safetensors file that can be read: {error}") from error


def read_npz(path: Path) -> dict[str, Array]:
    try:
        _require_bounded(path)
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except _NPZ_ERRORS as error:
        raise UserError(
            f"{path}: not an .npz file of plain arrays: {error}; "
            "write it with numpy.savez(path, name=array, ...)"
        ) from error


def _require_bounded(path: Path) -> None:
    """Checked before unpacking: zipfile never returns more than a member's declared size."""
    packed = path.stat().st_size
    with zipfile.ZipFile(path) as members:
        infos = members.infolist()
        if len(infos) > ENTRIES_MAX:
            raise UserError(
                f"{path}: {len(infos)} arrays, more than the {ENTRIES_MAX} that a model has"
            )
        unpacked = sum(info.file_size for info in infos)
        if unpacked > max(UNPACKED_BYTES_MAX, UNPACKED_TIMES_MAX * packed):
            raise UserError(
                f"{path}: {packed} bytes that would unpack to {unpacked}; write it uncompressed, "
                "with numpy.savez instead of savez_compressed"
            )
        for info in infos:
            with members.open(info) as member:
                _require_complete(member, info.file_size)


def _require_complete(member: IO[bytes], size: int) -> None:
    """An array's memory is allocated from its header's shape, before its values are read."""
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
    else:
        shape, _, dtype = np.lib.format.read_array_header_2_0(member)
    if prod(shape) * dtype.itemsize > size:
        raise ValueError(f"an array of shape {shape} in {size} bytes")


def shared_row(path: Path, schema: Schema) -> tuple[Row, dict[str, str]]:
    """The row of a model file, which must hold the shared entries and nothing else."""
    arrays, metadata = read_model(path)
    return row_of(arrays, schema), metadata


def row_of(arrays: Mapping[str, Array], schema: Schema) -> Row:
    extra = sorted(set(arrays) - {entry.name for entry in schema.shared})
    if extra:
        raise WeightsError(f"entry {extra[0]!r} is not among the federation's shared entries")
    return schema.flatten(arrays)


def model_digest(federation: Federation, row: Row) -> Digest:
    return model_blob(federation, row)[0].digest
