"""The parts of the evaluation by name: each one's cells, and the files made of their results.

Every part writes NAME.csv, NAME.json, NAME.md, NAME.png and NAME.svg, and checks the paper's
statements against its numbers. page.py joins the parts into one page.
"""

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

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

CsvRows = Sequence[Mapping[str, Any]]  # all with the same keys: the columns


@dataclass(frozen=True)
class ReportPart(ABC):
    name: str

    @property
    @abstractmethod
    def title(self) -> str: ...

    @abstractmethod
    def cells(self) -> list[AnyCell]: ...

    @abstractmethod
    def findings(self, results: Results) -> list[Finding]: ...

    @abstractmethod
    def headlines(self, results: Results) -> list[Finding]:
        """The few findings that belong in the summary."""

    @abstractmethod
    def tables(self, results: Results) -> list[str]:
        """All tables, in Markdown."""

    def brief_tables(self, results: Results) -> list[str]:
        """What the joint page shows of them."""
        return self.tables(results)

    @abstractmethod
    def as_json(self, results: Results) -> list[dict[str, Any]]: ...

    @abstractmethod
    def plot(self, results: Results, path: Path) -> None: ...

    def csv_rows(self, results: Results) -> CsvRows:
        return self.as_json(results)

    def write(self, results: Results, folder: Path) -> list[dict[str, Any]]:
        """Write the part's files; return what --json prints."""
        self.plot(results, folder / self.name)
        lines = [
            f"# {self.title}",
            "",
            *self.tables(results),
            "",
            *findings.all_statements(self.findings(results)),
        ]
        printed = self.as_json(results)
        texts = {
            "csv": _as_csv(self.csv_rows(results)),
            "json": json.dumps(printed, indent=1) + "\n",
            "md": "\n".join(lines) + "\n",
        }
        for suffix, text in texts.items():
            (folder / f"{self.name}.{suffix}").write_text(text, encoding="utf-8")
        return printed


def _as_csv(rows: CsvRows) -> str:
    text = StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


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
class TablePart(ReportPart):
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

    def headlines(self, results: Results) -> list[Finding]:
        return findings.headlines(self.table, self._entries(results))

    def tables(self, results: Results) -> list[str]:
        return [*self.brief_tables(results), "", findings.RULES_IN_WORDS]

    def brief_tables(self, results: Results) -> list[str]:
        setting = f"{training_in_words(self.scale, self.setting)}."
        return tables.as_markdown(self.table, self._entries(results), setting)

    def as_json(self, results: Results) -> list[dict[str, Any]]:
        return [asdict(entry) for entry in self._entries(results)]

    def csv_rows(self, results: Results) -> CsvRows:
        return tables.csv_rows(self._entries(results))

    def plot(self, results: Results, path: Path) -> None:
        note = training_in_words(self.scale, self.setting)
        plots.plot_table(self.table, self._entries(results), note, path)


@dataclass(frozen=True)
class FigurePart(ReportPart):
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

    def headlines(self, results: Results) -> list[Finding]:
        if FIGURES[self.name] is not DataKind.IMAGES:
            return []  # the same questions, about a model of a few kilobytes
        wanted = (costs_report.SENDING_LIKE_FL, costs_report.MEMORY_BELOW_SL)
        return [finding for finding in self.findings(results) if finding.statement in wanted]

    def tables(self, results: Results) -> list[str]:
        return costs_report.as_markdown(self._costs(results), self.setting.learning.model)

    def brief_tables(self, results: Results) -> list[str]:
        model = self.setting.learning.model
        return costs_report.as_markdown(self._costs(results), model, largest_only=True)

    def as_json(self, results: Results) -> list[dict[str, Any]]:
        return [asdict(cost) for cost in costs_report.costs(self._costs(results))]

    def plot(self, results: Results, path: Path) -> None:
        note = (
            f"scale {self.scale}: {self.setting.learning.model}, {self.setting.costs_rounds} rounds"
        )
        plots.plot_costs(self.title, self._costs(results), note, path)


@dataclass(frozen=True)
class StudyPart(ReportPart):
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

    def headlines(self, results: Results) -> list[Finding]:
        return self.findings(results)

    def tables(self, results: Results) -> list[str]:
        setting = f"{training_in_words(self.scale, self.setting)}."
        return study.as_markdown(self._plan, accuracies(results), setting)

    def brief_tables(self, results: Results) -> list[str]:
        setting = f"{training_in_words(self.scale, self.setting)}."
        return study.as_brief_markdown(self._plan, accuracies(results), setting)

    def as_json(self, results: Results) -> list[dict[str, Any]]:
        return study.as_json(self._plan, accuracies(results))

    def csv_rows(self, results: Results) -> CsvRows:
        columns = ("dataset", "merge", "seed", "accuracy")
        return [{name: run[name] for name in columns} for run in self.as_json(results)]

    def plot(self, results: Results, path: Path) -> None:
        note = training_in_words(self.scale, self.setting)
        plots.plot_study(study.accuracies(self._plan, accuracies(results)), note, path)


@dataclass(frozen=True)
class AnalysisPart(ReportPart):
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

    def headlines(self, results: Results) -> list[Finding]:
        return [finding for finding in self.findings(results) if "O(MTn²)" not in finding.statement]

    def tables(self, results: Results) -> list[str]:
        return traffic_report.as_markdown(self._traffic(results))

    def brief_tables(self, results: Results) -> list[str]:
        return traffic_report.as_brief_markdown(self._traffic(results))

    def as_json(self, results: Results) -> list[dict[str, Any]]:
        return [asdict(row) for row in traffic_report.traffic(self._traffic(results))]

    def plot(self, results: Results, path: Path) -> None:
        note = f"counted in the simulator with a model of {traffic.SIZE_BYTES} bytes"
        plots.plot_traffic(self._traffic(results), note, path)


def accuracies(results: Results) -> dict[AccuracyCell, AccuracyResult]:
    return {
        cell: result
        for cell, result in results.items()
        if isinstance(cell, AccuracyCell) and isinstance(result, AccuracyResult)
    }


def training_in_words(scale: Scale, setting: Setting) -> str:
    learning = setting.learning
    judged = "the last model"
    if setting.rounds_judged > 1:
        judged = f"the models of the last {setting.rounds_judged} rounds"
    return (
        f"Scale {scale}: {learning.model}, {setting.rounds} rounds of {learning.steps} steps with "
        f"batches of {learning.batch} by {learning.optimizer}; accuracy of {judged}"
    )
