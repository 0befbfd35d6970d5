"""The parts of the evaluation by name: each one's cells, and the files made of their results.

Every part writes NAME.csv, NAME.json, NAME.md, NAME.png and NAME.svg, and checks the paper's
statements against its numbers. page.py joins the parts into one page.
"""

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

from defl.errors import UserError
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
from defl.lab.experiments.paper.run import AnyCell, Results
from defl.lab.experiments.paper.settings import (
    FIGURES,
    REPEATS,
    SETTINGS,
    SYSTEM_WORDS,
    TABLES,
    DataKind,
    Scale,
    Setting,
    Table,
)
from defl.lab.experiments.paper.traffic import TrafficCell, TrafficResult
from defl.lab.experiments.paper.verdicts import Finding, all_statements

STUDY = "study"
ANALYSIS = "analysis"
CORE = "core"
PARTS = (*TABLES, *FIGURES, ANALYSIS, STUDY)
ALL = "all"
# What `all` measures where it is not everything: the convolutional network would take days, and
# the accuracies of small models from scratch are kept as history.
PARTS_OF: dict[Scale, tuple[str, ...]] = {
    Scale.MLP: ("table1", "table2", "table3", "table4", STUDY),
    Scale.CPU: (CORE,),
}

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

    def level(self, results: Results) -> list[Finding]:  # noqa: ARG002 - tables have one
        """Whether its models are as accurate as the paper's."""
        return []

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

    def of_whole_repeats(self, results: Results) -> "ReportPart":  # noqa: ARG002 - see below
        """This part with as many of its repeats as are measured in all cells, at least one."""
        return self

    def missing(self, results: Results) -> str:
        """How many cells are not measured, and the command that measures them; may be empty."""
        count = sum(cell not in results for cell in self.cells())
        return f"{count} of {len(self.cells())} cells are not measured" if count else ""

    def write(self, results: Results, folder: Path) -> list[dict[str, Any]]:
        """Write the part's files; return what --json prints. Only tables may have gaps."""
        if (lack := self.missing(results)) and not isinstance(self, TablePart):
            raise UserError(f"{self.name}: {lack}; run without --stored to measure them")
        self.plot(results, folder / self.name)
        lines = [
            f"# {self.title}",
            "",
            *self.tables(results),
            "",
            *all_statements(self.findings(results)),
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
    if not rows:
        return ""
    text = StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def part_named(name: str, scale: Scale, repeats: int) -> ReportPart:
    if name == CORE and scale is Scale.TRANSFER:
        # Beside a head on frozen features, the report shows a network trained from scratch.
        return part_named(CORE, Scale.CPU, REPEATS[Scale.CPU])
    if name in TABLES:
        table = TABLES[name]
        return TablePart(name, scale, SETTINGS[scale, table.kind], repeats, table)
    if name in FIGURES:
        return FigurePart(name, scale, SETTINGS[scale, FIGURES[name]])
    if name == STUDY:
        return StudyPart(name, scale, SETTINGS[scale, DataKind.IMAGES], repeats)
    return AnalysisPart(name)


@dataclass(frozen=True)
class RepeatedPart(ReportPart):
    """A part of accuracies, which need several repeats."""

    scale: Scale
    setting: Setting
    repeats: int

    def of_whole_repeats(self, results: Results) -> ReportPart:
        for count in range(self.repeats, 1, -1):
            part = replace(self, repeats=count)
            if all(cell in results for cell in part.cells()):
                return part
        return replace(self, repeats=1)


@dataclass(frozen=True)
class TablePart(RepeatedPart):
    table: Table

    @property
    def title(self) -> str:
        return self.table.heading

    @property
    def _plan(self) -> tables.Cells:
        return tables.planned(self.table, self.setting, self.repeats)

    def cells(self) -> list[AnyCell]:
        """By repeat, so that an interrupted run has finished whole ones."""
        return [cell for repeat in zip(*self._plan.values(), strict=True) for cell in repeat]

    def _entries(self, results: Results) -> list[tables.TableEntry]:
        return tables.entries(self.table, self._plan, accuracies(results))

    def findings(self, results: Results) -> list[Finding]:
        return findings.findings(self.table, self._entries(results))

    def level(self, results: Results) -> list[Finding]:
        return findings.level(self.table, self._entries(results))

    def tables(self, results: Results) -> list[str]:
        return [*self.brief_tables(results), "", findings.RULES_IN_WORDS]

    def brief_tables(self, results: Results) -> list[str]:
        setting = f"{training_in_words(self.scale, self.setting)}."
        lines = tables.as_markdown(self.table, self._entries(results), setting)
        if lack := self.missing(results):
            command = f"defl paper {self.name} --scale {self.scale} --resume"
            lines += ["", f"{lack}; `{command}` with this folder as --out goes on."]
        return lines

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

    def tables(self, results: Results) -> list[str]:
        return costs_report.as_markdown(self._costs(results), self.setting.of_costs.model)

    def brief_tables(self, results: Results) -> list[str]:
        model = self.setting.of_costs.model
        return costs_report.as_markdown(self._costs(results), model, largest_only=True)

    def as_json(self, results: Results) -> list[dict[str, Any]]:
        return [asdict(cost) for cost in costs_report.costs(self._costs(results))]

    def plot(self, results: Results, path: Path) -> None:
        model, rounds = self.setting.of_costs.model, self.setting.costs_rounds
        note = f"scale {self.scale}: {model}, {rounds} rounds"
        plots.plot_costs(self.title, self._costs(results), note, path)


@dataclass(frozen=True)
class StudyPart(RepeatedPart):
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
        f"Scale {scale}: {learning.model} on {learning.data}, {setting.rounds} rounds of "
        f"{learning.steps} steps with batches of {learning.batch} by {learning.optimizer}; "
        f"accuracy of {judged}"
    )
