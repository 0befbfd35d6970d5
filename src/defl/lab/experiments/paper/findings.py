"""The paper's statements about its tables, each held against the numbers measured here.

A statement is confirmed or contradicted by a rule that is written beside it; nothing is left to
the reader's goodwill. What counts as collapse, and as holding, is said once, here.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from defl.lab.experiments.paper.settings import SYSTEM_WORDS, THREAT_ROWS, DataKind, Table
from defl.lab.experiments.paper.tables import TableEntry

MEANS = ("fl", "swarm")  # FedAvg-based
ROBUST = ("biscotti", "defl")  # Multi-Krum-based
FEDAVG, MULTI_KRUM = "FedAvg-based systems", "Multi-Krum-based systems"
CHANCE = {DataKind.IMAGES: 0.1, DataKind.TEXTS: 0.5}
# Collapsed: more than this share of what was learned beyond chance without attack is lost.
COLLAPSE = 0.3
# Holds: less than this share of it is lost.
HOLDS = 0.15
EQUAL = 0.005  # accuracies that differ by less are as good
SIMILAR = 0.02  # accuracies that differ by less are similar
LINEAR_MAX = 1.3  # an exponent of growth below this still counts as linear
CALM = "No"
MILD = ("Gaussian (sigma=0.03)", "Label-flipping")
SEVERE = ("Gaussian (sigma=1.00)", "Sign-flipping (sigma=-2.0)", "Sign-flipping (sigma=-4.0)")


@dataclass(frozen=True, slots=True)
class Finding:
    statement: str
    confirmed: bool
    numbers: str


class Read:
    """A table's numbers by place; ours, or the paper's for the same questions.

    What is said of two systems must hold for each of them.
    """

    def __init__(
        self, table: Table, made: Sequence[TableEntry], value: Callable[[TableEntry], float]
    ):
        self._chance = CHANCE[table.kind]
        self._values = {(e.dataset, e.setting, e.system): value(e) for e in made}

    def accuracies(self, dataset: str, setting: str, names: Sequence[str]) -> list[float]:
        return [self._values[dataset, setting, name] for name in names]

    def lost(self, dataset: str, setting: str, calm: str, names: Sequence[str]) -> list[float]:
        """Of what was learned beyond chance without attack; negative: more was learned; not a
        number: nothing was learned, so that no statement about it is confirmed."""
        before = self.accuracies(dataset, calm, names)
        after = self.accuracies(dataset, setting, names)
        return [
            (b - a) / (b - self._chance) if b > self._chance else math.nan
            for b, a in zip(before, after, strict=True)
        ]

    def collapse(self, dataset: str, setting: str, calm: str = CALM) -> Finding:
        lost = self.lost(dataset, setting, calm, MEANS)
        statement = f"{dataset}: {FEDAVG} collapse under {setting}"
        return Finding(statement, all(share > COLLAPSE for share in lost), _lost(MEANS, lost))

    def hold(self, dataset: str, setting: str, calm: str = CALM) -> Finding:
        lost = self.lost(dataset, setting, calm, ROBUST)
        statement = f"{dataset}: {MULTI_KRUM} hold under {setting}"
        return Finding(statement, all(share < HOLDS for share in lost), _lost(ROBUST, lost))

    def better(self, statement: str, dataset: str, setting: str, names: Sequence[str]) -> Finding:
        """Each of these is at least as good as each of the others."""
        others = [name for name in (*MEANS, *ROBUST) if name not in names]
        mine, theirs = (self.accuracies(dataset, setting, those) for those in (names, others))
        numbers = f"{_each(names, mine)}; {_each(others, theirs)}"
        return Finding(statement, min(mine) >= max(theirs) - EQUAL, numbers)

    def similar(self, dataset: str, settings: Sequence[str], names: Sequence[str]) -> Finding:
        apart = {
            setting: max(found) - min(found)
            for setting in settings
            for found in [self.accuracies(dataset, setting, names)]
        }
        most = max(apart, key=lambda setting: apart[setting])
        words = " and ".join(SYSTEM_WORDS[name] for name in names)
        return Finding(
            f"{dataset}: {words} have similar accuracy",
            apart[most] < SIMILAR,
            f"up to {apart[most]:.3f} apart" + (f" ({most})" if apart[most] else ""),
        )


def _each(names: Sequence[str], values: Sequence[float]) -> str:
    return ", ".join(
        f"{SYSTEM_WORDS[n]} {value:.3f}" for n, value in zip(names, values, strict=True)
    )


def _lost(names: Sequence[str], values: Sequence[float]) -> str:
    shown = (f"{SYSTEM_WORDS[n]} {100 * v:.0f} %" for n, v in zip(names, values, strict=True))
    return f"{', '.join(shown)} lost"


def findings(table: Table, made: Sequence[TableEntry]) -> list[Finding]:
    """In ours; whether the paper's own numbers pass the same test stands beside it."""
    ask = _about_threats if table.rows == THREAT_ROWS else _about_rates
    ours = ask(table, Read(table, made, lambda entry: entry.accuracy))
    paper = ask(table, Read(table, made, lambda entry: entry.paper))
    return [
        Finding(
            mine.statement,
            mine.confirmed,
            f"{mine.numbers}. The paper's: {theirs.numbers}"
            + ("" if theirs.confirmed else " (which do not pass this test either)"),
        )
        for mine, theirs in zip(ours, paper, strict=True)
    ]


def _about_threats(table: Table, read: Read) -> list[Finding]:
    """Of texts the paper says no more than that Multi-Krum is the better one."""
    made = []
    for dataset, _ in table.datasets:
        for setting in SEVERE:
            if table.kind is DataKind.IMAGES:
                made.append(read.collapse(dataset, setting))
            else:
                statement = f"{dataset}: {MULTI_KRUM} are at least as good under {setting}"
                made.append(read.better(statement, dataset, setting, ROBUST))
            made.append(read.hold(dataset, setting))
        settings = [row.words for row in table.rows]
        made += [read.similar(dataset, settings, names) for names in (MEANS, ROBUST)]
        for setting in (CALM, *MILD) if table.kind is DataKind.IMAGES else (CALM,):
            under = "without attack" if setting == CALM else f"under {setting}"
            statement = f"{dataset}: {FEDAVG} are at least as good {under}"
            made.append(read.better(statement, dataset, setting, MEANS))
    even, uneven = (read.accuracies(dataset, CALM, ROBUST) for dataset, _ in table.datasets)
    made.append(
        Finding(
            f"{MULTI_KRUM} are less accurate on non-i.i.d. data without attack",
            max(uneven) < min(even),
            f"{_each(ROBUST, uneven)}; i.i.d. {_each(ROBUST, even)}",
        )
    )
    return made


def _about_rates(table: Table, read: Read) -> list[Finding]:
    [(dataset, _)] = table.datasets
    made = []
    highest = []
    for nodes in dict.fromkeys(row.nodes for row in table.rows):
        calm, *attacked = (row.words for row in table.rows if row.nodes == nodes)
        highest.append(attacked[-1])
        by_rate = [read.accuracies(dataset, setting, MEANS) for setting in (calm, *attacked)]
        made.append(
            Finding(
                f"{nodes} nodes: {FEDAVG} fall as the Byzantine rate rises",
                all(max(after) < min(before) for before, after in itertools.pairwise(by_rate)),
                " → ".join(_each(MEANS, found) for found in by_rate),
            )
        )
        lost = [share for s in attacked for share in read.lost(dataset, s, calm, ROBUST)]
        made.append(
            Finding(
                f"{nodes} nodes: {MULTI_KRUM} stay stable",
                all(share < HOLDS for share in lost),
                f"lost at most {100 * max(lost):.0f} %",
            )
        )
        made += [
            read.better(f"{setting}: {MULTI_KRUM} are the better ones", dataset, setting, ROBUST)
            for setting in attacked
        ]
        if table.kind is DataKind.IMAGES:
            statement = f"{nodes} nodes: {FEDAVG} are at least as good without attack"
            made.append(read.better(statement, dataset, calm, MEANS))
    if table.kind is DataKind.TEXTS:
        found = [read.accuracies(dataset, setting, MEANS) for setting in highest]
        made.append(
            Finding(
                f"At rates near a third {FEDAVG} are the better the more nodes there are",
                all(max(few) < min(more) for few, more in itertools.pairwise(found)),
                " → ".join(_each(MEANS, accuracies) for accuracies in found),
            )
        )
    return made


MEASURES = (
    f"Collapse: more than {100 * COLLAPSE:.0f} % of what was learned beyond chance without attack "
    f"is lost; holding and stable: less than {100 * HOLDS:.0f} %. As good: not lower by more than "
    f"{EQUAL}; similar: less than {SIMILAR} apart. What is said of two systems must hold for each."
)


def as_markdown(made: Sequence[Finding]) -> str:
    lines = ["| statement of the paper | here | numbers |", "|---|---|---|"]
    for finding in made:
        verdict = "confirmed" if finding.confirmed else "**contradicted**"
        lines.append(f"| {finding.statement} | {verdict} | {finding.numbers} |")
    return "\n".join(lines) + "\n"
