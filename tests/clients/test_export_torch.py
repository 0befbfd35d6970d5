"""A new PyTorch project learns without a network; its exported model loads in plain torch."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from defl import load_model
from support.alone import machine_without_network
from support.founding import defl

LIMIT_S = 300.0


def run(project: Path, out: Path, env: dict[str, str], *options: str) -> dict[str, Any]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "defl.cli.main", "run", str(project)),
            *("--rounds", "2", "--out", str(out), "--json", *options),
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=env,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = {**json.loads(done.stdout), "progress": done.stderr}
    return report


def module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def accuracy_in_plain_torch(project: Path, exported: Path) -> float:
    data = module(project / "data.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "data", data)
        model = module(project / "client.py").make_model()
    model.load_state_dict(torch.load(exported, weights_only=True), strict=True)
    model.eval()
    images, labels = data.load()[1].tensors
    prior = torch.load(exported.with_suffix(".prior.pt"), weights_only=True)["defl.prior"]
    with torch.no_grad():
        right = (model(images) + prior).argmax(dim=1) == labels
    return float(right.float().mean())


@pytest.mark.slow
@pytest.mark.parametrize("statistics", ["shared", "local"])
def test_an_exported_model_loads_strictly_in_plain_torch_and_is_as_good_as_reported(
    tmp_path: Path, statistics: str
) -> None:
    project, nodes = tmp_path / "digits", tmp_path / "nodes"
    assert defl("new", project, "--template", "torch").code == 0
    code = (project / "client.py").read_text(encoding="utf-8")
    assert 'statistics="shared"' in code
    (project / "client.py").write_text(code.replace("shared", statistics), encoding="utf-8")
    with (project / "defl.toml").open("a", encoding="utf-8") as settings:
        settings.write('keep_best = "accuracy"\n')

    report = run(
        project, nodes, machine_without_network(tmp_path / "alone", hidden="torchvision flwr")
    )

    assert report["rounds_closed"] == 2
    assert report["digests_equal"]
    for name, evaluated in report["evaluation"].items():
        assert evaluated["metrics"]["accuracy"] > 0.8, name
    for node in (nodes / "node-0", nodes / "node-3"):
        reported = report["evaluation"][node.name]
        assert reported["round"] == 2
        newest, best = tmp_path / f"{node.name}.pt", tmp_path / f"{node.name}-best.pt"
        exported = defl("export", node, newest, "--check", "--json").json
        assert exported["round"] == "2"
        accuracy = accuracy_in_plain_torch(project, newest)
        assert accuracy == pytest.approx(reported["metrics"]["accuracy"], abs=1e-6)
        assert exported["prior"] == str(tmp_path / f"{node.name}.prior.pt")
        entries = set(torch.load(newest, weights_only=True))
        assert set(load_model(node)) == {*entries, "defl.prior"}

        answer = defl("export", node, best, "--round", "best", "--check", "--json")
        assert answer.code == 0, answer.text
        value = float(answer.json["value"])
        assert value >= accuracy - 1e-6
        assert accuracy_in_plain_torch(project, best) == pytest.approx(value, abs=1e-6)

    files = {node.name: (node / "proven.safetensors").read_bytes() for node in nodes.glob("node-*")}
    assert len(files) == 4
    assert len(set(files.values())) == 1, "one model, one file"


# Without the base's file: every weight comes from the export.
PLAIN_TORCH = """
import torch
from adapters import with_adapters
from data import load
from transformer import Transformer

model = with_adapters(Transformer())
model.load_state_dict(torch.load("model.pt", weights_only=True), strict=True)
tokens, labels = load()[1].tensors
prior = torch.load("model.prior.pt", weights_only=True)["defl.prior"]
print(((model.eval()(tokens) + prior).argmax(dim=1) == labels).float().mean().item())
"""


@pytest.mark.slow
def test_adapters_are_all_that_is_sent_and_an_export_is_complete_without_the_base(
    tmp_path: Path,
) -> None:
    project, nodes, plain = tmp_path / "slang", tmp_path / "nodes", tmp_path / "plain"
    assert defl("new", project, "--template", "lora").code == 0

    env = machine_without_network(tmp_path / "alone", hidden="torchvision flwr")
    report = run(project, nodes, env, "--rounds", "3")

    assert "an update has 91.5 kB, the model 1.69 MB: the rest stays local" in report["progress"]
    assert report["digests_equal"]
    facts = defl("federation", "show", nodes / "federation.toml").text
    assert "an update has 91.5 kB, the model 1.69 MB" in " ".join(facts.split())
    # Three updates of others in each of three rounds are half of what the base alone would be.
    assert all(traffic["weights"]["received"] < 0.9e6 for traffic in report["traffic"].values())
    reported = report["evaluation"]["node-2"]["metrics"]["accuracy"]
    assert reported > 0.7

    plain.mkdir()
    for name in ("adapters.py", "data.py", "transformer.py"):
        shutil.copy(project / name, plain)
    assert defl("export", nodes / "node-2", plain / "model.pt", "--check").code == 0
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_TORCH],
        cwd=plain, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(reported, abs=1e-6)
