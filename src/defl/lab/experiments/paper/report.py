"""What can be asked for, one name each: its cells, and the files that are made of their results.

Every part writes NAME.csv, NAME.json, NAME.md, NAME.png and NAME.svg, and says which of the paper's
statements its numbers confirm. page.py joins parts into one page.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from defl.lab.experiments.paper import (
    costs,
    costs_report,
    findings,
    plots,
    study,
    tables,
    traffic,
    traffic_report,
)
from defl.lab.experiments.paper.accuracy import AccuracyCell, AccuracyResult
from defl.lab.experiments.paper.costs import CostCell, CostResult
from defl.lab.experiments.paper.findings import Finding
from defl.lab.experiments.paper.run import AnyCell, Results
from defl.lab.experiments.paper.settings import (
    FIGURES,
    SETTINGS,
    SYSTEM_WORDS,
    TABLES,
    DataKind,
    Scale,
    Setting,
    Table,
)
from defl.lab.experiments.paper.traffic import TrafficCell, TrafficResult

STUDY = "study"
ANALYSIS = "analysis"
PARTS = (*TABLES, *FIGURES, ANALYSIS, STUDY)
ALL = "all"


class ReportPart(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    def cells(self) -> list[AnyCell]: ...

    def findings(self, results: Results) -> list[Finding]: ...

    def write(self, results: Results, folder: Path) -> Any:
        """The files; returns what --json prints."""
        ...


def part_named(name: str, scale: Scale, repeats: int) -> ReportPart:
    if name in TABLES:
        table = TABLES[name]
        return TablePart(name, scale, SETTINGS[scale, table.kind], repeats, table)
    if name in FIGURES:
        return FigurePart(name, scale, SETTINGS[scale, FIGURES[name]])
    if name == STUDY:
        return StudyPart(name, scale, SETTINGS[scale, DataKind.IMAGES], repeats)
    return AnalysisPart(name)


@dataclass(frozen=True)
class TablePart:
    name: str
    scale: Scale
    setting: Setting
    repeats: int
    table: Table

    @property
    def title(self) -> str:
        return self.table.heading

    @property
    def _plan(self) -> tables.Cells:
        return tables.planned(self.table, self.setting, self.repeats)

    def cells(self) -> list[AnyCell]:
        return [cell for repeats in self._plan.values() for cell in repeats]

    def _entries(self, results: Results) -> list[tables.TableEntry]:
        return tables.entries(self.table, self._plan, accuracies(results))

    def findings(self, results: Results) -> list[Finding]:
        return findings.findings(self.table, self._entries(results))

    def write(self, results: Results, folder: Path) -> Any:
        made = self._entries(results)
        note = in_words(self.scale, self.setting)
        plots.plot_table(self.table, made, note, folder / self.name)
        said = findings.as_markdown(self.findings(results))
        shown = tables.as_markdown(self.table, made)
        text = "\n".join([shown, f"{note}.\n", f"{findings.MEASURES}\n", said])
        return _write(folder, self.name, tables.as_csv(made), tables.as_json(made), text)


@dataclass(frozen=True)
class FigurePart:
    name: str
    scale: Scale
    setting: Setting

    @property
    def title(self) -> str:
        data = "CIFAR-noniid" if FIGURES[self.name] is DataKind.IMAGES else "Sentiment-noniid"
        return f"Figure {self.name.removeprefix('figure')}. Overhead of different scales on {data}"

    def cells(self) -> list[AnyCell]:
        setting = self.setting
        return [*costs.planned(setting.of_costs, setting.costs_rounds, SYSTEM_WORDS)]

    def _costs(self, results: Results) -> dict[CostCell, CostResult]:
        wanted = set(self.cells())
        return {
            cell: result
            for cell, result in results.items()
            if cell in wanted and isinstance(cell, CostCell) and isinstance(result, CostResult)
        }

    def findings(self, results: Results) -> list[Finding]:
        return costs_report.findings(self._costs(results))

    def write(self, results: Results, folder: Path) -> Any:
        mine = self._costs(results)
        note = (
            f"scale {self.scale}: {self.setting.learning.model}, {self.setting.costs_rounds} rounds"
        )
        plots.plot_costs(self.title, mine, note, folder / self.name)
        said = findings.as_markdown(self.findings(results))
        text = "\n".join([costs_report.as_markdown(self.title, mine), said])
        made = costs_report.as_json(mine)
        return _write(folder, self.name, costs_report.as_csv(mine), made, text)


@dataclass(frozen=True)
class StudyPart:
    name: str
    scale: Scale
    setting: Setting
    repeats: int

    @property
    def title(self) -> str:
        return study.HEADING

    @property
    def _plan(self) -> study.Cells:
        return study.planned(self.setting, self.repeats)

    def cells(self) -> list[AnyCell]:
        return [cell for repeats in self._plan.values() for cell in repeats]

    def findings(self, results: Results) -> list[Finding]:
        return study.findings(self._plan, accuracies(results))

    def write(self, results: Results, folder: Path) -> Any:
        found = accuracies(results)
        note = in_words(self.scale, self.setting)
        plots.plot_study(study.accuracies(self._plan, found), note, folder / self.name)
        said = findings.as_markdown(self.findings(results))
        text = "\n".join([study.as_markdown(self._plan, found), f"{note}.\n", said])
        made = study.as_json(self._plan, found)
        return _write(folder, self.name, study.as_csv(made), made, text)


@dataclass(frozen=True)
class AnalysisPart:
    name: str

    @property
    def title(self) -> str:
        return traffic_report.HEADING

    def cells(self) -> list[AnyCell]:
        return [*traffic.planned()]

    def _traffic(self, results: Results) -> dict[TrafficCell, TrafficResult]:
        return {
            cell: result
            for cell, result in results.items()
            if isinstance(cell, TrafficCell) and isinstance(result, TrafficResult)
        }

    def findings(self, results: Results) -> list[Finding]:
        return traffic_report.findings(self._traffic(results))

    def write(self, results: Results, folder: Path) -> Any:
        mine = self._traffic(results)
        size = next(iter(mine)).values * 4
        note = f"counted in the simulator with a model of {size} bytes"
        plots.plot_traffic(mine, note, folder / self.name)
        made = traffic_report.as_json(mine)
        said = findings.as_markdown(self.findings(results))
        text = "\n".join([traffic_report.as_markdown(mine), said])
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
