"""A model leaves a node in the form that is asked for, unchanged, and over nobody's file."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from defl.node.report import certificate
from defl.node.report.log import Log
from defl.node.report.results import CERTIFICATE, MODEL, PROVEN
from defl.node.setup.requirements import Check
from defl.node.startup import open_node
from support.founding import defl
from test_round_certificate import LAST, Proven, proven  # noqa: F401 - a fixture


@pytest.fixture
def node(proven: Proven, tmp_path: Path) -> Path:  # noqa: F811 - the fixture
    """A node after the last round, as it lies on its disk."""
    folder = tmp_path / "alice"
    shutil.copytree(proven.folder / "alice", folder)
    for name in ("federation.toml", "initial.safetensors"):
        shutil.copy(proven.folder / name, folder)
    shutil.copy(proven.model(LAST), folder / MODEL)
    shutil.copy(proven.model(LAST), folder / PROVEN)
    shutil.copy(proven.certificate(LAST), folder / CERTIFICATE)
    return folder


def model_of(node: Path) -> dict[str, np.ndarray]:
    """What the members' own code knows: without the aggregation rule's memory."""
    arrays = load_file(node / MODEL)
    del arrays["defl.memory"]
    return arrays


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pt"])
def test_a_model_is_the_same_in_every_format_and_carries_no_memory(
    node: Path, tmp_path: Path, suffix: str
) -> None:
    output = tmp_path / f"model{suffix}"
    if suffix == ".pt":
        torch = pytest.importorskip("torch")
    said = defl("export", node, output, "--json")
    assert said.code == 0, said.text

    if suffix == ".npz":
        found = dict(np.load(output, allow_pickle=False))
    elif suffix == ".pt":
        state = torch.load(output, weights_only=True)
        found = {name: tensor.numpy() for name, tensor in state.items()}
    else:
        found = load_file(output)
    assert said.json["round"] == str(LAST)
    assert list(found) == list(model_of(node))
    for name, array in model_of(node).items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_file_is_overwritten_only_by_force(node: Path, tmp_path: Path) -> None:
    output = tmp_path / "mine.npz"
    output.write_bytes(b"mine")

    refused = defl("export", node, output)
    assert refused.code == 2
    assert "--force" in refused.text
    assert output.read_bytes() == b"mine"
    assert defl("export", node, output, "--force").code == 0
    assert "point" in np.load(output)


def test_a_kept_round_is_exported_and_one_that_is_not_kept_is_named(
    node: Path, tmp_path: Path
) -> None:
    """The state of a new node keeps round 0: the initial weights."""
    made = open_node(node, Log())
    made.storage.close()

    said = defl("export", node, tmp_path / "start.npz", "--round", 0)
    assert said.code == 0, said.text
    np.testing.assert_array_equal(np.load(tmp_path / "start.npz")["point"], np.zeros(64))
    missing = defl("export", node, tmp_path / "seven.npz", "--round", 7)
    assert missing.code == 2
    assert "there are: 0" in missing.text


def test_a_checked_export_names_who_vouches(node: Path, tmp_path: Path) -> None:
    said = defl("export", node, tmp_path / "model.npz", "--check", "--json")

    assert said.code == 0, said.text
    assert "members vouch" in said.json["proof"]


def test_a_changed_model_is_not_exported_when_it_is_to_be_checked(
    node: Path,
    proven: Proven,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> None:
    shutil.copy(proven.model(0), node / PROVEN)

    said = defl("export", node, tmp_path / "model.npz", "--check")

    assert said.code == 1
    assert "NOT PROVEN" in said.text
    assert not (tmp_path / "model.npz").exists()


def test_what_was_verified_is_written_though_the_file_changes_meanwhile(
    node: Path,
    proven: Proven,  # noqa: F811 - the fixture
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = model_of(node)
    vouched = certificate.vouched

    def swapping(*arguments: Any) -> Check:
        shutil.copy(proven.model(0), node / PROVEN)
        return vouched(*arguments)

    monkeypatch.setattr(certificate, "vouched", swapping)
    answer = defl("export", node, tmp_path / "model.npz", "--check", "--json")

    assert (answer.code, answer.json["round"]) == (0, str(LAST))
    np.testing.assert_array_equal(np.load(tmp_path / "model.npz")["point"], expected["point"])


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_a_link_that_lies_in_wait_is_not_written_through(
    node: Path, tmp_path: Path, suffix: str
) -> None:
    """Others may write into the folder too, as into /tmp, and put links where they guess names."""
    victim = tmp_path / "victim"
    victim.write_text("mine", encoding="utf-8")
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / f".model.writing{suffix}").symlink_to(victim)

    assert defl("export", node, shared / f"model{suffix}").code == 0

    assert victim.read_text(encoding="utf-8") == "mine"
    assert (shared / f"model{suffix}").stat().st_mode & 0o777 == 0o644
    assert len(list(shared.iterdir())) == 2  # the link and the model


def test_a_file_is_checked_against_the_named_certificate_and_federation(
    proven: Proven,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> None:
    model, output = proven.model(1), tmp_path / "model.npz"
    proof = ("--certificate", proven.certificate(1), "--federation", proven.federation)

    assert "--certificate FILE" in defl("export", model, output, "--check").text
    assert defl("export", model, output, "--check", *proof).code == 0


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("model.txt", (), "the name decides the format"),
        ("nowhere/model.npz", (), "make it first"),
        ("model.npz", ("--check", "--round", 1), "leave --round out"),
    ],
)
def test_what_cannot_be_written_is_refused_with_what_to_do(
    node: Path, tmp_path: Path, name: str, options: tuple[object, ...], said: str
) -> None:
    answer = defl("export", node, tmp_path / name, *options)

    assert answer.code == 2
    assert said in answer.text


def test_a_node_without_a_model_says_when_there_will_be_one(node: Path, tmp_path: Path) -> None:
    (node / MODEL).unlink()

    answer = defl("export", node, tmp_path / "model.npz")

    assert answer.code == 2
    assert "first round has not closed" in answer.text
