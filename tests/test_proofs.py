"""defl.verify and defl.load_model: a model's files are checked before their arrays are used."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import defl
from defl.node.setup.config import read_node
from defl.node.work.local_entries import LOCAL_FILE, write_local
from defl.proofs import _local_entries
from defl.schema import DType, Entry, Role, Schema
from test_export import node  # noqa: F401 - a fixture
from test_round_certificate import LAST, Proven, proven  # noqa: F401 - a fixture


def test_a_valid_proof_is_true_and_lists_the_members_that_vouch(proven: Proven) -> None:  # noqa: F811 - the fixture
    proof = defl.verify(proven.model(1), str(proven.certificate(1)), proven.federation)

    assert proof
    assert proof.proven
    assert proof.round == 1
    assert len(proof.digest) == 64
    assert str(proof).endswith("\n\nproven")
    assert "members vouch for the model of round 1" in str(proof)
    assert proof.as_json()["proven"] is True
    assert proof._repr_html_().startswith("<pre>")


def test_a_proof_of_another_model_is_false_and_gives_the_reason(proven: Proven) -> None:  # noqa: F811
    proof = defl.verify(proven.model(1), proven.certificate(LAST), proven.federation)

    assert not proof
    assert str(proof).endswith("NOT PROVEN: do not use this model")
    assert [check.name for check in proof.checks if not check.holds] == ["model"]


def test_a_missing_file_is_a_user_error(proven: Proven, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(defl.UserError, match="no such file"):
        defl.verify(tmp_path / "a", proven.certificate(1), proven.federation)


def test_a_nodes_newest_model_is_loaded_without_the_rules_memory(node: Path) -> None:  # noqa: F811
    weights = defl.load_model(node)

    written = load_file(node / "model.safetensors")
    assert "defl.memory" in written
    assert set(weights) == set(written) - {"defl.memory"}
    for name, array in weights.items():
        np.testing.assert_array_equal(array, written[name])


def test_the_folder_of_a_whole_run_is_answered_with_the_folder_of_a_node(
    node: Path,  # noqa: F811
) -> None:
    with pytest.raises(defl.UserError, match="name the folder of one node, for example"):
        defl.load_model(node.parent)


def test_a_folder_is_not_said_to_be_missing(proven: Proven, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(defl.UserError, match=f"{tmp_path}: not a file; name a .safetensors file"):
        defl.verify(tmp_path, proven.certificate(1), proven.federation)


def test_a_model_file_outside_a_node_needs_its_federation(
    proven: Proven,  # noqa: F811
    node: Path,  # noqa: F811
) -> None:
    with pytest.raises(defl.UserError, match=r"load_model\(path, federation='federation.toml'\)"):
        defl.load_model(proven.model(LAST))

    loaded = defl.load_model(str(proven.model(LAST)), federation=proven.federation)

    assert list(loaded) == list(defl.load_model(node))
    assert list(defl.load_model(node / "initial.safetensors")) == list(loaded)


def test_a_changed_model_is_refused(node: Path) -> None:  # noqa: F811
    path = node / "model.safetensors"
    with safe_open(path, framework="numpy") as opened:
        metadata = opened.metadata()
    arrays = load_file(path)
    name = next(name for name in arrays if name != "defl.memory")
    arrays[name].flat[0] += np.float32(1.0)
    path.unlink()
    save_file(arrays, path, metadata=metadata)

    with pytest.raises(defl.UserError, match="the file was changed; copy it again from its node"):
        defl.load_model(node)


def test_an_exported_model_is_reported_to_carry_no_digest(
    proven: Proven,  # noqa: F811
    tmp_path: Path,
) -> None:
    arrays = load_file(proven.model(LAST))
    del arrays["defl.memory"]
    exported = tmp_path / "exported.safetensors"
    save_file(arrays, exported, metadata={"round": str(LAST)})

    with pytest.raises(defl.UserError, match="an exported model, whose digest cannot be checked"):
        defl.load_model(exported, federation=proven.federation)


def test_a_folder_without_a_model_says_what_is_missing(
    node: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    (node / "model.safetensors").unlink()

    with pytest.raises(defl.UserError, match="no model yet; its first round has not closed"):
        defl.load_model(node)
    shutil.rmtree(node)
    with pytest.raises(defl.UserError, match="create a node with: defl node init"):
        defl.load_model(tmp_path)


def test_local_entries_are_the_nodes_own_values_or_the_model_is_refused(
    node: Path,  # noqa: F811
) -> None:
    """A counter that stays at each node, as a batch norm's does."""
    schema = Schema((Entry("w", (2,)), Entry("steps", (), DType.INT64, Role.LOCAL)))
    state = node / read_node(node).state
    state.mkdir(exist_ok=True)

    for source in (node, node / "model.safetensors"):
        with pytest.raises(defl.UserError, match=r"'steps' for one.*shared_only=True"):
            _local_entries(source, schema)
    write_local(state / LOCAL_FILE, schema, {"steps": np.array(7)})

    assert _local_entries(node, schema) == {"steps": 7}
    assert _local_entries(node, Schema(schema.shared)) == {}
    assert list(defl.load_model(node, shared_only=True)) == list(defl.load_model(node))
