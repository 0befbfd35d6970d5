"""Model files: canonical bytes that the safetensors library reads."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from defl.errors import UserError
from defl.node.report.model_file import read_metadata, read_model, write_model, write_safetensors
from defl.schema import DType, Entry, Role, Schema

ARRAYS = {
    "weight é": np.arange(6, dtype=np.float32).reshape(2, 3).T,  # not contiguous
    "steps": np.array(5, dtype=np.int64),
    "mask": np.array([True, False, True]),
    "empty": np.zeros((0, 3), dtype=np.float32),
    "half": np.ones(3, dtype=np.float16),
}
# Digest of the file below. If it changes, nodes of two versions write different files.
GOLDEN = "663caa30da9d64be77738b51eb1a650a9337b7baaafdc51424bf6ca4d377ee63"


def test_equal_models_are_equal_files_whatever_the_order_of_arrays_and_metadata(
    tmp_path: Path,
) -> None:
    one, other = tmp_path / "one.safetensors", tmp_path / "other.safetensors"
    metadata = {"round": "3", "digest": "ab", "zeta": "1", "alpha": "2"}

    write_safetensors(one, ARRAYS, metadata)
    write_safetensors(other, dict(reversed(ARRAYS.items())), dict(reversed(metadata.items())))

    assert one.read_bytes() == other.read_bytes()
    assert hashlib.sha256(one.read_bytes()).hexdigest() == GOLDEN


def test_the_safetensors_library_reads_our_files(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"

    write_safetensors(path, ARRAYS, {"round": "3"})

    arrays = load_file(path)
    assert set(arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(arrays[name], array)
    assert read_metadata(path) == read_model(path)[1] == {"round": "3"}


def test_a_model_file_states_how_many_entries_it_lacks(tmp_path: Path) -> None:
    shared, steps = Entry("point", (2,)), Entry("steps", (), DType.INT64, Role.LOCAL)
    row = np.ones(2, dtype=np.float32)

    for entries in ((shared,), (shared, steps)):
        write_model(tmp_path / f"{len(entries)}.safetensors", Schema(entries), row, {"round": "0"})

    assert read_metadata(tmp_path / "1.safetensors") == {"round": "0"}
    assert read_metadata(tmp_path / "2.safetensors") == {"round": "0", "local_entries": "1"}
    assert set(load_file(tmp_path / "2.safetensors")) == {"point"}


def test_metadata_of_a_non_model_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"rubbish")

    with pytest.raises(UserError, match="not a safetensors file"):
        read_metadata(path)
