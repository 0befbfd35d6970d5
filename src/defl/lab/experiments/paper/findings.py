"""The paper's statements about its tables, each checked against the numbers measured here.

An explicit rule confirms or contradicts each statement, so nothing is left to judgement. The
thresholds of these rules are the constants below; the page prints them.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from defl.lab.experiments.paper.settings import SYSTEM_WORDS, THREAT_ROWS, DataKind, Table
from defl.lab.experiments.paper.tables import TableEntry

MEANS = ("fl", "swarm")  # FedAvg-based
ROBUST = ("biscotti", "defl")  # Multi-Krum-based
HEADLINE = ("fl", "defl")  # one of each kind stands for both in the summary
FEDAVG, MULTI_KRUM = "FedAvg-based systems", "Multi-Krum-based systems"
CHANCE = {DataKind.IMAGES: 0.1, DataKind.TEXTS: 0.5}
# Collapse: a larger share of the accuracy gained over chance without attack is lost.
COLLAPSE = 0.3
# Hold: a smaller share of it is lost.
HOLDS = 0.15
EQUAL = 0.005  # accuracies that differ by less are equally good
SIMILAR = 0.02  # accuracies that differ by less are similar
LINEAR_MAX = 1.3  # growth exponents below this count as linear
CALM = "No"
MILD = ("Gaussian (sigma=0.03)", "Label-flipping")
SEVERE = ("Gaussian (sigma=1.00)", "Sign-flipping (sigma=-2.0)", "Sign-flipping (sigma=-4.0)")

RULES_IN_WORDS = (
    f"A system *collapses* when it loses more than {100 * COLLAPSE:.0f} % of the accuracy that it "
    f"gains over chance without attack, and *holds* or *stays stable* when it loses less than "
    f"{100 * HOLDS:.0f} %. *At least as good* allows {EQUAL} less; *similar* means less than "
    f"{SIMILAR} apart. A statement about two systems must hold for both."
)


@dataclass(frozen=True, slots=True)
class Finding:
    statement: str
    confirmed: bool
    numbers: str
    paper: str = ""  # the paper's own numbers, where it prints them

    def line(self) -> str:
        paper = f" The paper: {self.paper}." if self.paper else ""
        return f"- {self.statement.removesuffix('.')}. Here: {self.numbers}.{paper}"


class Reading:
    """A table's accuracies by place: ours, or the paper's for the same questions."""

    def __init__(
        self, table: Table, entries: Sequence[TableEntry], value: Callable[[TableEntry], float]
    ):
        self._chance = CHANCE[table.kind]
        self._values = {(e.dataset, e.setting, e.system): value(e) for e in entries}

    def accuracies(self, dataset: str, setting: str, names: Sequence[str]) -> list[float]:
        return [self._values[dataset, setting, name] for name in names]

    def lost(self, dataset: str, setting: str, calm: str, names: Sequence[str]) -> list[float]:
        """The share of the accuracy gained over chance without attack.

        Negative if accuracy rose. NaN, which confirms no statement, if nothing was learned.
        """
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
        """Each of `names` is at least as good as each other system."""
        others = [name for name in (*MEANS, *ROBUST) if name not in names]
        mine, theirs = (self.accuracies(dataset, setting, those) for those in (names, others))
        numbers = f"{_each(names, mine)}; {_each(others, theirs)}"
        return Finding(statement, min(mine) >= max(theirs) - EQUAL, numbers)

    def similar(self, dataset: str, settings: Sequence[str], names: Sequence[str]) -> Finding:
        apart = {
            setting: max(values) - min(values)
            for setting in settings
            for values in [self.accuracies(dataset, setting, names)]
        }
        most = max(apart, key=lambda setting: apart[setting])
        words = " and ".join(SYSTEM_WORDS[name] for name in names)
        return Finding(
            f"{dataset}: {words} have similar accuracy",
            apart[most] < SIMILAR,
            f"up to {apart[most]:.3f} apart" + (f" ({most})" if apart[most] else ""),
        )

    def breaks_the_mean_alone(self, dataset: str, setting: str, calm: str, words: str) -> Finding:
        mean_lost, robust_lost = self.lost(dataset, setting, calm, HEADLINE)
        return Finding(
            f"{dataset}, {words}: FL collapses, DeFL holds",
            mean_lost > COLLAPSE and robust_lost < HOLDS,
            _each(HEADLINE, self.accuracies(dataset, setting, HEADLINE)),
        )


def _each(names: Sequence[str], values: Sequence[float]) -> str:
    return ", ".join(
        f"{SYSTEM_WORDS[n]} {value:.3f}" for n, value in zip(names, values, strict=True)
    )


def _lost(names: Sequence[str], values: Sequence[float]) -> str:
    shown = (f"{SYSTEM_WORDS[n]} {100 * v:.0f} %" for n, v in zip(names, values, strict=True))
    return f"{', '.join(shown)} lost"


Questions = Callable[[Table, Reading], list[Finding]]


def findings(table: Table, entries: Sequence[TableEntry]) -> list[Finding]:
    return _checked(_by_threat if table.rows == THREAT_ROWS else _by_rate, table, entries)


def headlines(table: Table, entries: Sequence[TableEntry]) -> list[Finding]:
    """What the summary says of this table: the level of accuracy, and the strongest attack."""
    if table.rows != THREAT_ROWS:
        return _checked(_highest_rate, table, entries)
    [level] = _checked(_level, table, entries)
    close = all(
        abs(entry.difference) < SIMILAR
        for entry in entries
        if entry.dataset == table.datasets[0][0]
        and entry.setting == CALM
        and entry.system in HEADLINE
    )
    return [replace(level, confirmed=close), *_checked(_strongest_attack, table, entries)]


def _checked(questions: Questions, table: Table, entries: Sequence[TableEntry]) -> list[Finding]:
    """Our answers, with the paper's numbers for the same questions."""
    ours = questions(table, Reading(table, entries, lambda entry: entry.accuracy))
    paper = questions(table, Reading(table, entries, lambda entry: entry.paper))
    return [
        replace(
            mine,
            paper=theirs.numbers + ("" if theirs.confirmed else " (which fail the same rule)"),
        )
        for mine, theirs in zip(ours, paper, strict=True)
    ]


def _level(table: Table, reading: Reading) -> list[Finding]:
    dataset = table.datasets[0][0]
    accuracies = _each(HEADLINE, reading.accuracies(dataset, CALM, HEADLINE))
    return [Finding(f"{dataset}, no attack: models reach the paper's accuracy", True, accuracies)]


def _strongest_attack(table: Table, reading: Reading) -> list[Finding]:
    dataset, setting = table.datasets[0][0], SEVERE[-1]
    words = f"{setting} by 1 of 4 nodes"
    return [reading.breaks_the_mean_alone(dataset, setting, CALM, words)]


def _highest_rate(table: Table, reading: Reading) -> list[Finding]:
    dataset, worst = table.datasets[0][0], table.rows[-1]
    calm = next(row.words for row in table.rows if row.nodes == worst.nodes)
    words = f"{worst.byzantine} of {worst.nodes} nodes attack"
    return [reading.breaks_the_mean_alone(dataset, worst.words, calm, words)]


def _by_threat(table: Table, reading: Reading) -> list[Finding]:
    """On texts the paper claims only that Multi-Krum is at least as good."""
    answers = []
    for dataset, _ in table.datasets:
        for setting in SEVERE:
            if table.kind is DataKind.IMAGES:
                answers.append(reading.collapse(dataset, setting))
            else:
                statement = f"{dataset}: {MULTI_KRUM} are at least as good under {setting}"
                answers.append(reading.better(statement, dataset, setting, ROBUST))
            answers.append(reading.hold(dataset, setting))
        settings = [row.words for row in table.rows]
        answers += [reading.similar(dataset, settings, names) for names in (MEANS, ROBUST)]
        for setting in (CALM, *MILD) if table.kind is DataKind.IMAGES else (CALM,):
            under = "without attack" if setting == CALM else f"under {setting}"
            statement = f"{dataset}: {FEDAVG} are at least as good {under}"
            answers.append(reading.better(statement, dataset, setting, MEANS))
    even, uneven = (reading.accuracies(dataset, CALM, ROBUST) for dataset, _ in table.datasets)
    answers.append(
        Finding(
            f"{MULTI_KRUM} are less accurate on non-i.i.d. data without attack",
            max(uneven) < min(even),
            f"{_each(ROBUST, uneven)}; i.i.d. {_each(ROBUST, even)}",
        )
    )
    return answers


def _by_rate(table: Table, reading: Reading) -> list[Finding]:
    [(dataset, _)] = table.datasets
    answers = []
    highest = []
    for nodes in dict.fromkeys(row.nodes for row in table.rows):
        calm, *attacked = (row.words for row in table.rows if row.nodes == nodes)
        highest.append(attacked[-1])
        by_rate = [reading.accuracies(dataset, setting, MEANS) for setting in (calm, *attacked)]
        answers.append(
            Finding(
                f"{nodes} nodes: {FEDAVG} fall as the Byzantine rate rises",
                all(max(after) < min(before) for before, after in itertools.pairwise(by_rate)),
                " → ".join(_each(MEANS, accuracies) for accuracies in by_rate),
            )
        )
        lost = [share for s in attacked for share in reading.lost(dataset, s, calm, ROBUST)]
        answers.append(
            Finding(
                f"{nodes} nodes: {MULTI_KRUM} stay stable",
                all(share < HOLDS for share in lost),
                f"at most {100 * max(lost):.0f} % lost",
            )
        )
        answers += [
            reading.better(
                f"{setting}: {MULTI_KRUM} are at least as good", dataset, setting, ROBUST
            )
            for setting in attacked
        ]
        if table.kind is DataKind.IMAGES:
            statement = f"{nodes} nodes: {FEDAVG} are at least as good without attack"
            answers.append(reading.better(statement, dataset, calm, MEANS))
    if table.kind is DataKind.TEXTS:
        by_size = [reading.accuracies(dataset, setting, MEANS) for setting in highest]
        answers.append(
            Finding(
                f"With nearly a third Byzantine, {FEDAVG} improve with the number of nodes",
                all(max(few) < min(more) for few, more in itertools.pairwise(by_size)),
                " → ".join(_each(MEANS, accuracies) for accuracies in by_size),
            )
        )
    return answers


def count_confirmed(findings: Sequence[Finding]) -> str:
    return f"{sum(finding.confirmed for finding in findings)} of {len(findings)}"


def contradicted(findings: Sequence[Finding], link: str = "") -> list[str]:
    """How many statements hold, and those that do not with their numbers."""
    count = f"**{count_confirmed(findings)} statements of the paper hold**{link}."
    lines = [finding.line() for finding in findings if not finding.confirmed]
    return [f"{count} Contradicted:", "", *lines] if lines else [count]


def all_statements(findings: Sequence[Finding]) -> list[str]:
    confirmed = [finding.line() for finding in findings if finding.confirmed]
    return [*contradicted(findings), *(["", "Confirmed:", "", *confirmed] if confirmed else [])]
