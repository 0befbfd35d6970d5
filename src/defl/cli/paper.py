"""`defl paper`: measures the paper's tables and figures and compares them with its numbers."""

import json
import sys
from pathlib import Path

import click

from defl.cli.data import Bar, data_option
from defl.cli.engine_option import engine_option
from defl.engine.choice import opened
from defl.errors import UserError
from defl.lab.datasets.catalogue import fetched
from defl.lab.experiments.cell_log import make_folder
from defl.lab.experiments.paper.accuracy import AccuracyCell, prepare
from defl.lab.experiments.paper.costs import CostCell
from defl.lab.experiments.paper.page import PAGE_FILE, ReportRequest, write_page
from defl.lab.experiments.paper.plots import require_matplotlib
from defl.lab.experiments.paper.report import ALL, PARTS, PARTS_OF, part_named
from defl.lab.experiments.paper.run import (
    AnyCell,
    PaperProgress,
    finished,
    run_cells,
    seconds_taken,
    task_of,
)
from defl.lab.experiments.paper.settings import REPEATS, Scale

PROGRESS_EVERY_S = 5.0


@click.command()
@click.argument("part_name", metavar="PART", type=click.Choice([*PARTS, ALL]))
@click.option(
    "--scale",
    type=click.Choice([scale.value for scale in Scale]),
    default=Scale.QUICK.value,
    show_default=True,
    help="quick: minutes; transfer: a linear layer on a frozen network's features, half an hour a "
    "table on 2 cores; cpu: a convolutional network; mlp: a hidden layer; paper: on GPUs.",
)
@click.option(
    "--repeat",
    type=int,
    help="Runs of each cell, with seeds 1 to K.  [default: 1; transfer: 5; paper: 10]",
)
@click.option("--resume", is_flag=True, help="Keep the cells that the folder already has.")
@click.option(
    "--stored",
    is_flag=True,
    help="Measure nothing: write from the cells that the folder has, in whole repeats.",
)
@engine_option("processes:2", "Simulated cells")
@click.option(
    "--gpus-per-cell",
    default=0.0,
    help="On Ray: GPUs of each cell, such as 1 or 0.5 (two cells share one).  [default: 0]",
)
@data_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for results.  [default: build/paper/SCALE]",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the page of `all`; it links to the pictures in --out.  "
    f"[default: {PAGE_FILE} in --out]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def paper(
    *,
    part_name: str,
    scale: str,
    repeat: int | None,
    resume: bool,
    stored: bool,
    engine: str,
    gpus_per_cell: float,
    data: Path | None,
    out: Path | None,
    report: Path | None,
    as_json: bool,
) -> None:
    """Measure the paper's tables and figures and compare them with its numbers.

    table1 and table2 are accuracies on CIFAR-10, table3 and table4 on Sentiment140; figure2 and
    figure3 are memory, storage and traffic of real processes; analysis compares bytes with the
    formulas; study shows why Multi-Krum costs accuracy without attack; all writes one report.
    Each part is written as .csv, .json, .md, .png and .svg. Finished cells are stored in
    cells.jsonl: an interrupted run resumes with --resume and gives the same tables.

    \b
    Example:
      defl paper table1 --data ~/data
      defl paper all --scale transfer --data ~/data --resume
      defl paper all --scale transfer --stored --out docs/results --report docs/RESULTS.md
      defl paper table1 --scale paper --data /data --engine ray --gpus-per-cell 0.5

    Exit code 0: measured and written; 1: a cell failed; 2: refused, and what to change.
    """
    size = Scale(scale)
    repeats = REPEATS[size] if repeat is None else repeat
    if repeats < 1:
        raise UserError("--repeat must be at least 1")
    if gpus_per_cell < 0:
        raise UserError("--gpus-per-cell must be 0 or more")
    if report is not None and part_name != ALL:
        raise UserError(f"--report needs the page that joins all parts: defl paper {ALL}")
    require_matplotlib()
    folder = out or Path("build/paper") / scale
    names = PARTS_OF.get(size, PARTS) if part_name == ALL else (part_name,)
    parts = [part_named(name, size, repeats) for name in names]
    cells = [cell for part in parts for cell in part.cells()]
    known = finished(folder) if resume or stored else {}
    make_folder(folder)
    if report is not None:
        make_folder(report.parent, "--report")
    unmeasured = [part for part in parts if stored and known.keys().isdisjoint(part.cells())]
    if stored:
        parts = [part.of_whole_repeats(known) for part in parts if part not in unmeasured]
        results = {cell: known[cell] for part in parts for cell in part.cells() if cell in known}
    else:
        missing = [cell for cell in cells if cell not in known]
        with opened(engine, gpus_per_task=gpus_per_cell) as workers:
            workers.check(task_of(cell, data) for cell in missing)
            _prepare_data(missing, data)
            progress = CellProgressLine().show
            results = run_cells(
                cells, folder, data, engine=workers, resume=resume, on_progress=progress
            )
    if not parts:
        raise UserError(f"{folder} has no cells of {part_name}: measure them without --stored")
    written = {part.name: part.write(results, folder) for part in parts}
    if part_name == ALL:
        page = report or folder / PAGE_FILE
        request = ReportRequest(size, repeats, unmeasured)
        write_page(parts, results, seconds_taken(folder), request, folder, page)
        text = f"written: {page}"
    else:
        text = (folder / f"{part_name}.md").read_text(encoding="utf-8")
        click.echo(f"written: {folder / part_name}.csv, .json, .md and pictures", err=True)
    printed = written if part_name == ALL else written[part_name]
    click.echo(json.dumps(printed, indent=1) if as_json else text)


def _prepare_data(cells: list[AnyCell], data: Path | None) -> None:
    """Download or reject missing data before anything is measured."""
    learned = [cell.learning for cell in cells if isinstance(cell, AccuracyCell | CostCell)]
    for name in dict.fromkeys(learning.data for learning in learned):
        if data is None:
            raise UserError("name the data folder: --data FOLDER or DEFL_DATA")
        fetched(name, data, Bar())
    if learned:
        click.echo("reading data ...", err=True)  # minutes at first, then cached
    for learning in dict.fromkeys(learned):
        prepare(learning, data)


class CellProgressLine:
    """Progress on stderr: one changing line on a terminal, otherwise a line every few seconds."""

    def __init__(self) -> None:
        self._last = -PROGRESS_EVERY_S

    def show(self, progress: PaperProgress) -> None:
        over = progress.done == progress.total
        if progress.seconds - self._last < PROGRESS_EVERY_S and not over:
            return
        self._last = progress.seconds
        left = "" if progress.left_s is None else f", about {_minutes(progress.left_s)} left"
        elapsed = _minutes(progress.seconds)
        line = f"{progress.done} of {progress.total} cells, {elapsed} elapsed{left}"
        if sys.stderr.isatty():
            click.echo(f"\r{line:60}", err=True, nl=over)
        else:
            click.echo(line, err=True)


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
