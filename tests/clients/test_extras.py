"""The install command that messages print works for how this copy of DeFL was installed."""

import json
import re
import shlex
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

import defl
from defl.clients.extras import install_command

SOURCE = Path(defl.__file__).parent
REQUIRES = ["click>=8.1", 'torch>=2.4; extra == "torch"', 'scikit-learn>=1.4; extra == "sklearn"']


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A copy in site-packages with metadata that the test sets."""
    origin = SimpleNamespace(text=None)
    monkeypatch.setattr(defl, "__file__", str(tmp_path / "lib/site-packages/defl/__init__.py"))
    distribution = SimpleNamespace(read_text=lambda _: origin.text)
    monkeypatch.setattr(metadata, "distribution", lambda _: distribution)
    monkeypatch.setattr(metadata, "requires", lambda _: REQUIRES)
    return origin


def test_from_a_checkout_the_command_names_it_and_its_constraints() -> None:
    *command, project = shlex.split(install_command("torch", "sklearn"))

    checkout = Path(project.removesuffix("[torch,sklearn]"))
    assert (checkout / "pyproject.toml").exists()
    assert command == ["pip", "install", "-c", str(checkout / "constraints.txt"), "-e"]


def test_a_copy_installed_from_a_checkout_that_is_still_there_names_it(
    installed: SimpleNamespace, tmp_path: Path
) -> None:
    checkout = tmp_path / "my checkout"
    checkout.mkdir()
    (checkout / "constraints.txt").touch()
    installed.text = json.dumps({"url": checkout.as_uri(), "dir_info": {}})

    assert shlex.split(install_command("torch")) == [
        *("pip", "install", "-c", str(checkout / "constraints.txt"), f"{checkout}[torch]")
    ]


@pytest.mark.parametrize(
    "origin",
    [
        None,
        json.dumps({"url": "file:///gone/defl.whl", "archive_info": {}}),
        json.dumps({"url": "file:///gone/checkout", "dir_info": {}}),
    ],
)
def test_from_a_wheel_the_command_names_the_packages_themselves(
    installed: SimpleNamespace, origin: str | None
) -> None:
    installed.text = origin

    assert install_command("torch") == "pip install 'torch>=2.4'"
    assert install_command("torch", "sklearn") == ("pip install 'torch>=2.4' 'scikit-learn>=1.4'")
    assert install_command("mlflow") == "pip install mlflow"


def test_no_message_names_an_unpublished_package() -> None:
    naming = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if "lab" not in path.relative_to(SOURCE).parts
        and re.search(r"pip install '?defl\[", path.read_text(encoding="utf-8"))
    ]

    assert naming == []
