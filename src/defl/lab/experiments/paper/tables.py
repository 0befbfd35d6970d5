"""Tables 1 to 4: which cells they need, and their numbers beside the paper's."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from io import StringIO
from statistics import mean, stdev

from defl.lab.experiments.cells import SYSTEMS
from defl.lab.experiments.paper.accuracy import AccuracyCell, AccuracyResult
from defl.lab.experiments.paper.settings import SYSTEM_WORDS, Row, Setting, Table
from defl.lab.experiments.threats import NONE

Cells = dict[tuple[str, str, str], list[AccuracyCell]]  # dataset, setting, system -> its repeats


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One number of a table."""

    dataset: str
    setting: str
    system: str
    accuracy: float  # mean over the repeats
    spread: float | None  # standard deviation; None for a single run
    paper: float
    repeats: int
    runs: tuple[float, ...] = ()  # each repeat's accuracy, by seed

    @property
    def difference(self) -> float:
        return self.accuracy - self.paper


def paper_accuracies() -> dict[tuple[str, str, str, str], float]:
    """The paper's accuracies by table, dataset, setting and system."""
    text = files("defl.lab.experiments.paper").joinpath("accuracy.csv").read_text(encoding="utf-8")
    return {
        (row["table"], row["dataset"], row["setting"], row["system"]): float(row["accuracy"])
        for row in csv.DictReader(StringIO(text))
    }


def planned(table: Table, setting: Setting, repeats: int) -> Cells:
    return {
        (dataset, row.words, system): [
            cell_of(row, alpha, system, setting, seed) for seed in range(1, repeats + 1)
        ]
        for dataset, alpha in table.datasets
        for row in table.rows
        for system in table.systems
    }


def cell_of(
    row: Row, alpha: float | None, system: str, setting: Setting, seed: int
) -> AccuracyCell:
    robust = SYSTEMS[system] == "multi_krum"
    return AccuracyCell(
        system,
        row.nodes,
        row.byzantine,
        row.threat,
        alpha,
        setting.learning,
        setting.rounds,
        setting.rounds_judged,
        seed,
        rule=setting.multi_krum if robust else None,
    )


def entries(
    table: Table, cells: Cells, results: Mapping[AccuracyCell, AccuracyResult]
) -> list[TableEntry]:
    """The numbers whose repeats are all measured."""
    paper = paper_accuracies()
    rows = []
    for (dataset, setting, system), repeats in cells.items():
        if any(cell not in results for cell in repeats):
            continue
        runs = tuple(results[cell].accuracy for cell in repeats)
        spread = stdev(runs) if len(runs) > 1 else None
        theirs = paper[table.paper_name, dataset, setting, system]
        rows.append(
            TableEntry(dataset, setting, system, mean(runs), spread, theirs, len(runs), runs)
        )
    return rows


def csv_rows(entries: Sequence[TableEntry]) -> list[dict[str, str | int]]:
    return [
        {
            "dataset": entry.dataset,
            "setting": entry.setting,
            "system": SYSTEM_WORDS[entry.system],
            "accuracy": f"{entry.accuracy:.4f}",
            "spread": "" if entry.spread is None else f"{entry.spread:.4f}",
            "paper": f"{entry.paper:.3f}",
            "difference": f"{entry.difference:+.4f}",
            "repeats": entry.repeats,
        }
        for entry in entries
    ]


def as_markdown(table: Table, entries: Sequence[TableEntry], setting: str) -> list[str]:
    """One table for each data set: our accuracy beside the paper's."""
    by_place = {(e.dataset, e.setting, e.system): e for e in entries}
    repeats = entries[0].repeats if entries else 0
    ours = "one run" if repeats == 1 else f"mean ± standard deviation of {repeats} runs"
    lines = [f"Accuracy **here** ({ours}) / in the paper. {setting}"]
    for dataset, _ in table.datasets:
        words = [SYSTEM_WORDS[system] for system in table.systems]
        lines += ["", f"| {dataset} | " + " | ".join(words) + " |"]
        lines.append("|---" * (len(words) + 1) + "|")
        for row in table.rows:
            places = [(dataset, row.words, system) for system in table.systems]
            numbers = [_shown(by_place.get(place)) for place in places]
            attack = "No attack" if row.words == NONE.words else row.words
            lines.append(f"| {attack} | " + " | ".join(numbers) + " |")
    return lines


def _shown(entry: TableEntry | None) -> str:
    if entry is None:
        return "not measured"
    spread = "" if entry.spread is None else f" ± {entry.spread:.3f}"
    return f"**{entry.accuracy:.3f}**{spread} / {entry.paper:.3f}"
