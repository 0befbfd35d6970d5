"""Statements and verdicts: a statement holds, fails, or is undecided.

A statement is a number of comparisons, all of which must hold. Each repeat gives each comparison a
margin, which is positive where it holds; systems are compared repeat by repeat, since one seed
gives all of them the same data. A comparison counts as decided if zero lies outside the 95 %
confidence interval of its mean margin (Student's t).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Runs = NDArray[np.float64]  # one number for each repeat

# The 97.5 % quantile of Student's t, by degrees of freedom; the last one serves for more.
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)

UNCERTAINTY_IN_WORDS = (
    "A statement *holds* or *fails* if the 95 % confidence interval over the repeats (Student's t, "
    "systems compared seed by seed) lies on one side of the threshold, and is *undecided* "
    "otherwise; it fails if one of its comparisons fails. The paper states no deviations: its "
    "numbers are judged with the intervals measured here. A single run has no interval and is "
    "taken at its word."
)


class TableQuestion(NamedTuple):
    """A statement, the margins of its comparisons, and the numbers that it is about."""

    statement: str
    margins: Sequence[Runs]
    numbers: str


@dataclass(frozen=True, slots=True)
class Finding:
    statement: str
    confirmed: bool | None  # None: undecided
    numbers: str
    paper: str = ""  # the paper's own numbers, where it prints them

    def line(self) -> str:
        paper = f" The paper: {self.paper}." if self.paper else ""
        return f"- {self.statement.removesuffix('.')}. Here: {self.numbers}.{paper}"


def uncertainty(runs: Runs) -> float:
    """Half of the 95 % confidence interval of the mean; 0 for a single run."""
    if len(runs) == 1:
        return 0.0
    t = T_QUANTILES[min(len(runs) - 1, len(T_QUANTILES)) - 1]
    return t * float(np.std(runs, ddof=1)) / sqrt(len(runs))


def verdict(margins: Sequence[Runs], uncertainties: Sequence[float]) -> bool | None:
    """NaN, which stands for a model that has learned nothing, fails."""
    means = [float(np.mean(runs)) for runs in margins]
    if any(not mean + half > 0 for mean, half in zip(means, uncertainties, strict=True)):
        return False
    if all(mean - half > 0 for mean, half in zip(means, uncertainties, strict=True)):
        return True
    return None


PAPER_NOTES = {
    True: "",
    False: " (which fail the same rule)",
    None: " (undecided by the same rule)",
}


def answered(ours: TableQuestion, paper: TableQuestion) -> Finding:
    """The verdict on our numbers, beside the paper's for the same question."""
    halves = [uncertainty(runs) for runs in ours.margins]
    note = PAPER_NOTES[verdict(paper.margins, halves)]
    confirmed = verdict(ours.margins, halves)
    return Finding(ours.statement, confirmed, ours.numbers, paper.numbers + note)


def count_confirmed(findings: Sequence[Finding]) -> str:
    """As in "5 of 7 hold, 1 undecided"."""
    undecided = sum(finding.confirmed is None for finding in findings)
    count = f"{sum(finding.confirmed is True for finding in findings)} of {len(findings)}"
    return f"{count} ({undecided} undecided)" if undecided else count


def contradicted(findings: Sequence[Finding], link: str = "") -> list[str]:
    """How many statements hold, and those that do not with their numbers."""
    if not findings:
        return [f"Too little is measured to judge the paper's statements{link}."]
    lines = [f"**{count_confirmed(findings)} statements of the paper hold**{link}."]
    for heading, wanted in (("Contradicted:", False), ("Undecided:", None)):
        chosen = [finding.line() for finding in findings if finding.confirmed is wanted]
        if chosen:
            lines += ["", heading, "", *chosen]
    return lines


def all_statements(findings: Sequence[Finding]) -> list[str]:
    confirmed = [finding.line() for finding in findings if finding.confirmed]
    return [*contradicted(findings), *(["", "Confirmed:", "", *confirmed] if confirmed else [])]
