"""An exported model is complete and unchanged in every format, and overwrites no file."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from defl.node.report import certificate
from defl.node.report.best_model import BEST, BEST_CERTIFICATE
from defl.node.report.log import Log
from defl.node.report.results import CERTIFICATE, MODEL, PROVEN
from defl.node.setup.agreement import read_federation
from defl.node.setup.requirements import Check
from defl.node.startup import open_node
from defl.node.work.local_entries import LOCAL_FILE, write_local
from support.founding import defl, init_nodes
from test_round_certificate import LAST, Proven, proven  # noqa: F401 - a fixture


@pytest.fixture
def node(proven: Proven, tmp_path: Path) -> Path:  # noqa: F811 - the fixture
    """The folder of a node after the last round."""
    folder = tmp_path / "alice"
    shutil.copytree(proven.folder / "alice", folder)
    for name in ("federation.toml", "initial.safetensors"):
        shutil.copy(proven.folder / name, folder)
    shutil.copy(proven.model(LAST), folder / MODEL)
    shutil.copy(proven.model(LAST), folder / PROVEN)
    shutil.copy(proven.certificate(LAST), folder / CERTIFICATE)
    return folder


def model_of(node: Path) -> dict[str, np.ndarray]:
    """The model as clients see it, without the aggregation rule's memory."""
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
    answer = defl("export", node, output, "--json")
    assert answer.code == 0, answer.text

    if suffix == ".npz":
        exported = dict(np.load(output, allow_pickle=False))
    elif suffix == ".pt":
        state = torch.load(output, weights_only=True)
        exported = {name: tensor.numpy() for name, tensor in state.items()}
    else:
        exported = load_file(output)
    assert answer.json["round"] == str(LAST)
    assert list(exported) == list(model_of(node))
    for name, array in model_of(node).items():
        assert exported[name].dtype == array.dtype
        np.testing.assert_array_equal(exported[name], array)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_aggregation_rules_memory_is_not_counted_as_an_entry(
    node: Path, tmp_path: Path
) -> None:
    answer = defl("export", node, tmp_path / "model.npz", "--json")
    text = defl("export", node, tmp_path / "other.npz").text

    assert list(answer.json["entries"]) == ["point"]
    assert f"the model of round {LAST}, 1 entry\n" in text


def test_a_file_is_overwritten_only_with_force(node: Path, tmp_path: Path) -> None:
    output = tmp_path / "mine.npz"
    output.write_bytes(b"mine")

    refused = defl("export", node, output)
    assert refused.code == 2
    assert "--force" in refused.text
    assert output.read_bytes() == b"mine"
    assert defl("export", node, output, "--force").code == 0
    assert "point" in np.load(output)


def test_a_kept_round_is_exported_and_any_other_is_refused_with_the_kept_ones(
    node: Path, tmp_path: Path
) -> None:
    """The state of a new node keeps round 0: the initial weights."""
    opened = open_node(node, Log())
    opened.storage.close()

    answer = defl("export", node, tmp_path / "start.npz", "--round", 0)
    assert answer.code == 0, answer.text
    np.testing.assert_array_equal(np.load(tmp_path / "start.npz")["point"], np.zeros(64))
    missing = defl("export", node, tmp_path / "seven.npz", "--round", 7)
    assert missing.code == 2
    assert "there are: 0" in missing.text


def keep_best(node: Path, proven: Proven, round_: int) -> None:  # noqa: F811 - the fixture
    shutil.copy(proven.model(round_), node / BEST)
    shutil.copy(proven.certificate(round_), node / BEST_CERTIFICATE)


@pytest.mark.parametrize("choice", ["best", 1])
@pytest.mark.parametrize("options", [(), ("--check",)])
def test_the_best_model_is_exported_and_checked_by_its_own_certificate(
    node: Path,
    proven: Proven,  # noqa: F811 - the fixture
    tmp_path: Path,
    choice: object,
    options: tuple[str, ...],
) -> None:
    keep_best(node, proven, 1)
    output = tmp_path / "model.npz"

    answer = defl("export", node, output, "--round", choice, "--json", *options)

    assert (answer.code, answer.json["round"]) == (0, "1")
    np.testing.assert_array_equal(np.load(output)["point"], load_file(proven.model(1))["point"])


def test_an_unproven_best_model_is_exported_only_without_a_check(
    node: Path,
    proven: Proven,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> None:
    keep_best(node, proven, 1)
    (node / BEST_CERTIFICATE).unlink()

    assert defl("export", node, tmp_path / "a.npz", "--round", "best").code == 0
    refused = defl("export", node, tmp_path / "b.npz", "--round", "best", "--check")
    assert refused.code == 2
    assert "not proven yet" in refused.text


def test_without_a_best_model_export_says_how_to_keep_one(node: Path, tmp_path: Path) -> None:
    refused = defl("export", node, tmp_path / "model.npz", "--round", "best")
    assert refused.code == 2
    assert 'keep_best = "accuracy" or "-loss"' in refused.text

    config = node / "node.toml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace('keep_best = ""', 'keep_best = "-loss"'), encoding="utf-8")
    refused = defl("export", node, tmp_path / "model.npz", "--round", "best")
    assert "no evaluation has returned 'loss'" in refused.text


def test_a_checked_export_lists_the_members_that_vouch(node: Path, tmp_path: Path) -> None:
    answer = defl("export", node, tmp_path / "model.npz", "--check", "--json")

    assert answer.code == 0, answer.text
    assert "members vouch" in answer.json["proof"]


def test_a_checked_export_refuses_a_changed_model(
    node: Path,
    proven: Proven,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> None:
    shutil.copy(proven.model(0), node / PROVEN)

    answer = defl("export", node, tmp_path / "model.npz", "--check")

    assert answer.code == 1
    assert "NOT PROVEN" in answer.text
    assert not (tmp_path / "model.npz").exists()


def test_the_verified_arrays_are_written_even_if_the_file_changes_meanwhile(
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
def test_a_planted_link_is_not_followed(node: Path, tmp_path: Path, suffix: str) -> None:
    """Others may write into the folder, as into /tmp, and place links at names they guess."""
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
    ("name", "options", "message"),
    [
        ("model.txt", (), "the name decides the format"),
        ("nowhere/model.npz", (), "make it first"),
        ("model.npz", ("--check", "--round", 1), "leave --round out"),
        ("model.npz", ("--round", "newest"), "a round's number, or best"),
    ],
)
def test_an_impossible_export_is_refused_with_advice(
    node: Path, tmp_path: Path, name: str, options: tuple[object, ...], message: str
) -> None:
    answer = defl("export", node, tmp_path / name, *options)

    assert answer.code == 2
    assert message in answer.text


def test_a_node_without_a_model_says_when_there_will_be_one(node: Path, tmp_path: Path) -> None:
    (node / MODEL).unlink()

    answer = defl("export", node, tmp_path / "model.npz")

    assert answer.code == 2
    assert "first round has not closed" in answer.text


# --- Entries that stay local ---------------------------------------------------------------------

STEPS = np.array(12, dtype=np.int64)


@pytest.fixture
def partly_local(tmp_path: Path) -> Path:
    """A node whose model has one entry that stays local, after a training."""
    cards, start = init_nodes(tmp_path), tmp_path / "start.npz"
    np.savez(start, steps=np.array(0), point=np.zeros(64, dtype=np.float32))
    path = tmp_path / "federation.toml"
    created = defl("federation", "create", *cards, "--model", start, "-o", path)
    assert created.code == 0, created.text
    folder = tmp_path / "alice"
    for name in ("federation.toml", "initial.safetensors"):
        shutil.copy(tmp_path / name, folder)
    shutil.copy(folder / "initial.safetensors", folder / MODEL)
    (folder / "state").mkdir()
    schema = read_federation(path).federation.schema
    write_local(folder / "state" / LOCAL_FILE, schema, {"steps": STEPS})
    return folder


def test_local_entries_are_exported_with_this_nodes_values(
    partly_local: Path, tmp_path: Path
) -> None:
    answer = defl("export", partly_local, tmp_path / "model.npz", "--json")
    text = defl("export", partly_local, tmp_path / "model.safetensors").text

    assert answer.json["local"] == ["steps"]
    assert "2 entries, 1 of them this node's own" in text
    for arrays in (np.load(tmp_path / "model.npz"), load_file(tmp_path / "model.safetensors")):
        assert set(arrays) == {"steps", "point"}
        assert arrays["steps"] == STEPS


def test_a_node_that_never_trained_exports_the_shared_entries_only_on_request(
    partly_local: Path, tmp_path: Path
) -> None:
    (partly_local / "state" / LOCAL_FILE).unlink()

    refused = defl("export", partly_local, tmp_path / "model.npz")

    assert refused.code == 2
    assert "'steps' for one" in refused.text
    assert "--shared-only" in refused.text
    assert defl("export", partly_local, tmp_path / "model.npz", "--shared-only").code == 0
    assert set(np.load(tmp_path / "model.npz")) == {"point"}


def test_a_model_file_without_local_entries_is_exported_only_on_request(
    partly_local: Path, tmp_path: Path
) -> None:
    model = partly_local / MODEL

    refused = defl("export", model, tmp_path / "model.npz")

    assert refused.code == 2
    assert "the model has 1 more that stay local" in refused.text
    assert defl("export", model, tmp_path / "model.npz", "--shared-only").code == 0
    assert set(np.load(tmp_path / "model.npz")) == {"point"}
