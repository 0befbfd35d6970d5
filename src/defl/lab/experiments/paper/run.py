"""Runs cells and stores each result as a line of `cells.jsonl`.

A cell's settings are its key, so tables that share a cell share its result, and an interrupted run
resumes with the cells that are missing.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from defl.engine.book import Engine, values
from defl.engine.tasks import EngineTask
from defl.lab.experiments.cell_log import CELLS_FILE, append, appending
from defl.lab.experiments.paper.accuracy import AccuracyCell, AccuracyResult
from defl.lab.experiments.paper.costs import CostCell, CostResult
from defl.lab.experiments.paper.machine import record_machine
from defl.lab.experiments.paper.traffic import TrafficCell, TrafficResult

AnyCell = AccuracyCell | CostCell | TrafficCell
AnyResult = AccuracyResult | CostResult | TrafficResult
Results = dict[AnyCell, AnyResult]


class Line(Struct, frozen=True):
    cell: AnyCell
    result: AnyResult
    seconds: float | None = None  # how long it took; older lines lack it


@dataclass(frozen=True, slots=True)
class PaperProgress:
    done: int
    total: int
    seconds: float  # since the start
    left_s: float | None  # None before the first measurement
    cell: AnyCell | None  # the one just finished


OnProgress = Callable[[PaperProgress], None]


def finished(folder: Path) -> Results:
    """The results that earlier runs stored."""
    return {cell: line.result for cell, line in _lines(folder).items()}


def seconds_taken(folder: Path) -> dict[AnyCell, float]:
    """How long finished cells took, where that is recorded."""
    lines = _lines(folder)
    return {cell: line.seconds for cell, line in lines.items() if line.seconds is not None}


def _lines(folder: Path) -> dict[AnyCell, Line]:
    """The last line of each cell, without lines that a crash truncated or of an older form."""
    path = folder / CELLS_FILE
    lines: dict[AnyCell, Line] = {}
    if not path.is_file():
        return lines
    decoder = msgspec.json.Decoder(Line)
    for text in path.read_bytes().splitlines():
        try:
            line = decoder.decode(text)
        except (msgspec.DecodeError, msgspec.ValidationError):
            continue
        lines[line.cell] = line
    return lines


def run_cells(
    cells: Sequence[AnyCell],
    folder: Path,
    data: Path | None,
    *,
    engine: Engine,
    resume: bool,
    on_progress: OnProgress,
) -> Results:
    """Run the cells and return their results; with `resume`, run only those the folder lacks."""
    wanted = list(dict.fromkeys(cells))
    stored = finished(folder) if resume else {}
    done: Results = {cell: stored[cell] for cell in wanted if cell in stored}
    missing = [cell for cell in wanted if cell not in done]
    started, effort_done = time.monotonic(), 0.0
    on_progress(PaperProgress(len(done), len(wanted), 0.0, None, None))
    if not missing:
        return {cell: done[cell] for cell in wanted}
    tasks = [task_of(cell, data) for cell in missing]
    with appending(folder) as log, closing(values(engine, tasks)) as lines:
        record_machine(folder)
        for text in lines:
            line = msgspec.json.decode(text, type=Line)
            cell = line.cell
            done[cell] = line.result
            append(log, text)
            effort_done += cell.effort
            seconds = time.monotonic() - started
            effort_left = sum(left.effort for left in missing if left not in done)
            left_s = seconds * effort_left / effort_done
            on_progress(PaperProgress(len(done), len(wanted), seconds, left_s, cell))
    return {cell: done[cell] for cell in wanted}


class PaperOrder(Struct, frozen=True):
    """A cell as an engine's worker gets it."""

    cell: AnyCell
    data: str | None  # the data folder, at the same place on every machine


def task_of(cell: AnyCell, data: Path | None) -> EngineTask:
    order = PaperOrder(cell, None if data is None else str(data.resolve()))
    measures = "memory and traffic of real processes" if isinstance(cell, CostCell) else None
    return EngineTask("paper.cell", msgspec.json.encode(order), str(cell), measures)


def perform_cell(argument: bytes) -> bytes:
    """In a worker: the cell's line of cells.jsonl."""
    order = msgspec.json.decode(argument, type=PaperOrder)
    started = time.monotonic()
    result = order.cell.run(None if order.data is None else Path(order.data))
    return msgspec.json.encode(Line(order.cell, result, time.monotonic() - started))
