"""`defl paper`: the paper's tables and figures, measured here and set beside its own numbers."""

import json
import sys
from pathlib import Path

import click

from defl.cli.data import Bar, data_option
from defl.errors import UserError
from defl.lab.datasets.catalogue import fetched
from defl.lab.experiments.paper.accuracy import AccuracyCell, prepare
from defl.lab.experiments.paper.costs import CostCell
from defl.lab.experiments.paper.page import PAGE_FILE, ReportRequest, written_page
from defl.lab.experiments.paper.plots import require_matplotlib
from defl.lab.experiments.paper.report import ALL, PARTS, part_named
from defl.lab.experiments.paper.run import AnyCell, PaperProgress, run_cells, seconds_taken
from defl.lab.experiments.paper.settings import REPEATS, Scale

TOLD_EVERY_S = 5.0


@click.command()
@click.argument("what", type=click.Choice([*PARTS, ALL]))
@click.option(
    "--scale",
    type=click.Choice([scale.value for scale in Scale]),
    default=Scale.QUICK.value,
    show_default=True,
    help="quick: minutes; cpu: under an hour a table on 2 cores; paper: the full setting, on GPUs.",
)
@click.option(
    "--repeat", type=int, help="Runs of each cell, with seeds 1 to K.  [default: 1; paper: 10]"
)
@click.option("--resume", is_flag=True, help="Keep the cells that the folder has already.")
@click.option("--processes", default=2, show_default=True, help="Simulated cells run at a time.")
@data_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where results go.  [default: build/paper/SCALE]",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where the page of `all` goes; it refers to the pictures in --out.  "
    f"[default: {PAGE_FILE} in --out]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def paper(
    *,
    what: str,
    scale: str,
    repeat: int | None,
    resume: bool,
    processes: int,
    data: Path | None,
    out: Path | None,
    report: Path | None,
    as_json: bool,
) -> None:
    """Measure the paper's tables and figures, and set them beside its own numbers.

    table1 and table2 are accuracies on CIFAR-10, table3 and table4 on Sentiment140; figure2 and
    figure3 are memory, storage and traffic of real processes; analysis compares bytes with the
    formulas; study shows why Multi-Krum costs accuracy without attack; all makes one report.
    Writes .csv, .json, .md, .png and .svg, and cells.jsonl while it runs: stopped and started
    again with --resume, it goes on where it was and gives the same table.

    \b
    Example:
      defl paper table1 --data ~/data
      defl paper all --scale cpu --data ~/data --resume
      defl paper all --scale cpu --out docs/results --report docs/RESULTS.md

    Exit code 0: measured and written; 2: it cannot be made as asked, and what to change.
    """
    size = Scale(scale)
    repeats = REPEATS[size] if repeat is None else repeat
    if repeats < 1 or processes < 1:
        raise UserError("repeat and processes are at least 1")
    if report is not None and what != ALL:
        raise UserError(f"--report is for the page that joins all parts: defl paper {ALL}")
    require_matplotlib()
    folder = out or Path("build/paper") / scale
    parts = [part_named(name, size, repeats) for name in (PARTS if what == ALL else [what])]
    cells = [cell for part in parts for cell in part.cells()]
    _fetch(cells, data)
    results = run_cells(cells, folder, data, processes=processes, resume=resume, tell=Teller().tell)
    made = {part.name: part.write(results, folder) for part in parts}
    if what == ALL:
        page = report or folder / PAGE_FILE
        seconds = seconds_taken(folder)
        written_page(parts, results, seconds, ReportRequest(size, repeats), folder, page)
        shown = f"written: {page}"
    else:
        shown = (folder / f"{what}.md").read_text(encoding="utf-8")
        click.echo(f"written: {folder / what}.csv, .json, .md and pictures", err=True)
    click.echo(json.dumps(made if what == ALL else made[what], indent=1) if as_json else shown)


def _fetch(cells: list[AnyCell], data: Path | None) -> None:
    """What is missing is said, or downloaded, before anything is run."""
    learned = [cell.learning for cell in cells if isinstance(cell, AccuracyCell | CostCell)]
    for name in dict.fromkeys(learning.data for learning in learned):
        if data is None:
            raise UserError("name the data folder: --data FOLDER or DEFL_DATA")
        fetched(name, data, Bar())
    if learned:
        click.echo("reading data ...", err=True)  # the first time takes minutes, then it is cached
    for learning in dict.fromkeys(learned):
        prepare(learning, data)


class Teller:
    """Progress on stderr: on a terminal one line that changes, otherwise a line now and then."""

    def __init__(self) -> None:
        self._last = -TOLD_EVERY_S

    def tell(self, progress: PaperProgress) -> None:
        over = progress.done == progress.total
        if progress.seconds - self._last < TOLD_EVERY_S and not over:
            return
        self._last = progress.seconds
        left = "" if progress.left_s is None else f", about {_minutes(progress.left_s)} left"
        line = f"{progress.done} of {progress.total} cells, {_minutes(progress.seconds)} gone{left}"
        if sys.stderr.isatty():
            click.echo(f"\r{line:60}", err=True, nl=over)
        else:
            click.echo(line, err=True)


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
