"""What can be asked for, one name each: its cells, and the files that are made of their results.

Every part writes NAME.csv, NAME.json, NAME.md and, where there is something to see, NAME.png and
NAME.svg; `written_report` joins parts into RESULTS.md.
"""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import defl
from defl.experiments.paper import (
    costs,
    costs_report,
    findings,
    plots,
    study,
    tables,
    traffic,
    traffic_report,
)
from defl.experiments.paper.accuracy import AccuracyCell, AccuracyResult
from defl.experiments.paper.costs import CostCell, CostResult
from defl.experiments.paper.run import AnyCell, Results
from defl.experiments.paper.settings import (
    FIGURES,
    SETTINGS,
    SYSTEM_WORDS,
    TABLES,
    Kind,
    Scale,
    Setting,
    Table,
)
from defl.experiments.paper.traffic import TrafficCell, TrafficResult

STUDY = "study"
ANALYSIS = "analysis"
PARTS = (*TABLES, *FIGURES, ANALYSIS, STUDY)
ALL = "all"
REPORT_FILE = "RESULTS.md"


class Part(Protocol):
    @property
    def name(self) -> str: ...

    def cells(self) -> list[AnyCell]: ...

    def write(self, results: Results, folder: Path) -> Any:
        """The files; returns what --json prints."""
        ...


def part_named(name: str, scale: Scale, repeats: int) -> Part:
    if name in TABLES:
        table = TABLES[name]
        return TablePart(name, scale, SETTINGS[scale, table.kind], repeats, table)
    if name in FIGURES:
        return FigurePart(name, scale, SETTINGS[scale, FIGURES[name]])
    if name == STUDY:
        return StudyPart(name, scale, SETTINGS[scale, Kind.IMAGES], repeats)
    return AnalysisPart(name)


@dataclass(frozen=True)
class TablePart:
    name: str
    scale: Scale
    setting: Setting
    repeats: int
    table: Table

    @property
    def _plan(self) -> tables.Cells:
        return tables.planned(self.table, self.setting, self.repeats)

    def cells(self) -> list[AnyCell]:
        return [cell for repeats in self._plan.values() for cell in repeats]

    def write(self, results: Results, folder: Path) -> Any:
        made = tables.entries(self.table, self._plan, accuracies(results))
        note = in_words(self.scale, self.setting)
        plots.plot_table(self.table, made, note, folder / self.name)
        said = findings.as_markdown(findings.findings(self.table, made))
        text = "\n".join([tables.as_markdown(self.table, made), f"{note}.\n", said])
        return _write(folder, self.name, tables.as_csv(made), tables.as_json(made), text)


@dataclass(frozen=True)
class FigurePart:
    name: str
    scale: Scale
    setting: Setting

    @property
    def _title(self) -> str:
        data = "CIFAR-noniid" if FIGURES[self.name] is Kind.IMAGES else "Sentiment-noniid"
        return f"Figure {self.name.removeprefix('figure')}. Overhead of different scales on {data}"

    def cells(self) -> list[AnyCell]:
        setting = self.setting
        return [*costs.planned(setting.of_costs, setting.costs_rounds, SYSTEM_WORDS)]

    def write(self, results: Results, folder: Path) -> Any:
        wanted = set(self.cells())
        mine: dict[CostCell, CostResult] = {
            cell: result
            for cell, result in results.items()
            if cell in wanted and isinstance(cell, CostCell) and isinstance(result, CostResult)
        }
        note = (
            f"scale {self.scale}: {self.setting.learning.model}, {self.setting.costs_rounds} rounds"
        )
        plots.plot_costs(self._title, mine, note, folder / self.name)
        said = findings.as_markdown(costs_report.findings(mine))
        text = "\n".join([costs_report.as_markdown(self._title, mine), said])
        made = costs_report.as_json(mine)
        return _write(folder, self.name, costs_report.as_csv(mine), made, text)


@dataclass(frozen=True)
class StudyPart:
    name: str
    scale: Scale
    setting: Setting
    repeats: int

    @property
    def _plan(self) -> study.Cells:
        return study.planned(self.setting, self.repeats)

    def cells(self) -> list[AnyCell]:
        return [cell for repeats in self._plan.values() for cell in repeats]

    def write(self, results: Results, folder: Path) -> Any:
        found = accuracies(results)
        text = study.as_markdown(self._plan, found)
        text = f"{text}\n{in_words(self.scale, self.setting)}.\n"
        made = study.as_json(self._plan, found)
        return _write(folder, self.name, study.as_csv(made), made, text)


@dataclass(frozen=True)
class AnalysisPart:
    name: str

    def cells(self) -> list[AnyCell]:
        return [*traffic.planned()]

    def write(self, results: Results, folder: Path) -> Any:
        mine: dict[TrafficCell, TrafficResult] = {
            cell: result
            for cell, result in results.items()
            if isinstance(cell, TrafficCell) and isinstance(result, TrafficResult)
        }
        size = next(iter(mine)).values * 4
        note = f"counted in the simulator with a model of {size} bytes"
        plots.plot_traffic(mine, note, folder / self.name)
        made = traffic_report.as_json(mine)
        text = traffic_report.as_markdown(mine)
        return _write(folder, self.name, traffic_report.as_csv(mine), made, text)


def accuracies(results: Results) -> dict[AccuracyCell, AccuracyResult]:
    return {
        cell: result
        for cell, result in results.items()
        if isinstance(cell, AccuracyCell) and isinstance(result, AccuracyResult)
    }


def in_words(scale: Scale, setting: Setting) -> str:
    learning = setting.learning
    judged = "the last model"
    if setting.rounds_judged > 1:
        judged = f"the models of the last {setting.rounds_judged} rounds"
    return (
        f"Scale {scale}: {learning.model}, {setting.rounds} rounds of {learning.steps} steps with "
        f"batches of {learning.batch} by {learning.optimizer}; accuracy of {judged}"
    )


def _write(folder: Path, name: str, csv_text: str, made: Any, markdown: str) -> Any:
    (folder / f"{name}.csv").write_text(csv_text, encoding="utf-8")
    (folder / f"{name}.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    (folder / f"{name}.md").write_text(markdown, encoding="utf-8")
    return made


def written_report(
    parts: Sequence[Part], folder: Path, scale: Scale, repeats: int, seconds: float
) -> Path:
    """All parts on one page, with the command and the machine."""
    lines = [
        "# Results: the paper's evaluation, measured here",
        "",
        (
            "J. Han et al., *DeFL: Decentralized Weight Aggregation for Cross-silo Federated "
            "Learning*; its figures stand beside ours. What each part shows, and how to run it, is "
            "in REPRODUCING.md. Whoever reads only one thing: the tables of statements, each "
            "confirmed or contradicted."
        ),
        "",
        "```",
        f"defl paper all --scale {scale} --repeat {repeats}",
        "```",
        "",
        (
            f"defl {defl.__version__}, Python {platform.python_version()}, {platform.system()} "
            f"{platform.machine()}, {os.cpu_count()} cores; this run took {seconds / 60:.0f} "
            "minutes (cells of earlier runs not counted)."
        ),
        "",
    ]
    for part in parts:
        lines.append((folder / f"{part.name}.md").read_text(encoding="utf-8"))
        if (folder / f"{part.name}.png").exists():
            lines.append(f"![{part.name}]({part.name}.png)\n")
    path = folder / REPORT_FILE
    path.write_text("\n".join(lines), encoding="utf-8")
    return path
