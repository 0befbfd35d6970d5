"""Tables 1 to 4: which cells they need, and their numbers beside the paper's."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from io import StringIO
from statistics import mean, stdev
from typing import Any

from defl.lab.experiments.cells import SYSTEMS
from defl.lab.experiments.paper.accuracy import AccuracyCell, AccuracyResult
from defl.lab.experiments.paper.settings import SYSTEM_WORDS, Row, Setting, Table

Cells = dict[tuple[str, str, str], list[AccuracyCell]]  # dataset, setting, system -> its repeats


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One number of a table."""

    dataset: str
    setting: str
    system: str
    accuracy: float  # mean over the repeats
    spread: float | None  # their standard deviation; None if there is one only
    paper: float
    repeats: int

    @property
    def difference(self) -> float:
        return self.accuracy - self.paper


def paper_accuracies() -> dict[tuple[str, str, str, str], float]:
    """The paper's own, by table, dataset, setting and system."""
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
        for system in SYSTEM_WORDS
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
    paper = paper_accuracies()
    made = []
    for (dataset, setting, system), repeats in cells.items():
        found = [results[cell].accuracy for cell in repeats]
        spread = stdev(found) if len(found) > 1 else None
        theirs = paper[table.name, dataset, setting, system]
        made.append(TableEntry(dataset, setting, system, mean(found), spread, theirs, len(found)))
    return made


def as_json(made: Sequence[TableEntry]) -> list[dict[str, Any]]:
    return [asdict(entry) for entry in made]


def as_csv(made: Sequence[TableEntry]) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["dataset", "setting", "system", "accuracy", "spread", "paper", "difference", "repeats"]
    )
    for entry in made:
        spread = "" if entry.spread is None else f"{entry.spread:.4f}"
        writer.writerow(
            [
                entry.dataset,
                entry.setting,
                SYSTEM_WORDS[entry.system],
                f"{entry.accuracy:.4f}",
                spread,
                f"{entry.paper:.3f}",
                f"{entry.difference:+.4f}",
                entry.repeats,
            ]
        )
    return text.getvalue()


def as_markdown(table: Table, made: Sequence[TableEntry]) -> str:
    """One table for each data set: ours, the paper's, the difference."""
    by_place = {(e.dataset, e.setting, e.system): e for e in made}
    repeats = made[0].repeats
    spread = " ± standard deviation" if repeats > 1 else ""
    lines = [
        f"### {table.heading}",
        "",
        (
            f"Ours{spread} ({repeats} repeat{'s' if repeats > 1 else ''}) / the paper's "
            "(difference)."
        ),
    ]
    for dataset, _ in table.datasets:
        lines += ["", f"| {dataset} | " + " | ".join(SYSTEM_WORDS.values()) + " |"]
        lines.append("|---" * (len(SYSTEM_WORDS) + 1) + "|")
        for row in table.rows:
            numbers = [_shown(by_place[dataset, row.words, system]) for system in SYSTEM_WORDS]
            lines.append(f"| {row.words} | " + " | ".join(numbers) + " |")
    return "\n".join(lines) + "\n"


def _shown(entry: TableEntry) -> str:
    spread = "" if entry.spread is None else f" ± {entry.spread:.3f}"
    return f"**{entry.accuracy:.3f}**{spread} / {entry.paper:.3f} ({entry.difference:+.3f})"
