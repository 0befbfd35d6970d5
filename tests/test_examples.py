"""The scripts in examples/ run as they are, in under two minutes each."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
LIMIT_S = 120
TESTED = {"digits_one_attacker.py", "flower_app.py"}


def run_example(name: str, *arguments: str | Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "DEFL_DATA"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def accuracies(table: str) -> list[float]:
    """The accuracy column; `table` starts with its header."""
    rows = table.split("\n\n", maxsplit=1)[0].splitlines()[1:]
    return [float(row.split()[1]) for row in rows]


def test_every_script_is_run_by_a_test() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == TESTED


@pytest.mark.slow
def test_one_attacker_destroys_plain_averaging_and_not_the_default_rule(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")

    printed = run_example("digits_one_attacker.py", "--out", tmp_path)

    plain, robust = (accuracies(part) for part in re.split(r"^(?=round )", printed, flags=re.M)[1:])
    assert plain[-1] < 0.3
    assert robust[-1] > 0.85
    assert (tmp_path / "fed_avg.png").stat().st_size > 1000
    assert (tmp_path / "adaptive.png").stat().st_size > 1000


@pytest.mark.slow
def test_a_flower_app_learns_despite_an_attacker_and_its_model_is_proven(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    pytest.importorskip("matplotlib")

    printed = run_example("flower_app.py", "--rounds", "3", "--out", tmp_path / "out")

    assert accuracies(printed[printed.index("round  ") :])[-1] > 0.85
    assert "node-3 (left out by the rule)" in printed
    assert "{'weight': (64, 10), 'bias': (10,)}" in printed
    assert printed.endswith("\n\nproven\n")
