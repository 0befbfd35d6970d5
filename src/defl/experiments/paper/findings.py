"""The paper's statements about its tables, each held against the numbers measured here.

A statement is confirmed or contradicted by a rule that is written beside it; nothing is left to
the reader's goodwill. What counts as collapse, and as holding, is said once, here.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

from defl.experiments.paper.settings import THREAT_ROWS, Kind, Table
from defl.experiments.paper.tables import Entry

MEANS = ("fl", "swarm")  # FedAvg-based
ROBUST = ("biscotti", "defl")  # Multi-Krum-based
CHANCE = {Kind.IMAGES: 0.1, Kind.TEXTS: 0.5}
# Collapsed: more than this share of what was learned beyond chance without attack is lost.
COLLAPSE = 0.3
# Holds: less than this share of it is lost.
HOLDS = 0.15
EQUAL = 0.005  # accuracies that differ by less are as good
CALM = "No"
SEVERE = ("Gaussian (sigma=1.00)", "Sign-flipping (sigma=-2.0)", "Sign-flipping (sigma=-4.0)")


@dataclass(frozen=True, slots=True)
class Finding:
    statement: str
    confirmed: bool
    numbers: str


class Read:
    """A table's numbers by place; ours, or the paper's for the same questions."""

    def __init__(self, table: Table, made: Sequence[Entry], value: Callable[[Entry], float]):
        self._table = table
        self._values = {(e.dataset, e.setting, e.system): value(e) for e in made}

    def accuracy(self, dataset: str, setting: str, names: Sequence[str]) -> float:
        return mean(self._values[dataset, setting, name] for name in names)

    def lost(self, dataset: str, setting: str, calm: str, names: Sequence[str]) -> float:
        """Of what was learned beyond chance without attack; negative: more was learned."""
        chance = CHANCE[self._table.kind]
        best = self.accuracy(dataset, calm, names) - chance
        return (best - (self.accuracy(dataset, setting, names) - chance)) / best


def findings(table: Table, made: Sequence[Entry]) -> list[Finding]:
    """In ours; whether the paper's own numbers pass the same test stands beside it."""
    ask = _about_threats if table.rows == THREAT_ROWS else _about_rates
    ours = ask(table, Read(table, made, lambda entry: entry.accuracy))
    paper = ask(table, Read(table, made, lambda entry: entry.paper))
    return [
        Finding(
            mine.statement,
            mine.confirmed,
            f"{mine.numbers}; the paper's: {theirs.numbers}"
            + ("" if theirs.confirmed else " (which do not pass this test either)"),
        )
        for mine, theirs in zip(ours, paper, strict=True)
    ]


def _about_threats(table: Table, read: Read) -> list[Finding]:
    """Of texts the paper says no more than that Multi-Krum is the better one."""
    made = []
    for dataset, _ in table.datasets:
        for setting in SEVERE:
            means, robust = (read.accuracy(dataset, setting, names) for names in (MEANS, ROBUST))
            lost = read.lost(dataset, setting, CALM, MEANS)
            held = read.lost(dataset, setting, CALM, ROBUST)
            if table.kind is Kind.IMAGES:
                statement = f"{dataset}: FedAvg-based systems collapse under {setting}"
                made.append(Finding(statement, lost > COLLAPSE, f"{round(100 * lost)} % lost"))
            else:
                statement = f"{dataset}: Multi-Krum-based systems are the better ones"
                made.append(
                    Finding(
                        f"{statement} under {setting}",
                        robust >= means - EQUAL,
                        f"{robust:.3f} and {means:.3f}",
                    )
                )
            statement = f"{dataset}: Multi-Krum-based systems hold under {setting}"
            made.append(Finding(statement, held < HOLDS, f"{round(100 * held)} % lost"))
        means, robust = (read.accuracy(dataset, CALM, names) for names in (MEANS, ROBUST))
        made.append(
            Finding(
                f"{dataset}: without attack FedAvg-based systems are at least as good",
                means >= robust - EQUAL,
                f"{means:.3f} and {robust:.3f}",
            )
        )
    return made


def _about_rates(table: Table, read: Read) -> list[Finding]:
    [(dataset, _)] = table.datasets
    made = []
    for nodes in dict.fromkeys(row.nodes for row in table.rows):
        words = [row.words for row in table.rows if row.nodes == nodes]
        means = [read.accuracy(dataset, setting, MEANS) for setting in words]
        falls = all(after < before for before, after in itertools.pairwise(means))
        made.append(
            Finding(
                f"{nodes} nodes: FedAvg-based systems fall as the Byzantine rate rises",
                falls,
                ", ".join(f"{value:.3f}" for value in means),
            )
        )
        robust = [read.accuracy(dataset, setting, ROBUST) for setting in words]
        lost = max(read.lost(dataset, setting, words[0], ROBUST) for setting in words)
        made.append(
            Finding(
                f"{nodes} nodes: Multi-Krum-based systems stay stable",
                lost < HOLDS,
                ", ".join(f"{value:.3f}" for value in robust),
            )
        )
    return made


def as_markdown(made: Sequence[Finding]) -> str:
    """With the measure of the words in it."""
    lines = [
        (
            f"Collapse: more than {100 * COLLAPSE:.0f} % of what was learned beyond chance without "
            f"attack is lost; holding and stable: less than {100 * HOLDS:.0f} %."
        ),
        "",
        "| statement of the paper | here | numbers |",
        "|---|---|---|",
    ]
    for finding in made:
        verdict = "confirmed" if finding.confirmed else "**contradicted**"
        lines.append(f"| {finding.statement} | {verdict} | {finding.numbers} |")
    return "\n".join(lines) + "\n"
