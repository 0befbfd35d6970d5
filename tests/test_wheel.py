"""The wheel, installed into an empty environment outside the checkout, works.

Only this test detects missing package data and undeclared dependencies.
"""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from test_docs import form_of

PROJECT = Path(__file__).parent.parent

# Who was late differs from run to run, and so does a model's digest.
VARIES = re.compile(r"\[#\]|model |left out |round ")

pytestmark = pytest.mark.slow


def run(*command: str | Path, folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script folder of an environment with only the wheel and its dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    quiet = ("--quiet", "--disable-pip-version-check")
    pip = (sys.executable, "-m", "pip")
    run(*pip, "wheel", *quiet, "--no-deps", "--wheel-dir", folder, PROJECT, folder=folder)
    (wheel,) = folder.glob("defl-*.whl")
    venv.create(folder / "empty", with_pip=True)
    scripts = folder / "empty" / "bin"
    constraints = PROJECT / "constraints.txt"
    run(scripts / "pip", "install", *quiet, "-c", constraints, wheel, folder=folder)
    return scripts


def test_demo_runs_from_the_wheel_without_any_extra(installed: Path, tmp_path: Path) -> None:
    """It prints the lines that the README shows, except for what differs between runs."""
    text = run(installed / "defl", "demo", "--nodes", "4", "--rounds", "4", folder=tmp_path)

    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"^\$ defl demo\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert shown is not None
    expected = [line for line in form_of(shown[1]) if not VARIES.match(line)]
    assert len(expected) >= 10
    assert [line for line in expected if line not in form_of(text)] == []


def test_new_project_trains_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    run(installed / "defl", "new", "hospital", "--template", "numpy", folder=tmp_path)
    text = run(installed / "defl", "run", "hospital", "--rounds", "2", folder=tmp_path)

    assert "all members hold the same model" in text


def test_package_is_typed_and_has_one_version(installed: Path, tmp_path: Path) -> None:
    version = run(installed / "defl", "--version", folder=tmp_path).split()[-1]
    python = installed / "python"
    code = "import defl, importlib.metadata as m; print(defl.__version__, m.version('defl'))"

    assert run(python, "-c", code, folder=tmp_path).split() == [version, version]
    typed = "import defl, pathlib; print((pathlib.Path(defl.__file__).parent/'py.typed').exists())"
    assert run(python, "-c", typed, folder=tmp_path).strip() == "True"
