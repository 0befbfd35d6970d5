"""The paper's statements about its tables, each checked against the numbers measured here.

An explicit rule decides about each statement, so nothing is left to judgement: it holds, fails, or
is undecided because what it compares differs by less than the uncertainty of the repeats
(verdicts.py). The thresholds of these rules are the constants below; the page prints them.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from defl.lab.experiments.paper.settings import SYSTEM_WORDS, DataKind, Table
from defl.lab.experiments.paper.tables import TableEntry
from defl.lab.experiments.paper.verdicts import (
    UNCERTAINTY_IN_WORDS,
    Finding,
    Runs,
    TableQuestion,
    answered,
)

MEANS = ("fl", "swarm")  # FedAvg-based
ROBUST = ("biscotti", "defl")  # Multi-Krum-based
HEADLINE = ("fl", "defl")  # one of each kind stands for both
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
    f"{SIMILAR} apart. A statement about several systems or settings must hold for all of them. "
    f"{UNCERTAINTY_IN_WORDS}"
)


class Reading:
    """A table's accuracies by place and repeat: ours, or the paper's for the same questions."""

    def __init__(
        self, table: Table, entries: Sequence[TableEntry], runs: Callable[[TableEntry], Runs]
    ):
        self._chance = CHANCE[table.kind]
        self._runs = {(e.dataset, e.setting, e.system): runs(e) for e in entries}
        self._paper = {(e.dataset, e.setting, e.system): e.paper for e in entries}
        self.means = [name for name in MEANS if name in table.systems]
        self.robust = [name for name in ROBUST if name in table.systems]

    def runs(self, dataset: str, setting: str, names: Sequence[str]) -> list[Runs]:
        return [self._runs[dataset, setting, name] for name in names]

    def lost(self, dataset: str, setting: str, calm: str, names: Sequence[str]) -> list[Runs]:
        """The share of the accuracy gained over chance without attack.

        Negative if accuracy rose. NaN, which confirms no statement, if nothing was learned.
        """
        before = self.runs(dataset, calm, names)
        after = self.runs(dataset, setting, names)
        return [
            (b - a) / np.where(b > self._chance, b - self._chance, np.nan)
            for b, a in zip(before, after, strict=True)
        ]

    def reach_the_paper(self, dataset: str) -> TableQuestion:
        runs = self.runs(dataset, CALM, HEADLINE)
        papers = [self._paper[dataset, CALM, name] for name in HEADLINE]
        return TableQuestion(
            f"{dataset}, no attack: models reach the paper's accuracy",
            [mine - paper + SIMILAR for mine, paper in zip(runs, papers, strict=True)],
            _each(HEADLINE, runs),
        )

    def collapse(self, dataset: str, setting: str, calm: str = CALM) -> TableQuestion:
        lost = self.lost(dataset, setting, calm, self.means)
        statement = f"{dataset}: {FEDAVG} collapse under {setting}"
        return TableQuestion(
            statement, [share - COLLAPSE for share in lost], _lost(self.means, lost)
        )

    def hold(self, dataset: str, setting: str, calm: str = CALM) -> TableQuestion:
        lost = self.lost(dataset, setting, calm, self.robust)
        statement = f"{dataset}: {MULTI_KRUM} hold under {setting}"
        return TableQuestion(statement, [HOLDS - share for share in lost], _lost(self.robust, lost))

    def better(
        self, statement: str, dataset: str, setting: str, names: Sequence[str]
    ) -> TableQuestion:
        """Each of `names` is at least as good as each other system."""
        others = [name for name in (*self.means, *self.robust) if name not in names]
        mine, theirs = (self.runs(dataset, setting, those) for those in (names, others))
        numbers = f"{_each(names, mine)}; {_each(others, theirs)}"
        pairs = itertools.product(mine, theirs)
        return TableQuestion(statement, [one - other + EQUAL for one, other in pairs], numbers)

    def similar(self, dataset: str, settings: Sequence[str], names: Sequence[str]) -> TableQuestion:
        apart = {}
        for setting in settings:
            one, other = self.runs(dataset, setting, names)
            apart[setting] = one - other
        sizes = {setting: abs(float(np.mean(runs))) for setting, runs in apart.items()}
        most = max(sizes, key=lambda setting: sizes[setting])
        words = " and ".join(SYSTEM_WORDS[name] for name in names)
        return TableQuestion(
            f"{dataset}: {words} have similar accuracy",
            [SIMILAR - sign * runs for runs in apart.values() for sign in (1, -1)],
            f"up to {sizes[most]:.3f} apart" + (f" ({most})" if sizes[most] else ""),
        )


def _each(names: Sequence[str], values: Sequence[Runs]) -> str:
    return ", ".join(
        f"{SYSTEM_WORDS[n]} {np.mean(runs):.3f}" for n, runs in zip(names, values, strict=True)
    )


def _lost(names: Sequence[str], values: Sequence[Runs]) -> str:
    shown = (
        f"{SYSTEM_WORDS[n]} {100 * np.mean(runs):z.0f} %"
        for n, runs in zip(names, values, strict=True)
    )
    return f"{', '.join(shown)} lost"


Questions = Callable[[Table, Reading], list[TableQuestion]]


def findings(table: Table, entries: Sequence[TableEntry]) -> list[Finding]:
    return _answers(_by_threat if _has_threats(table) else _by_rate, table, entries)


def level(table: Table, entries: Sequence[TableEntry]) -> list[Finding]:
    """Whether the models are as accurate as the paper's: what the other answers are worth."""
    return _answers(_level, table, entries) if _has_threats(table) else []


def _has_threats(table: Table) -> bool:
    """Its rows are attacks, not numbers of nodes."""
    return table.rows[0].words == CALM


def _answers(questions: Questions, table: Table, entries: Sequence[TableEntry]) -> list[Finding]:
    """Our answers, with the paper's numbers for the same questions.

    A table of threats may have gaps: then the rows measured count.
    """
    there = {(e.dataset, e.setting, e.system) for e in entries}
    places = list(itertools.product([name for name, _ in table.datasets], table.systems))
    rows = [row for row in table.rows if all((d, row.words, s) in there for d, s in places)]
    if table.rows[0] not in rows or (len(rows) < len(table.rows) and not _has_threats(table)):
        return []  # every row is compared with the first
    table = replace(table, rows=tuple(rows))
    ours = questions(table, Reading(table, entries, lambda e: np.array(e.runs or [e.accuracy])))
    paper = questions(table, Reading(table, entries, lambda e: np.array([e.paper])))
    return [answered(mine, theirs) for mine, theirs in zip(ours, paper, strict=True)]


def _level(table: Table, reading: Reading) -> list[TableQuestion]:
    return [reading.reach_the_paper(table.datasets[0][0])]


def _by_threat(table: Table, reading: Reading) -> list[TableQuestion]:
    """On texts the paper claims only that Multi-Krum is at least as good."""
    answers = []
    settings = [row.words for row in table.rows]
    mild = (CALM, *MILD) if table.kind is DataKind.IMAGES else (CALM,)
    for dataset, _ in table.datasets:
        for setting in (setting for setting in SEVERE if setting in settings):
            if table.kind is DataKind.IMAGES:
                answers.append(reading.collapse(dataset, setting))
            else:
                statement = f"{dataset}: {MULTI_KRUM} are at least as good under {setting}"
                answers.append(reading.better(statement, dataset, setting, reading.robust))
            answers.append(reading.hold(dataset, setting))
        pairs = [names for names in (reading.means, reading.robust) if len(names) > 1]
        answers += [reading.similar(dataset, settings, names) for names in pairs]
        for setting in (setting for setting in mild if setting in settings):
            under = "without attack" if setting == CALM else f"under {setting}"
            statement = f"{dataset}: {FEDAVG} are at least as good {under}"
            answers.append(reading.better(statement, dataset, setting, reading.means))
    if len(table.datasets) > 1:
        even, uneven = (reading.runs(name, CALM, reading.robust) for name, _ in table.datasets)
        answers.append(
            TableQuestion(
                f"{MULTI_KRUM} are less accurate on non-i.i.d. data without attack",
                [high - low for high, low in itertools.product(even, uneven)],
                f"{_each(reading.robust, uneven)}; i.i.d. {_each(reading.robust, even)}",
            )
        )
    return answers


def _by_rate(table: Table, reading: Reading) -> list[TableQuestion]:
    [(dataset, _)] = table.datasets
    answers = []
    highest = []
    for nodes in dict.fromkeys(row.nodes for row in table.rows):
        calm, *attacked = (row.words for row in table.rows if row.nodes == nodes)
        highest.append(attacked[-1])
        by_rate = [reading.runs(dataset, setting, reading.means) for setting in (calm, *attacked)]
        answers.append(_falls(f"{nodes} nodes: {FEDAVG} fall as the Byzantine rate rises", by_rate))
        lost = [share for s in attacked for share in reading.lost(dataset, s, calm, reading.robust)]
        answers.append(
            TableQuestion(
                f"{nodes} nodes: {MULTI_KRUM} stay stable",
                [HOLDS - share for share in lost],
                f"at most {100 * max(np.mean(share) for share in lost):.0f} % lost",
            )
        )
        answers += [
            reading.better(
                f"{setting}: {MULTI_KRUM} are at least as good", dataset, setting, reading.robust
            )
            for setting in attacked
        ]
        if table.kind is DataKind.IMAGES:
            statement = f"{nodes} nodes: {FEDAVG} are at least as good without attack"
            answers.append(reading.better(statement, dataset, calm, reading.means))
    if table.kind is DataKind.TEXTS:
        by_size = [reading.runs(dataset, setting, reading.means) for setting in highest]
        statement = f"With nearly a third Byzantine, {FEDAVG} improve with the number of nodes"
        answers.append(_falls(statement, by_size, rises=True))
    return answers


def _falls(
    statement: str, steps: Sequence[Sequence[Runs]], *, rises: bool = False
) -> TableQuestion:
    """Each system is worse (or better) after a step than both were before it."""
    sign = -1 if rises else 1
    margins = [
        sign * (high - low)
        for before, after in itertools.pairwise(steps)
        for high, low in itertools.product(before, after)
    ]
    return TableQuestion(statement, margins, " → ".join(_each(MEANS, step) for step in steps))
