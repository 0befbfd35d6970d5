"""The whole report on one page: a summary of one screen, then a section for each part.

The page and the parts' files may lie in different folders; links are relative to the page.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from defl.lab.experiments.paper.claims import first_screen
from defl.lab.experiments.paper.findings import RULES_IN_WORDS
from defl.lab.experiments.paper.machine import recorded_machines
from defl.lab.experiments.paper.report import RepeatedPart, ReportPart
from defl.lab.experiments.paper.run import AnyCell, Results
from defl.lab.experiments.paper.settings import Scale
from defl.lab.experiments.paper.verdicts import Finding, contradicted, count_confirmed

PAGE_FILE = "RESULTS.md"

SMALL_MODELS = (
    "The models are smaller than the paper's and train for fewer rounds: compare orders and losses "
    "rather than levels of accuracy."
)
EQUAL_NUMBERS = (
    "Equal numbers are not a coincidence: one seed gives every system the same data and the same "
    "training, so Biscotti and DeFL differ only in rounds in which they merge different updates."
)


class ReportRequest(NamedTuple):
    scale: Scale
    repeats: int
    unmeasured: Sequence[ReportPart] = ()  # no cell of these is there yet


def write_page(
    parts: Sequence[ReportPart],
    results: Results,
    seconds: Mapping[AnyCell, float],
    request: ReportRequest,
    folder: Path,
    page: Path,
) -> None:
    """`folder` holds the parts' files; `seconds` what cells took, where that is recorded."""
    page.parent.mkdir(parents=True, exist_ok=True)
    links = Path(os.path.relpath(folder.resolve(), page.parent.resolve())).as_posix()
    prefix = "" if links == "." else f"{links}/"
    lines = [
        "# Results: the paper's evaluation, measured here",
        "",
        (
            "The evaluation of J. Han et al., *DeFL: Decentralized Weight Aggregation for "
            "Cross-silo Federated Learning*, repeated with this implementation. "
            f"`defl paper all --scale {request.scale} --repeat {request.repeats}` writes this "
            "page; REPRODUCING.md explains each part."
        ),
        "",
        *_summary(parts, results, request),
        "",
        "## How it was measured",
        "",
        f"- {_machines(folder)}",
        f"- {_time(results, seconds)}",
        f"- {RULES_IN_WORDS}",
        f"- {EQUAL_NUMBERS}",
    ]
    for part in parts:
        lines += [
            "",
            f"## {part.title}",
            "",
            f"![{part.title}]({prefix}{part.name}.png)",
            "",
            *part.brief_tables(results),
            "",
            *contradicted(
                part.findings(results), f" ([all, with numbers]({prefix}{part.name}.md))"
            ),
        ]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _summary(parts: Sequence[ReportPart], results: Results, request: ReportRequest) -> list[str]:
    by_part = {part.name: part.findings(results) for part in parts}
    judged = {part.name: [*part.level(results), *by_part[part.name]] for part in parts}
    everything = [finding for findings in by_part.values() for finding in findings]
    repeats = sorted({part.repeats for part in parts if isinstance(part, RepeatedPart)})
    runs = " to ".join(map(str, dict.fromkeys((repeats[0], repeats[-1])))) if repeats else "no"
    level = "" if request.scale is Scale.PAPER else f" {SMALL_MODELS}"
    return [
        "## Summary",
        "",
        *first_screen(judged),
        "",
        (
            f"**{count_confirmed(everything)} statements of the paper hold here**; runs of each "
            f"accuracy: {runs}.{level}"
        ),
        "",
        f"| statements of | {' | '.join(by_part)} |",
        "|---" * (len(by_part) + 1) + "|",
        f"| hold | {' | '.join(_held(findings) for findings in by_part.values())} |",
        *(
            f"\nNot measured yet: {part.title[:1].lower()}{part.title[1:]} (`{part.name}`)."
            for part in request.unmeasured
        ),
    ]


def _held(findings: Sequence[Finding]) -> str:
    return count_confirmed(findings) if findings else "not measured"


def _machines(folder: Path) -> str:
    machines = recorded_machines(folder)
    if not machines:
        return "The folder does not record what measured its cells."
    return f"Measured with {'. Also with '.join(machines)}."


def _time(results: Results, seconds: Mapping[AnyCell, float]) -> str:
    recorded = [seconds[cell] for cell in results if cell in seconds]
    minutes = f"{sum(recorded) / 60:.0f} minutes"
    if len(recorded) == len(results):
        return f"{len(results)} cells took {minutes}."
    return f"{len(results)} cells; the {len(recorded)} whose time is recorded took {minutes}."
