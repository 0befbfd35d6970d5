"""The robustness table: rules x attacks x data splits x federation sizes, cell by cell.

Every finished cell is a line of `cells.jsonl` in the output folder; an interrupted run resumes from
there. When all cells are finished, the table is written as CSV, Markdown and a heat map.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import cache
from math import inf
from pathlib import Path

import msgspec
from msgspec import Struct

from defl.aggregation.rules import rule_named
from defl.clients.prior import Prior
from defl.engine.book import Engine, values
from defl.engine.tasks import EngineTask
from defl.errors import PreconditionBroken, UserError
from defl.lab.datasets.catalogue import fetched, loaded, required
from defl.lab.datasets.feature_images import feature_images
from defl.lab.datasets.hashed_words import hashed_words
from defl.lab.datasets.task import Features, Images
from defl.lab.experiments.cell_log import CELLS_FILE, append, appending
from defl.lab.experiments.codec_table import codecs_markdown
from defl.lab.experiments.robustness_cell import (
    NO_ATTACK,
    ROUNDS,
    RobustnessCell,
    RobustnessResult,
    Weighting,
    run_cell,
)
from defl.lab.experiments.robustness_goals import goals_markdown
from defl.lab.experiments.robustness_sizes import (
    SIDES,
    check_sizes,
    sides,
    sizes_markdown,
    weightings,
)
from defl.lab.experiments.robustness_table import write_csv, write_tables
from defl.schema import Codec

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
DATASETS = ("mnist", "digits", "sentiment140", "cifar-10-features")


def planned(
    rules: Sequence[str],
    attacks: Sequence[str],
    members: Sequence[int],
    seeds: Sequence[int],
    rounds: int = ROUNDS,
    dataset: str = DATASETS[0],
    *,
    alphas: Sequence[float | None] = ALPHAS,
    codecs: Sequence[Codec] = (Codec.FP32,),
    away: int = 0,
    sizes: str = "",
    attackers: Sequence[str] = (),
    prior: Prior = Prior.NONE,
) -> list[RobustnessCell]:
    """All cells, ordered so that an interrupted run has finished whole seeds."""
    for name in rules:
        rule_named(name)
    unknown = [name for name in attacks if name not in ATTACKS]
    if unknown:
        raise UserError(f"no attack is named {unknown[0]!r}; there are: {', '.join(ATTACKS)}")
    if away > 0 and rounds // 2 + away >= rounds:
        raise UserError(
            f"a member away for {away} rounds from round {rounds // 2} on never returns within "
            f"{rounds} rounds; choose a smaller --away or more --rounds"
        )
    if attackers and not sizes:
        raise UserError("--attacker goes with --sizes: without them no member is the largest")
    if sizes:
        check_sizes(sizes)
        if away or len(codecs) > 1:
            raise UserError("--sizes goes with one codec and without --away")
    return [
        RobustnessCell(
            rule,
            attack,
            alpha,
            count,
            seed,
            rounds,
            dataset,
            codec,
            away,
            sizes,
            side,
            weighting,
            prior,
        )
        for seed in seeds
        for attack in attacks
        for count in members
        for alpha in alphas
        for side in sides(attack, sizes, attackers)
        for rule in rules
        for weighting in weightings(rule, count, sizes)
        for codec in codecs
    ]


def finished(folder: Path) -> dict[RobustnessCell, RobustnessResult]:
    """The cells that earlier runs finished, without lines that a crash truncated or of another
    form."""
    path = folder / CELLS_FILE
    results: dict[RobustnessCell, RobustnessResult] = {}
    if not path.is_file():
        return results
    for line in path.read_bytes().splitlines():
        try:
            record = json.loads(line)
            cell = RobustnessCell(**record["cell"])
            if cell.attack in ATTACKS:
                results[cell] = RobustnessResult(**record["result"])
        except (ValueError, TypeError, KeyError):
            continue
    return results


def run_table(
    cells: Sequence[RobustnessCell],
    data_folder: Path | None,
    folder: Path,
    *,
    engine: Engine,
    progress: Callable[[int, int], None],
) -> dict[RobustnessCell, RobustnessResult]:
    """Run the missing cells, then write the tables of all cells in this folder."""
    with appending(folder) as log:
        done = finished(folder)
        _check_comparable(folder, done, cells)
        for dataset in {
            cell.dataset for cell in cells
        }:  # a wrong folder fails before anything starts
            images(dataset, data_folder)
        missing = [cell for cell in cells if cell not in done]
        progress(len(cells) - len(missing), len(cells))
        with closing(values(engine, [task_of(cell, data_folder) for cell in missing])) as lines:
            for line in lines:
                cell, result = decode_line(line)
                done[cell] = result
                record = {"cell": asdict(cell), "result": asdict(result)}
                append(log, json.dumps(record).encode())
                progress(sum(cell in done for cell in cells), len(cells))
    every = in_order(done)
    if by_size := {cell: result for cell, result in every.items() if cell.sizes}:
        write_csv(by_size, folder / "sizes.csv")
        (folder / "sizes.md").write_text(sizes_markdown(by_size), encoding="utf-8")
    ordered = {cell: result for cell, result in every.items() if not cell.sizes}
    if not ordered:
        return done
    write_tables(ordered, folder)
    if comparison := codecs_markdown(ordered):
        (folder / "codecs.md").write_text(comparison, encoding="utf-8")
    if judged := goals_markdown(ordered):
        (folder / "goals.md").write_text(judged, encoding="utf-8")
    return done


def _check_comparable(
    folder: Path, done: Iterable[RobustnessCell], cells: Iterable[RobustnessCell]
) -> None:
    """One folder holds results on one data set and with one kind of client."""

    def kinds(some: Iterable[RobustnessCell]) -> set[str]:
        return {f"{cell.dataset} with the prior {cell.prior}" for cell in some}

    others = kinds(done) - kinds(cells)
    if others:
        raise UserError(
            f"{folder} holds results on {', '.join(sorted(others))}, which do not compare with "
            f"{', '.join(sorted(kinds(cells)))}: name another folder (--out)"
        )


def in_order(
    results: dict[RobustnessCell, RobustnessResult],
) -> dict[RobustnessCell, RobustnessResult]:
    """By seed, then in the table's order of attacks and rules."""

    def place(cell: RobustnessCell) -> tuple[object, ...]:
        smoothest_first = -(cell.alpha or inf)
        return (
            cell.seed,
            ATTACKS.index(cell.attack),
            cell.members,
            smoothest_first,
            [*RULES, cell.rule].index(cell.rule),
            [*Codec].index(Codec(cell.codec)),
            cell.rounds,
            cell.away,
            (cell.sizes, SIDES.index(cell.attacker), [*Weighting].index(Weighting(cell.weighting))),
        )

    return {cell: results[cell] for cell in sorted(results, key=place)}


class RobustnessOrder(Struct, frozen=True):
    """A cell as an engine's worker gets it."""

    cell: RobustnessCell
    data: str | None  # the data folder, at the same place on every machine


def task_of(cell: RobustnessCell, data_folder: Path | None) -> EngineTask:
    data = None if data_folder is None else str(data_folder.resolve())
    order = msgspec.msgpack.encode(RobustnessOrder(cell, data))
    return EngineTask("robustness.cell", order, str(cell))


def perform_cell(argument: bytes) -> bytes:
    """In a worker; msgpack, since JSON has no NaN for a rule that refused."""
    order = msgspec.msgpack.decode(argument, type=RobustnessOrder)
    data = images(order.cell.dataset, None if order.data is None else Path(order.data))
    return msgspec.msgpack.encode((order.cell, run_cell(order.cell, data)))


def decode_line(line: bytes) -> tuple[RobustnessCell, RobustnessResult]:
    return msgspec.msgpack.decode(line, type=tuple[RobustnessCell, RobustnessResult])


@cache
def images(dataset: str, data_folder: Path | None) -> Images:
    """Read once per process, for hundreds of cells."""
    if dataset == "sentiment140":
        return hashed_words(fetched(dataset, required(data_folder))[0])
    data = loaded(dataset, data_folder)
    if isinstance(data, Features):
        return feature_images(data)
    if not isinstance(data, Images):
        raise PreconditionBroken(f"{dataset} has no images")
    return data
