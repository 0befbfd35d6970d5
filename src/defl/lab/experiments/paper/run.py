"""Runs cells and stores each result as a line of `cells.jsonl`.

A cell's settings are its key, so tables that share a cell share its result, and an interrupted run
resumes with the cells that are missing.
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
from defl.lab.experiments.paper.machine import record_machine
from defl.lab.experiments.paper.traffic import TrafficCell, TrafficResult
from defl.node.work.orphans import die_with

CELLS_FILE = "cells.jsonl"

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
    processes: int,
    resume: bool,
    on_progress: OnProgress,
) -> Results:
    """Run the cells and return their results; with `resume`, run only those the folder lacks."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = list(dict.fromkeys(cells))
    stored = finished(folder) if resume else {}
    done: Results = {cell: stored[cell] for cell in wanted if cell in stored}
    missing = [cell for cell in wanted if cell not in done]
    started, effort_done = time.monotonic(), 0.0
    on_progress(PaperProgress(len(done), len(wanted), 0.0, None, None))
    if not missing:
        return {cell: done[cell] for cell in wanted}
    record_machine(folder)
    with (folder / CELLS_FILE).open("ab") as log:
        log.write(b"\n")  # ends a line that a crash truncated
        for line in _results(missing, data, processes):
            cell = line.cell
            done[cell] = line.result
            log.write(msgspec.json.encode(line) + b"\n")
            log.flush()
            effort_done += cell.effort
            seconds = time.monotonic() - started
            effort_left = sum(left.effort for left in missing if left not in done)
            left_s = seconds * effort_left / effort_done
            on_progress(PaperProgress(len(done), len(wanted), seconds, left_s, cell))
    return {cell: done[cell] for cell in wanted}


def _results(cells: Sequence[AnyCell], data: Path | None, processes: int) -> Iterator[Line]:
    """Simulated cells first, in parallel; then real processes, one cell at a time."""
    measured = [cell for cell in cells if isinstance(cell, CostCell)]
    simulated = [cell for cell in cells if not isinstance(cell, CostCell)]
    # The processes already fill the cores; more threads would slow them down.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for deterministic sums on GPUs
    if processes == 1:
        yield from (run_timed(cell, data) for cell in simulated)
    elif simulated:
        pool = ProcessPoolExecutor(
            processes, get_context("spawn"), initializer=die_with, initargs=(os.getpid(),)
        )
        try:
            waiting = [pool.submit(run_timed, cell, data) for cell in simulated]
            yield from (ended.result() for ended in as_completed(waiting))
        finally:
            pool.shutdown(cancel_futures=True)
    yield from (run_timed(cell, data) for cell in measured)


def run_timed(cell: AnyCell, data: Path | None) -> Line:
    started = time.monotonic()
    result = cell.run(data)
    return Line(cell, result, time.monotonic() - started)
