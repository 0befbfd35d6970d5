"""`defl paper`: what is asked for is checked before anything long begins."""

import platform
import re
from pathlib import Path

import pytest
import tiny
from click.testing import CliRunner

from defl.cli.main import cli
from defl.errors import UserError
from defl.lab.experiments.paper import page, report
from defl.lab.experiments.paper.run import CELLS_FILE
from defl.lab.experiments.paper.settings import DataKind, Scale


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
    monkeypatch.setitem(report.SETTINGS, (Scale.QUICK, DataKind.IMAGES), tiny.SETTING)
    asked = ("table2", "--data", str(tmp_path), "--out", str(tmp_path), "--processes", "1")

    printed = run(*asked)
    lines = (tmp_path / CELLS_FILE).read_text(encoding="utf-8").split()
    again = run(*asked, "--resume")

    assert {path.suffix for path in tmp_path.glob("table2.*")} == {
        ".csv", ".json", ".md", ".png", ".svg",
    }  # fmt: skip
    assert len(re.findall(r"^\| \d\+\d \(beta=\S+ \| ", printed, re.MULTILINE)) == 2
    assert "| statement of the paper |" in printed
    assert again == printed
    assert (tmp_path / CELLS_FILE).read_text(encoding="utf-8").split() == lines


def test_a_page_for_one_part_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="defl paper all"):
        run("table1", "--data", str(tmp_path), "--report", str(tmp_path / "page.md"))


def test_all_makes_one_page_whose_pictures_are_found_from_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("defl.cli.paper.PARTS", ("table2", "study"))
    monkeypatch.setitem(report.TABLES, "table2", tiny.TABLE)
    monkeypatch.setitem(report.SETTINGS, (Scale.QUICK, DataKind.IMAGES), tiny.SETTING)
    made, out = tmp_path / "docs" / "RESULTS.md", tmp_path / "docs" / "results"
    asked = ("all", "--data", str(tmp_path), "--out", str(out), "--processes", "1")

    assert run(*asked, "--report", str(made)) == f"written: {made}\n"
    text = made.read_text(encoding="utf-8")

    pictures = re.findall(r"!\[.*\]\((.*)\)", text)
    assert pictures == ["results/table2.png", "results/study.png"]
    assert all((made.parent / picture).is_file() for picture in pictures)
    assert "defl paper all --scale quick --repeat 1" in text
    assert re.search(r"\d+ of \d+ are confirmed", text)
    assert "\n## Table 2. the digits\n" in text
    assert "| statement of the paper |" in text
    assert re.search(r"19 cells took \d+ minutes together\.", text)  # one is in both parts

    run(*asked, "--resume")
    assert "![Table 2. the digits](table2.png)" in (out / "RESULTS.md").read_text(encoding="utf-8")


def test_the_page_tells_the_kind_of_machine_and_no_name_or_path_of_it() -> None:
    told = page.machine()

    assert re.match(
        r"defl \S+, Python 3\.\d+\.\d+\S*, torch \d\S+, numpy \d\S+.*; \S+ \S+, \d+ cores", told
    )
    assert re.search(r", [1-9]\d* GiB of memory$", told)
    assert platform.node() not in told
    assert "/" not in told
