"""Why Multi-Krum costs accuracy without attack: how many updates are averaged, and which.

Four honest nodes and one server; only the server's merge changes. Averaging fewer updates drawn at
random shows the cost of their number. Multi-Krum with the same number shows the additional cost of
leaving out the same outliers again and again, and with them their data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import numpy as np

from defl.lab.experiments.paper.accuracy import AccuracyCell, AccuracyResult
from defl.lab.experiments.paper.findings import CALM, EQUAL
from defl.lab.experiments.paper.settings import DIRICHLET, Setting
from defl.lab.experiments.paper.tables import paper_accuracies
from defl.lab.experiments.paper.verdicts import Finding, Runs, uncertainty, verdict
from defl.lab.experiments.threats import NONE

NODES = 4
# What each merge averages; None is FedAvg, weighted by samples.
MERGES: dict[str | None, str] = {
    None: "all 4, by samples (FedAvg)",
    "fed_avg": "all 4, equally",
    "random_3": "3 drawn at random in each round",
    "multi_krum": "the 3 = n - f closest (Multi-Krum, DeFL's count)",
    "random_2": "2 drawn at random in each round",
    "multi_krum_two": "the 2 closest (Multi-Krum as the paper's authors ran it)",
}
EVEN, UNEVEN = "i.i.d.", "non-i.i.d."
ALPHAS: dict[str, float | None] = {EVEN: None, UNEVEN: DIRICHLET}
# By how many updates are kept: the merge that draws them, and the one that chooses them.
PAIRS = {3: ("random_3", "multi_krum"), 2: ("random_2", "multi_krum_two")}

HEADING = "Why Multi-Krum costs accuracy without attack"

Cells = dict[tuple[str, str | None], list[AccuracyCell]]
Results = Mapping[AccuracyCell, AccuracyResult]


def planned(setting: Setting, repeats: int) -> Cells:
    return {
        (words, merge): [
            AccuracyCell(
                "fl" if merge is None else "fl_multi_krum",
                NODES,
                0,
                NONE.name,
                alpha,
                setting.learning,
                setting.rounds,
                setting.rounds_judged,
                seed,
                merge=merge,
            )
            for seed in range(1, repeats + 1)
        ]
        for words, alpha in ALPHAS.items()
        for merge in MERGES
    }


def as_json(cells: Cells, results: Results) -> list[dict[str, Any]]:
    """One object for each run."""
    return [
        {
            "dataset": words,
            "merge": merge or "by samples",
            "seed": cell.seed,
            "accuracy": results[cell].accuracy,
            "left_out": list(results[cell].left_out),
            "samples": list(results[cell].samples),
        }
        for (words, merge), repeats in cells.items()
        for cell in repeats
    ]


@dataclass(frozen=True, slots=True)
class Loss:
    """Accuracy lost against the mean of all updates: by how many are averaged, and by which."""

    kept: int
    number_runs: Runs
    choice_runs: Runs

    @property
    def by_number(self) -> float:
        return float(np.mean(self.number_runs))

    @property
    def by_choice(self) -> float:
        return float(np.mean(self.choice_runs))

    @property
    def total_runs(self) -> Runs:
        return self.number_runs + self.choice_runs

    @property
    def total(self) -> float:
        return self.by_number + self.by_choice


def accuracies(cells: Cells, results: Results) -> dict[tuple[str, str | None], float]:
    return {place: float(np.mean(runs)) for place, runs in _runs(cells, results).items()}


def _runs(cells: Cells, results: Results) -> dict[tuple[str, str | None], Runs]:
    return {
        place: np.array([results[cell].accuracy for cell in repeats])
        for place, repeats in cells.items()
    }


def losses(cells: Cells, results: Results) -> dict[str, list[Loss]]:
    reached = _runs(cells, results)
    return {
        words: [
            Loss(
                kept,
                reached[words, "fed_avg"] - reached[words, at_random],
                reached[words, at_random] - reached[words, chosen],
            )
            for kept, (at_random, chosen) in PAIRS.items()
        ]
        for words in ALPHAS
    }


def findings(cells: Cells, results: Results) -> list[Finding]:
    """The paper's claims about CIFAR-10 without attack, tested with its authors' two of four."""
    paper = paper_accuracies()
    before, after = (paper["table1", "CIFAR-noniid", CALM, system] for system in ("fl", "defl"))
    by_data = losses(cells, results)
    even, uneven = (next(loss for loss in by_data[words] if loss.kept == 2) for words in ALPHAS)
    return [
        Finding(
            "Without attack Multi-Krum costs accuracy, on non-i.i.d. data more than on i.i.d.",
            _verdict(uneven.total_runs - EQUAL, uneven.total_runs - even.total_runs),
            f"the 2 closest of 4 lose {uneven.total:.3f} and {even.total:.3f}",
            f"{before:.3f} to {after:.3f} on non-i.i.d. data",
        ),
        Finding(
            "Multi-Krum costs accuracy because of which updates it leaves out: honest outliers",
            _verdict(uneven.choice_runs - EQUAL, uneven.choice_runs - uneven.number_runs),
            f"of {uneven.total:.3f} lost, {uneven.by_number:.3f} by averaging any 2 updates "
            f"instead of 4, and {uneven.by_choice:+.3f} by leaving out the outliers",
        ),
    ]


def _verdict(*margins: Runs) -> bool | None:
    return verdict(margins, [uncertainty(runs) for runs in margins])


def explanation(cells: Cells, results: Results) -> str:
    sentences = []
    for words, by_count in losses(cells, results).items():
        clauses = [
            f"averaging {loss.kept} instead of {NODES} costs {loss.by_number:.3f}, and choosing "
            f"the closest {loss.kept} {_cost_in_words(loss.by_choice)}"
            for loss in by_count
        ]
        sentences.append(f"On {words} data {'; '.join(clauses)}.")
    uneven = losses(cells, results)[UNEVEN]
    by = "number" if sum(loss.by_number - loss.by_choice for loss in uneven) > 0 else "choice"
    three, two = uneven
    sentences.append(
        f"So on non-i.i.d. data the {by} of updates costs more, and keeping n - f = 3 "
        f"instead of 2 reduces the loss from {two.total:.3f} to {three.total:.3f}."
    )
    if any(len(repeats) == 1 for repeats in cells.values()):
        sentences.append(
            "Each number comes from one run with one division of the data; differences of a "
            "hundredth may be chance."
        )
    return " ".join(sentences)


def _cost_in_words(cost: float) -> str:
    if abs(cost) < EQUAL:
        return f"makes no difference ({cost:+.3f})"
    return f"costs {cost:.3f} more" if cost > 0 else f"gives {-cost:.3f} back"


def as_brief_markdown(cells: Cells, results: Results, setting: str) -> list[str]:
    reached = accuracies(cells, results)
    return [
        f"Accuracy with four honest nodes; only the server's merge differs. {setting}",
        "",
        f"| a round's model is the mean of | {' | '.join(f'{words} data' for words in ALPHAS)} |",
        "|---" * (len(ALPHAS) + 1) + "|",
        *(
            f"| {averaged} | {' | '.join(f'{reached[words, merge]:.3f}' for words in ALPHAS)} |"
            for merge, averaged in MERGES.items()
        ),
        "",
        explanation(cells, results),
    ]


def as_markdown(cells: Cells, results: Results, setting: str) -> list[str]:
    intro = (
        "Four honest nodes; only the server's merge differs. The last two columns: the share of "
        "rounds that left out each node's update, and the share of samples that a round's model "
        "did without."
    )
    lines = [f"{intro} {setting}"]
    for words in ALPHAS:
        lines += [
            "",
            f"| {words}: the mean of | accuracy | left out, node 0 to 3 | samples unused |",
            "|---|---|---|---|",
        ]
        for merge, averaged in MERGES.items():
            runs = [results[cell] for cell in cells[words, merge]]
            values = [run.accuracy for run in runs]
            spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
            left_out, unused = _left_out(runs)
            lines.append(f"| {averaged} | {mean(values):.3f}{spread} | {left_out} | {unused:.0%} |")
    return [*lines, "", explanation(cells, results)]


def _left_out(runs: list[AccuracyResult]) -> tuple[str, float]:
    """Each node's share in the first repeat (the others divide the data differently), and the
    unused samples over all repeats."""
    shares = [run.left_out or (0.0,) * NODES for run in runs]
    unused = mean(
        sum(share * size for share, size in zip(left, run.samples, strict=True)) / sum(run.samples)
        for left, run in zip(shares, runs, strict=True)
    )
    return ", ".join(f"{share:.0%}" for share in shares[0]), unused
