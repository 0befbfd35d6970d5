"""Commands and the class prior: exports have it, `defl node check` warns of one class."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import defl as defl_package
from defl.clients.prior import PRIOR_ENTRY, log_frequencies
from defl.node.report.results import MODEL
from defl.node.setup.agreement import read_federation
from defl.node.work.local_entries import LOCAL_FILE, write_local
from support.founding import defl, init_nodes

PRIOR = log_frequencies([30, 10])
CLIENT = """
import numpy as np
from defl.clients.numpy import FunctionClient
from defl.clients.prior import PRIOR_ENTRY, count_classes, log_frequencies

def client():
    labels = np.array({labels})
    counts = count_classes(labels, 2)
    prior = log_frequencies(counts)
    initial = {{"w": np.zeros(3, dtype=np.float32), PRIOR_ENTRY: prior}}
    def train(weights, round_):
        weights["w"] += 1
        return weights, {{"classes": np.count_nonzero(counts)}}
    return FunctionClient(initial, train, entry_roles={{PRIOR_ENTRY: "local"}}, counts=counts)
"""


def write_client(folder: Path, labels: list[int]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "client.py").write_text(CLIENT.format(labels=labels), encoding="utf-8")


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Return a node of a federation of classifiers that has trained once."""
    cards = init_nodes(tmp_path)
    write_client(tmp_path / "project", [0] * 30 + [1] * 10)
    path = tmp_path / "federation.toml"
    created = defl(
        "federation", "create", *cards, "--model", "client:client",
        "--project", tmp_path / "project", "-o", path,
    )  # fmt: skip
    assert created.code == 0, created.text
    folder = tmp_path / "alice"
    for name in ("federation.toml", "initial.safetensors"):
        (folder / name).write_bytes((tmp_path / name).read_bytes())
    (folder / MODEL).write_bytes((tmp_path / "initial.safetensors").read_bytes())
    (folder / "state").mkdir(mode=0o700)
    schema = read_federation(path).federation.schema
    write_local(folder / "state" / LOCAL_FILE, schema, {PRIOR_ENTRY: PRIOR})
    config = (folder / "node.toml").read_text(encoding="utf-8")
    config = config.replace('client = ""', 'client = "client:client"')
    config = config.replace('project = "."', 'project = "../project"')
    (folder / "node.toml").write_text(config, encoding="utf-8")
    return folder


def read_npz(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


# --- Export ------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_file_of_arrays_has_the_shared_entries_and_the_prior_and_says_so(
    node: Path, tmp_path: Path, suffix: str
) -> None:
    output = tmp_path / f"model{suffix}"

    text = defl("export", node, output).text

    assert f"defl.prior in {output} is this site's class prior" in text
    arrays = read_npz(output) if suffix == ".npz" else load_file(output)
    assert (arrays[PRIOR_ENTRY] == PRIOR).all()
    assert "w" in arrays


def test_a_state_dict_has_the_modules_entries_and_the_prior_is_beside_it(
    node: Path, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    output, beside = tmp_path / "model.pt", tmp_path / "model.prior.pt"

    text = defl("export", node, output).text

    assert f"defl.prior in {beside} is this site's class prior" in text
    assert set(torch.load(output, weights_only=True)) == {"w"}
    assert (torch.load(beside, weights_only=True)[PRIOR_ENTRY].numpy() == PRIOR).all()


def test_an_existing_prior_is_not_overwritten_and_then_nothing_is_written(
    node: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    output, beside = tmp_path / "model.pt", tmp_path / "model.prior.pt"
    beside.write_bytes(b"mine")

    refused = defl("export", node, output)

    assert refused.code == 2
    assert f"{beside} exists; choose another name" in refused.text
    assert not output.exists()
    assert defl("export", node, output, "--force").code == 0
    assert beside.read_bytes() != b"mine"


def test_the_shared_entries_alone_have_no_prior(node: Path, tmp_path: Path) -> None:
    output = tmp_path / "model.npz"

    answer = defl("export", node, output, "--shared-only", "--json")

    assert answer.json["prior"] is None
    assert set(read_npz(output)) == {"w"}


# --- One class ---------------------------------------------------------------------------------


def training_code(node: Path, *options: str) -> str:
    lines = defl("node", "check", node, "--no-peers", *options).text.splitlines()
    return next((line for line in lines if "training code" in line), "")


def test_the_check_counts_the_labels_and_warns_a_member_with_one_class(node: Path) -> None:
    assert training_code(node).endswith("client:client loads; labels of each class: 30, 10")

    write_client(node.parent / "project", [1] * 40)
    warned = training_code(node)
    assert warned.startswith("ok  training code: it loads. WARNING: all 40 training labels are of ")
    assert training_code(node, "--no-client") == ""


def test_the_check_says_why_training_code_cannot_be_loaded(node: Path) -> None:
    (node.parent / "project" / "client.py").write_text("import no_such_package", encoding="utf-8")

    failed = training_code(node)

    assert failed.startswith("NO  training code: ")
    assert "no module named 'no_such_package'" in failed


@pytest.mark.slow
def test_after_a_run_the_printed_export_command_works_and_one_class_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    project = tmp_path / "project"
    write_client(project, [1] * 40)

    result = defl_package.run(project, rounds=2, progress=False)

    assert result.agreed
    assert defl("export", result.folder / "node-0", tmp_path / "model.npz").code == 0
    assert (read_npz(tmp_path / "model.npz")[PRIOR_ENTRY] == log_frequencies([0, 40])).all()
    assert list(result.folder.glob("node-*/node.key")) == []
    kept = {path.name for path in result.folder.glob("node-*/state/*")}
    assert kept == {LOCAL_FILE}
