"""Cells run one by one, remembered, and taken up again: `cells.jsonl` has a line for each.

A cell's settings are its key, so that tables that share a cell share its result, and a run that
was stopped goes on with what is missing.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import msgspec
from msgspec import Struct

from defl.lab.experiments.paper.accuracy import AccuracyCell, AccuracyResult
from defl.lab.experiments.paper.costs import CostCell, CostResult
from defl.lab.experiments.paper.traffic import TrafficCell, TrafficResult
from defl.node.work.orphans import die_with

CELLS_FILE = "cells.jsonl"

AnyCell = AccuracyCell | CostCell | TrafficCell
AnyResult = AccuracyResult | CostResult | TrafficResult
Results = dict[AnyCell, AnyResult]


class Line(Struct, frozen=True):
    cell: AnyCell
    result: AnyResult
    seconds: float | None = None  # that it took; older lines do not say


@dataclass(frozen=True, slots=True)
class PaperProgress:
    done: int
    total: int
    seconds: float  # since the start
    left_s: float | None  # None: nothing has been measured yet
    cell: AnyCell | None  # the one that is done


Tell = Callable[[PaperProgress], None]


def finished(folder: Path) -> Results:
    """What earlier runs left."""
    return {cell: line.result for cell, line in _lines(folder).items()}


def seconds_taken(folder: Path) -> dict[AnyCell, float]:
    """By finished cells, as far as it is known."""
    lines = _lines(folder)
    return {cell: line.seconds for cell, line in lines.items() if line.seconds is not None}


def _lines(folder: Path) -> dict[AnyCell, Line]:
    """A line that a crash cut short, or of an older form, does not count, and of a cell that was
    run twice the later one does."""
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
    processes: int,
    resume: bool,
    tell: Tell,
) -> Results:
    """The results of these cells; with `resume` only those are run that the folder lacks."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = list(dict.fromkeys(cells))
    known = finished(folder) if resume else {}
    done: Results = {cell: known[cell] for cell in wanted if cell in known}
    missing = [cell for cell in wanted if cell not in done]
    started, effort_done = time.monotonic(), 0.0
    tell(PaperProgress(len(done), len(wanted), 0.0, None, None))
    with (folder / CELLS_FILE).open("ab") as log:
        log.write(b"\n")  # ends a line that a crash cut short
        for line in _results(missing, data, processes):
            cell = line.cell
            done[cell] = line.result
            log.write(msgspec.json.encode(line) + b"\n")
            log.flush()
            effort_done += cell.effort
            seconds = time.monotonic() - started
            effort_left = sum(left.effort for left in missing if left not in done)
            left_s = seconds * effort_left / effort_done
            tell(PaperProgress(len(done), len(wanted), seconds, left_s, cell))
    return {cell: done[cell] for cell in wanted}


def _results(cells: Sequence[AnyCell], data: Path | None, processes: int) -> Iterator[Line]:
    """Real processes are measured one cell at a time, after what is simulated."""
    measured = [cell for cell in cells if isinstance(cell, CostCell)]
    simulated = [cell for cell in cells if not isinstance(cell, CostCell)]
    # The processes fill the cores; more threads in each would only disturb them.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic sums on GPUs
    if processes == 1:
        yield from (timed(cell, data) for cell in simulated)
    elif simulated:
        pool = ProcessPoolExecutor(
            processes, get_context("spawn"), initializer=die_with, initargs=(os.getpid(),)
        )
        try:
            waiting = [pool.submit(timed, cell, data) for cell in simulated]
            yield from (ended.result() for ended in as_completed(waiting))
        finally:
            pool.shutdown(cancel_futures=True)
    yield from (timed(cell, data) for cell in measured)


def timed(cell: AnyCell, data: Path | None) -> Line:
    started = time.monotonic()
    result = cell.run(data)
    return Line(cell, result, time.monotonic() - started)
