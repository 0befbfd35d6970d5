"""`defl paper`: checks its arguments first, writes its files, and can rewrite the stored report."""

import platform
import re
import shutil
from pathlib import Path

import pytest
import tiny
from click.testing import CliRunner

from defl.cli.main import cli
from defl.errors import UserError
from defl.lab.experiments.paper import plots, report
from defl.lab.experiments.paper.machine import MACHINES_FILE, machine, recorded_machines
from defl.lab.experiments.paper.run import CELLS_FILE
from defl.lab.experiments.paper.settings import DataKind, Scale
from support.in_driver import opened_in_driver

DOCS = Path(__file__).parents[3] / "docs"


def run(*arguments: str) -> str:
    done = CliRunner().invoke(
        cli, ["paper", *arguments], catch_exceptions=False, env={"DEFL_DATA": ""}
    )
    assert done.exit_code == 0, done.output
    return done.stdout


def test_missing_data_folder_is_refused_with_the_option_to_use() -> None:
    with pytest.raises(UserError, match="--data FOLDER or DEFL_DATA"):
        run("table1")


@pytest.mark.parametrize("option", [("--repeat", "0"), ("--engine", "processes:0")])
def test_zero_repeats_or_processes_are_refused(option: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least 1"):
        run("table1", *option, "--data", str(tmp_path))


def test_command_writes_all_files_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("defl.cli.paper.opened", opened_in_driver)
    monkeypatch.setitem(report.TABLES, "table2", tiny.TABLE)
    monkeypatch.setitem(report.SETTINGS, (Scale.QUICK, DataKind.IMAGES), tiny.SETTING)
    arguments = ("table2", "--data", str(tmp_path), "--out", str(tmp_path))

    printed = run(*arguments)
    lines = (tmp_path / CELLS_FILE).read_text(encoding="utf-8").split()
    again = run(*arguments, "--resume")

    assert {path.suffix for path in tmp_path.glob("table2.*")} == {
        ".csv", ".json", ".md", ".png", ".svg",
    }  # fmt: skip
    assert len(re.findall(r"^\| \d\+\d \(beta=\S+ \| ", printed, re.MULTILINE)) == 2
    assert re.search(r"\*\*\d+ of \d+ statements of the paper hold\*\*", printed)
    assert again == printed
    assert recorded_machines(tmp_path) == [machine()]
    assert (tmp_path / CELLS_FILE).read_text(encoding="utf-8").split() == lines


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_bytes(b"")
    page = tmp_path / "file" / "page.md"
    with pytest.raises(UserError, match=r"cannot be written to .* \(--report\)"):
        run("all", "--out", str(tmp_path / "out"), "--report", str(page))


def test_report_page_of_a_single_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="defl paper all"):
        run("table1", "--data", str(tmp_path), "--report", str(tmp_path / "page.md"))


def test_all_writes_one_page_with_links_relative_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("defl.cli.paper.opened", opened_in_driver)
    monkeypatch.setattr("defl.cli.paper.PARTS", ("table2", "study"))
    monkeypatch.setitem(report.TABLES, "table2", tiny.TABLE)
    monkeypatch.setitem(report.SETTINGS, (Scale.QUICK, DataKind.IMAGES), tiny.SETTING)
    page, out = tmp_path / "docs" / "RESULTS.md", tmp_path / "docs" / "results"
    arguments = ("all", "--data", str(tmp_path), "--out", str(out))

    assert run(*arguments, "--report", str(page)) == f"written: {page}\n"
    text = page.read_text(encoding="utf-8")

    pictures = re.findall(r"!\[.*\]\((.*)\)", text)
    assert pictures == ["results/table2.png", "results/study.png"]
    links = re.findall(r"\(\[all, with numbers\]\((.*)\)\)", text)
    assert links == ["results/table2.md", "results/study.md"]
    assert all((page.parent / file).is_file() for file in (*pictures, *links))
    assert "defl paper all --scale quick --repeat 1" in text
    assert re.search(r"\*\*\d+ of \d+ statements of the paper hold here\*\*", text)
    assert f"Measured with {machine()}." in text
    assert "\n## Table 2. the digits\n" in text
    assert re.search(r"19 cells took \d+ minutes\.", text)  # one is in both parts

    run(*arguments, "--resume")
    assert "![Table 2. the digits](table2.png)" in (out / "RESULTS.md").read_text(encoding="utf-8")


def test_machine_line_has_versions_and_sizes_but_no_host_name_or_path() -> None:
    line = machine()

    assert re.match(
        r"defl \S+, Python 3\.\d+\.\d+\S*, torch \d\S+, numpy \d\S+.*; \S+ \S+, \d+ cores", line
    )
    assert re.search(r", [1-9]\d* GiB of memory$", line)
    assert platform.node() not in line
    assert "/" not in line


# Committed reports: their scale, the folder of their cells and their page.
REPORTS = {
    "transfer": (DOCS / "results", DOCS / "RESULTS.md"),
    "mlp": (DOCS / "results" / "mlp", DOCS / "results" / "mlp" / "RESULTS.md"),
}


@pytest.fixture(params=REPORTS)
def stored(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A committed report's scale, and its stored cells alone; pictures take seconds, so none."""
    scale = request.param
    original, page = REPORTS[scale]
    folder = tmp_path / original.relative_to(DOCS)
    folder.mkdir(parents=True)
    for name in (CELLS_FILE, MACHINES_FILE):
        shutil.copy(original / name, folder)
    for name in ("plot_table", "plot_costs", "plot_traffic", "plot_study"):
        monkeypatch.setattr(plots, name, lambda *_: None)
    return scale, folder, tmp_path / page.relative_to(DOCS)


def rewrite(stored: tuple[str, Path, Path]) -> str:
    scale, folder, page = stored
    run("all", "--scale", scale, "--stored", "--out", str(folder), "--report", str(page))
    return page.read_text(encoding="utf-8")


def test_committed_report_is_what_the_command_writes_from_the_stored_cells(stored) -> None:
    scale, folder, page = stored
    committed_folder, committed_page = REPORTS[scale]

    assert rewrite(stored) == committed_page.read_text(encoding="utf-8")

    for path in committed_folder.iterdir():
        if path.suffix not in {".png", ".svg"} and path.is_file():
            assert (folder / path.name).read_bytes() == path.read_bytes()
    for picture in re.findall(r"!\[.*\]\((.*)\)", page.read_text("utf-8")):
        assert (committed_page.parent / picture).is_file()


def test_report_names_the_version_that_measured_not_the_one_that_writes(
    stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("defl.__version__", "99.0")

    assert "Measured with defl 0.1.0, " in rewrite(stored)
    assert "99.0" not in (stored[1] / MACHINES_FILE).read_text(encoding="utf-8")


def test_report_without_a_recorded_machine_says_so(stored) -> None:
    (stored[1] / MACHINES_FILE).unlink()

    assert "The folder does not record what measured its cells." in rewrite(stored)


def test_table_is_written_from_the_stored_cells_with_its_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(report.TABLES, "table2", tiny.TABLE)
    monkeypatch.setitem(report.SETTINGS, (Scale.QUICK, DataKind.IMAGES), tiny.SETTING)
    arguments = ("table2", "--data", str(tmp_path), "--out", str(tmp_path))
    run(*arguments, "--engine", "processes:1")
    log = tmp_path / CELLS_FILE
    log.write_bytes(b"\n".join([line for line in log.read_bytes().split(b"\n") if line][:-1]))

    printed = run("table2", "--stored", "--out", str(tmp_path))

    assert printed.count("not measured |") == 1
    assert "1 of 8 cells are not measured; `defl paper table2 --scale quick --resume`" in printed
    with pytest.raises(UserError, match="study: 11 of 12 cells are not measured"):
        run("study", "--stored", "--out", str(tmp_path))
