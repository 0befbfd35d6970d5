"""The robustness table: rules x attacks x kinds of data x sizes of federation, cell by cell.

Every finished cell is a line in `cells.jsonl` of the output folder; a run that was stopped goes on
from there. When all cells are there, the table is written as CSV, Markdown and a heat map.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import cache
from math import inf
from multiprocessing import get_context
from pathlib import Path

from defl.errors import PreconditionBroken, UserError
from defl.lab.datasets.catalogue import loaded
from defl.lab.datasets.task import Images
from defl.lab.experiments.robustness_cell import (
    NO_ATTACK,
    ROUNDS,
    RobustnessCell,
    RobustnessResult,
    run_cell,
)
from defl.lab.experiments.robustness_table import written_tables
from defl.node.work.orphans import die_with

RULES = (
    "fed_avg",
    "multi_krum",
    "adaptive",
    "coordinate_median",
    "trimmed_mean",
    "geometric_median",
    "centered_clipping",
    "nearest_neighbour_mixing",
    "smallest_eigenvalue_subset",
)
ATTACKS = (
    NO_ATTACK,
    "gaussian",
    "sign_flip",
    "sign_flip_4",
    "label_flip",
    "alie",
    "inner_product",
    "min_max",
    "min_max_blind",
    "min_sum",
    "mimic",
    "same_value",
    "backdoor",
    "zero",
    "replay",
    "nan",
    "infinity",
    "huge",
    "denormal",
    "against_rule",
)
ALPHAS: tuple[float | None, ...] = (None, 1.0, 0.3)
MEMBERS = (4, 7, 10)
DATASETS = ("mnist", "digits")


def planned(
    rules: Sequence[str],
    attacks: Sequence[str],
    members: Sequence[int],
    seeds: Sequence[int],
    rounds: int = ROUNDS,
    dataset: str = DATASETS[0],
) -> list[RobustnessCell]:
    """All cells, in an order in which a stopped run has whole seeds behind it."""
    return [
        RobustnessCell(rule, attack, alpha, count, seed, rounds, dataset)
        for seed in seeds
        for attack in attacks
        for count in members
        for alpha in ALPHAS
        for rule in rules
    ]


def finished(folder: Path) -> dict[RobustnessCell, RobustnessResult]:
    """The cells that earlier runs finished; a line cut short by a crash does not count."""
    path = folder / "cells.jsonl"
    results: dict[RobustnessCell, RobustnessResult] = {}
    if not path.is_file():
        return results
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        results[RobustnessCell(**record["cell"])] = RobustnessResult(**record["result"])
    return results


def run_table(
    cells: Sequence[RobustnessCell],
    data_folder: Path | None,
    folder: Path,
    *,
    processes: int,
    progress: Callable[[int, int], None],
) -> dict[RobustnessCell, RobustnessResult]:
    """Run what is missing, then write the tables of all that was ever run in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    done = finished(folder)
    datasets = {cell.dataset for cell in cells}
    others = {cell.dataset for cell in done} - datasets
    if others:
        raise UserError(
            f"{folder} holds results on {', '.join(sorted(others))}, which do not compare with "
            f"{', '.join(sorted(datasets))}: name another folder (--out)"
        )
    for dataset in datasets:  # a wrong folder is told before anything starts
        loaded(dataset, data_folder)
    missing = [cell for cell in cells if cell not in done]
    progress(len(cells) - len(missing), len(cells))
    with (folder / "cells.jsonl").open("a", encoding="utf-8") as log:
        log.write("\n")  # ends a line that a crash cut short
        for cell, result in results_of(missing, data_folder, processes):
            done[cell] = result
            log.write(json.dumps({"cell": asdict(cell), "result": asdict(result)}) + "\n")
            log.flush()
            progress(sum(cell in done for cell in cells), len(cells))
    written_tables(in_order(done), folder)
    return done


def in_order(
    results: dict[RobustnessCell, RobustnessResult],
) -> dict[RobustnessCell, RobustnessResult]:
    """Seed by seed, as the table lists rules and attacks."""

    def place(cell: RobustnessCell) -> tuple[int, int, int, float, int]:
        smoothest_first = -(cell.alpha or inf)
        return (
            cell.seed,
            ATTACKS.index(cell.attack),
            cell.members,
            smoothest_first,
            [*RULES, cell.rule].index(cell.rule),
        )

    return {cell: results[cell] for cell in sorted(results, key=place)}


def results_of(
    cells: Sequence[RobustnessCell], data_folder: Path | None, processes: int
) -> Iterator[tuple[RobustnessCell, RobustnessResult]]:
    # One BLAS thread per process: the processes are what fills the cores.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(
        processes, get_context("spawn"), initializer=die_with, initargs=(os.getpid(),)
    ) as pool:
        waiting = {pool.submit(run_in_process, cell, data_folder): cell for cell in cells}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def run_in_process(cell: RobustnessCell, data_folder: Path | None) -> RobustnessResult:
    return run_cell(cell, images(cell.dataset, data_folder))


@cache
def images(dataset: str, data_folder: Path | None) -> Images:
    """Read once per process, for hundreds of cells."""
    data = loaded(dataset, data_folder)
    if not isinstance(data, Images):
        raise PreconditionBroken(f"{dataset} has no images")
    return data
