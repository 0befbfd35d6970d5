"""`defl new`: new projects run at once without a network; invalid requests are refused."""

import errno
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from defl.cli.main import cli
from defl.cli.new import TEMPLATES
from defl.clients.extras import install_command
from defl.errors import UserError
from support.alone import machine_without_network

LIMIT_S = 300.0


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    return machine_without_network(tmp_path / "alone")


def new_project(folder: Path, template: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli, ["new", str(folder), "--template", template, "--json"])
    assert result.exit_code == 0, result.output
    created: dict[str, Any] = json.loads(result.output)
    return created


def python(*arguments: str, env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=env,
    )


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_new_project_has_its_files_and_its_name(tmp_path: Path, template: str) -> None:
    created = new_project(tmp_path / "my-project", template)

    assert {"client.py", "data.py", "defl.toml", "README.md", "test_client.py"} <= set(
        created["files"]
    )
    title = (tmp_path / "my-project" / "README.md").read_text(encoding="utf-8")
    assert title.startswith("# my-project\n")


@pytest.mark.parametrize(
    ("template", "hidden", "accuracy"),
    [
        ("numpy", "torch sklearn scipy flwr", 0.65),
        ("hospitals", "torch sklearn scipy flwr", 0.65),
        ("sklearn", "torch torchvision flwr", 0.8),
        # torch: test_export_torch.py
    ],
)
def test_a_new_project_runs_at_once_without_a_network_and_learns(
    tmp_path: Path, alone: dict[str, str], template: str, hidden: str, accuracy: float
) -> None:
    project = tmp_path / "my-project"
    new_project(project, template)

    ran = python(
        *("-m", "defl.cli.main", "run", str(project), "--rounds", "2", "--json"),
        *("--out", str(tmp_path / "nodes")),
        env={**alone, "HIDDEN": hidden},
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads(ran.stdout)
    assert report["rounds_closed"] == 2
    assert report["digests_equal"]
    for name, evaluated in report["evaluation"].items():
        assert evaluated["metrics"]["accuracy"] > accuracy, name


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_new_projects_own_test_passes(
    tmp_path: Path, alone: dict[str, str], template: str
) -> None:
    new_project(tmp_path / "mine", template)

    tested = python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "mine"), env=alone
    )

    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "1 passed" in tested.stdout


def test_nodes_train_on_disjoint_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_project(tmp_path / "mine", "numpy")
    spec = importlib.util.spec_from_file_location("irises", tmp_path / "mine" / "data.py")
    assert spec is not None
    assert spec.loader is not None
    data = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(data)
    monkeypatch.setenv("DEFL_NODES", "4")
    parts = []
    for node in range(4):
        monkeypatch.setenv("DEFL_NODE", str(node))
        parts.append(data.part_of(list(range(10))))

    assert sorted(row for part in parts for row in part) == list(range(10))
    assert {len(part) for part in parts} == {2, 3}


def test_the_iris_data_is_fishers(tmp_path: Path) -> None:
    """50 of each species; the means are those of table 1 of the 1936 paper."""
    new_project(tmp_path / "mine", "numpy")
    rows = (tmp_path / "mine" / "iris.csv").read_text(encoding="utf-8").splitlines()[1:]
    for species, means in {
        "setosa": (5.006, 3.428, 1.462, 0.246),
        "versicolor": (5.936, 2.770, 4.260, 1.326),
        "virginica": (6.588, 2.974, 5.552, 2.026),
    }.items():
        of_it = [row.split(",") for row in rows if row.endswith(species)]
        assert len(of_it) == 50
        for column, mean in enumerate(means):
            assert sum(float(row[column]) for row in of_it) / 50 == pytest.approx(mean)


def hospitals(folder: Path) -> Any:
    new_project(folder, "hospitals")
    spec = importlib.util.spec_from_file_location("hospitals", folder / "data.py")
    assert spec is not None
    assert spec.loader is not None
    data = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(data)
    return data


def test_the_hospitals_are_four_with_their_own_patients_and_both_classes(tmp_path: Path) -> None:
    data = hospitals(tmp_path / "heart")
    sizes, ill = {}, {}
    for name in data.HOSPITALS:
        inputs, labels, test_inputs, test_labels = data.load(name)
        assert inputs.shape[1] == test_inputs.shape[1] == 13
        assert set(labels) == {0, 1}
        assert np.abs(inputs.mean(axis=0)).max() < 1e-5
        sizes[name] = (len(labels), len(test_labels))
        ill[name] = round(100 * np.concatenate([labels, test_labels]).mean())

    assert sizes == {
        "cleveland": (202, 101),
        "hungarian": (174, 87),
        "switzerland": (31, 15),
        "va": (86, 44),
    }
    assert ill == {"cleveland": 46, "hungarian": 38, "switzerland": 98, "va": 78}
    settings = tomllib.loads((tmp_path / "heart" / "defl.toml").read_text(encoding="utf-8"))
    assert list(settings["weights"].values()) == [train for train, _ in sizes.values()]


def test_hospitals_refuse_another_number_of_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = hospitals(tmp_path / "heart")
    monkeypatch.setenv("DEFL_NODES", "7")

    with pytest.raises(UserError, match="there are 4 hospitals: run this project with 4 nodes"):
        data.hospital()


@pytest.mark.slow
def test_hospitals_are_compared_with_each_alone(tmp_path: Path, alone: dict[str, str]) -> None:
    hospitals(tmp_path / "heart")

    done = python(str(tmp_path / "heart" / "alone.py"), env=alone)

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    names = [line.split()[0] for line in lines[1:]]
    assert names == ["cleveland", "hungarian", "switzerland", "va"]
    assert 0.6 < float(lines[1].split()[4]) < 0.9


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("exists", "already exists; choose another name"),
        ("link", "already exists; choose another name"),
        ("no such folder/mine", "no such folder; make it first"),
        ("-x", "cannot name a project: begin with a letter"),
        ("a b", "'a b' cannot name a project"),
        ("x" * 101, "100 at most"),
        ("..", "cannot name a project"),
    ],
)
def test_an_invalid_name_is_refused_and_nothing_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exists").mkdir()
    (tmp_path / "link").symlink_to("nowhere")

    result = CliRunner().invoke(cli, ["new", "--", name])

    assert isinstance(result.exception, UserError)
    assert says in str(result.exception)
    assert {path.name for path in tmp_path.rglob("*")} == {"exists", "link"}


def test_a_folder_that_cannot_be_written_is_a_users_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(shutil, "copytree", refuse)

    result = CliRunner().invoke(cli, ["new", str(tmp_path / "mine")])

    assert isinstance(result.exception, UserError)
    assert str(result.exception) == f"{tmp_path / 'mine'}: cannot be written: Permission denied"


def test_a_template_whose_package_is_missing_says_what_to_install(
    tmp_path: Path, alone: dict[str, str]
) -> None:
    without = {**alone, "HIDDEN": "torch"}
    project = tmp_path / "mine"
    command = ("-m", "defl.cli.main")

    refused = python(*command, "new", str(project), "--template", "torch", env=without)
    assert refused.returncode == 2
    assert "the template torch needs torch, which is not installed; " in refused.stderr
    assert f"install it with: {install_command('torch', 'sklearn')}" in refused.stderr
    assert not project.exists()

    new_project(project, "torch")
    ran = python(*command, "run", str(project), env=without)
    assert ran.returncode == 2
    assert "no module named 'torch'" in ran.stderr
    assert f"install it with: {install_command('torch')}" in ran.stderr


IMPORT_ALL = """
import importlib, pkgutil, defl

failed = []
for module in pkgutil.walk_packages(defl.__path__, "defl."):
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        failed.append(module.name)
print(*failed)
"""


def test_only_the_ready_made_clients_and_models_need_a_learning_framework(
    alone: dict[str, str],
) -> None:
    hidden = "torch torchvision sklearn scipy flwr byzfl matplotlib rich"

    done = python("-c", IMPORT_ALL, env={**alone, "HIDDEN": hidden})

    assert done.returncode == 0, done.stderr
    failed = set(done.stdout.split())
    assert {"defl.clients.torch", "defl.clients.sklearn"} <= failed
    learning = ("defl.clients.", "defl.lab.models.")
    assert {name for name in failed if not name.startswith(learning)} == set()
