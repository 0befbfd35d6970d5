"""The whole report on one page: what was run where, which statements hold, then every part.

A page may lie elsewhere than the parts' files; its pictures are named as seen from it. It says
nothing that tells one machine of a kind from another: no names, no paths.
"""

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import defl
from defl.lab.experiments.paper.findings import Finding
from defl.lab.experiments.paper.report import ReportPart
from defl.lab.experiments.paper.run import AnyCell, Results
from defl.lab.experiments.paper.settings import Scale

PAGE_FILE = "RESULTS.md"
PACKAGES = ("torch", "numpy", "gensim")  # that numbers may depend on


class ReportRequest(NamedTuple):
    scale: Scale
    repeats: int


def written_page(
    parts: Sequence[ReportPart],
    results: Results,
    seconds: Mapping[AnyCell, float],
    asked: ReportRequest,
    folder: Path,
    page: Path,
) -> None:
    """`folder` has the parts' files; `seconds` is what cells took, as far as it is known."""
    lines = [
        "# Results: the paper's evaluation, measured here",
        "",
        (
            "J. Han et al., *DeFL: Decentralized Weight Aggregation for Cross-silo Federated "
            "Learning*; its figures stand beside ours. REPRODUCING.md says what each part shows, "
            "how it is measured, and what the scales leave out. This page is made by"
        ),
        "",
        "```",
        f"defl paper all --scale {asked.scale} --repeat {asked.repeats}",
        "```",
        "",
        f"{machine()}. {_time(results, seconds)}",
        "",
        *_summary([(part, part.findings(results)) for part in parts]),
        (
            "Equal numbers are no accident: the same seed gives every system the same data and the "
            "same training, so Biscotti and DeFL differ only where they merge other updates, and "
            "attacks that are filtered out in every round leave the same model."
        ),
        "",
    ]
    page.parent.mkdir(parents=True, exist_ok=True)
    pictures = Path(os.path.relpath(folder.resolve(), page.parent.resolve())).as_posix()
    for part in parts:
        text = (folder / f"{part.name}.md").read_text(encoding="utf-8")
        heading, _, rest = text.partition("\n")
        picture = f"{pictures}/{part.name}.png".removeprefix("./")
        lines += [f"##{heading.lstrip('#')}", "", f"![{part.title}]({picture})", rest]
    page.write_text("\n".join(lines), encoding="utf-8")


def _summary(by_part: Sequence[tuple[ReportPart, list[Finding]]]) -> list[str]:
    found = [finding for _, findings in by_part for finding in findings]
    confirmed = sum(finding.confirmed for finding in found)
    lines = [
        "## Which of the paper's statements hold here",
        "",
        f"{confirmed} of {len(found)} are confirmed. The others, with what was measured:",
        "",
        "| part | confirmed | contradicted |",
        "|---|---|---|",
    ]
    for part, findings in by_part:
        wrong = [f"{f.statement}: {f.numbers}" for f in findings if not f.confirmed]
        share = f"{len(findings) - len(wrong)} of {len(findings)}"
        lines.append(f"| {part.title.split('.')[0]} | {share} | {'<br>'.join(wrong) or '-'} |")
    return [*lines, ""]


def machine() -> str:
    """Versions and sizes, as far as they can be had."""
    versions = [f"defl {defl.__version__}", f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    said = [f"{platform.system()} {platform.machine()}", f"{os.cpu_count()} cores"]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        said.append(f"{memory / 2**30:.0f} GiB of memory")
    return f"{', '.join(versions)}; {', '.join(said)}"


def _time(results: Results, seconds: Mapping[AnyCell, float]) -> str:
    known = [seconds[cell] for cell in results if cell in seconds]
    if not known:
        return f"{len(results)} cells."
    of_all = "" if len(known) == len(results) else f" (of {len(known)} it is known)"
    return f"{len(results)} cells took {sum(known) / 60:.0f} minutes together{of_all}."
