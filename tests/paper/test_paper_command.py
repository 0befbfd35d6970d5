"""`defl paper`: what is asked for is checked before anything long begins."""

import re
from pathlib import Path

import pytest
import tiny
from click.testing import CliRunner

from defl.cli.main import cli
from defl.errors import UserError
from defl.experiments.paper import report
from defl.experiments.paper.run import CELLS_FILE
from defl.experiments.paper.settings import Kind, Scale


def run(*arguments: str) -> str:
    done = CliRunner().invoke(
        cli, ["paper", *arguments], catch_exceptions=False, env={"DEFL_DATA": ""}
    )
    assert done.exit_code == 0, done.output
    return done.stdout


def test_without_data_it_says_how_to_name_them() -> None:
    with pytest.raises(UserError, match="--data FOLDER or DEFL_DATA"):
        run("table1")


@pytest.mark.parametrize("option", ["--repeat", "--processes"])
def test_fewer_than_one_of_anything_is_refused(option: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least 1"):
        run("table1", option, "0", "--data", str(tmp_path))


def test_the_command_writes_all_files_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(report.TABLES, "table2", tiny.TABLE)
    monkeypatch.setitem(report.SETTINGS, (Scale.QUICK, Kind.IMAGES), tiny.SETTING)
    asked = ("table2", "--data", str(tmp_path), "--out", str(tmp_path), "--processes", "1")

    printed = run(*asked)
    lines = (tmp_path / CELLS_FILE).read_text(encoding="utf-8").split()
    again = run(*asked, "--resume")

    assert {path.suffix for path in tmp_path.glob("table2.*")} == {
        ".csv", ".json", ".md", ".png", ".svg",
    }  # fmt: skip
    assert len(re.findall(r"^\| \d\+\d ", printed, re.MULTILINE)) == 2
    assert "| statement of the paper |" in printed
    assert again == printed
    assert (tmp_path / CELLS_FILE).read_text(encoding="utf-8").split() == lines


def test_the_report_joins_parts_with_pictures_and_the_machine(tmp_path: Path) -> None:
    part = report.part_named("table1", Scale.QUICK, 3)
    (tmp_path / "table1.md").write_text("### Table1. Numbers\n", encoding="utf-8")
    (tmp_path / "table1.png").touch()
    text = report.written_report([part], tmp_path, Scale.QUICK, 3, 61.0).read_text(encoding="utf-8")

    assert "defl paper all --scale quick --repeat 3" in text
    assert "### Table1. Numbers" in text
    assert "![table1](table1.png)" in text
    assert "cores; this run took 1 minutes" in text
