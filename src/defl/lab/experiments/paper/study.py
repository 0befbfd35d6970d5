"""Why Multi-Krum costs accuracy without attack: how many updates are averaged, and which.

Four honest nodes and one server, whose merge alone changes. Averaging fewer updates drawn at
random shows what their number costs; Multi-Krum with the same number shows what it costs on top
that the same outliers are left out again and again, and their data with them.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from statistics import mean, stdev
from typing import Any

from defl.lab.experiments.paper.accuracy import AccuracyCell, AccuracyResult
from defl.lab.experiments.paper.findings import CALM, EQUAL, Finding
from defl.lab.experiments.paper.settings import DIRICHLET, Setting
from defl.lab.experiments.paper.tables import paper_accuracies
from defl.lab.experiments.threats import NONE

NODES = 4
# The merge, or None for FedAvg by samples; and what it averages.
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
# As many updates drawn at random, and chosen by Multi-Krum.
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


def as_csv(made: list[dict[str, Any]]) -> str:
    text = StringIO()
    names = ("dataset", "merge", "seed", "accuracy")
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(made)
    return text.getvalue()


@dataclass(frozen=True, slots=True)
class Loss:
    """Of accuracy, against the mean of all: by how many are averaged, and by which."""

    kept: int
    by_number: float
    by_choice: float

    @property
    def total(self) -> float:
        return self.by_number + self.by_choice


def accuracies(cells: Cells, results: Results) -> dict[tuple[str, str | None], float]:
    return {
        place: mean(results[cell].accuracy for cell in repeats) for place, repeats in cells.items()
    }


def losses(cells: Cells, results: Results) -> dict[str, list[Loss]]:
    found = accuracies(cells, results)
    return {
        words: [
            Loss(
                kept,
                found[words, "fed_avg"] - found[words, at_random],
                found[words, at_random] - found[words, chosen],
            )
            for kept, (at_random, chosen) in PAIRS.items()
        ]
        for words in ALPHAS
    }


def findings(cells: Cells, results: Results) -> list[Finding]:
    """What the paper says of CIFAR-10 without attack, held against the authors' two of four."""
    paper = paper_accuracies()
    theirs = [paper["table1", "CIFAR-noniid", CALM, system] for system in ("fl", "defl")]
    made = losses(cells, results)
    even, uneven = (next(loss for loss in made[words] if loss.kept == 2) for words in ALPHAS)
    return [
        Finding(
            "Without attack Multi-Krum costs accuracy on non-i.i.d. data, more than on i.i.d.",
            uneven.total > max(EQUAL, even.total),
            f"the 2 closest of 4: {uneven.total:.3f} and {even.total:.3f} lost. The paper's: "
            f"{theirs[0]:.3f} to {theirs[1]:.3f} on non-i.i.d. data",
        ),
        Finding(
            "The reason is which updates it leaves out: honest outliers",
            uneven.by_choice > max(EQUAL, uneven.by_number),
            f"of {uneven.total:.3f} lost, {uneven.by_number:.3f} by averaging 2 updates instead of "
            f"4, whichever they are; {uneven.by_choice:+.3f} by leaving the outliers out",
        ),
    ]


def explained(cells: Cells, results: Results) -> str:
    """What the numbers show, in sentences."""
    lines = []
    for words, found in losses(cells, results).items():
        said = [
            f"averaging {loss.kept} instead of {NODES} costs {loss.by_number:.3f}, and choosing "
            f"the closest {loss.kept} {_further(loss.by_choice)}"
            for loss in found
        ]
        lines.append(f"On {words} data {'; '.join(said)}.")
    uneven = losses(cells, results)[UNEVEN]
    by = "number" if sum(loss.by_number - loss.by_choice for loss in uneven) > 0 else "choice"
    three, two = uneven
    lines.append(
        f"So on non-i.i.d. data the {by} of updates is what costs more, and keeping n - f = 3 "
        f"instead of 2 takes the loss from {two.total:.3f} to {three.total:.3f}."
    )
    if any(len(repeats) == 1 for repeats in cells.values()):
        lines.append(
            "Each number is of one run, with one division of the data: a hundredth may be chance."
        )
    return " ".join(lines)


def _further(cost: float) -> str:
    if abs(cost) < EQUAL:
        return f"makes no difference ({cost:+.3f})"
    return f"costs {cost:.3f} more" if cost > 0 else f"gives {-cost:.3f} back"


def as_markdown(cells: Cells, results: Results) -> str:
    lines = [
        f"### {HEADING}",
        "",
        (
            "Four honest nodes; only the server's merge differs. The last columns: in which share "
            "of rounds each node's update was left out, and the share of all samples that a "
            "round's model was made without."
        ),
    ]
    for words in ALPHAS:
        lines += [
            "",
            f"| {words}: the mean of | accuracy | left out, node 0 to 3 | samples unused |",
            "|---|---|---|---|",
        ]
        for merge, said in MERGES.items():
            found = [results[cell] for cell in cells[words, merge]]
            numbers = [result.accuracy for result in found]
            spread = f" ± {stdev(numbers):.3f}" if len(numbers) > 1 else ""
            left_out, unused = _left_out(found)
            lines.append(f"| {said} | {mean(numbers):.3f}{spread} | {left_out} | {unused:.0%} |")
    return "\n".join([*lines, "", explained(cells, results)]) + "\n"


def _left_out(found: list[AccuracyResult]) -> tuple[str, float]:
    """By node, of the first repeat (each has other data), and the samples over all repeats."""
    shares = [result.left_out or (0.0,) * NODES for result in found]
    unused = mean(
        sum(share * size for share, size in zip(left, result.samples, strict=True))
        / sum(result.samples)
        for left, result in zip(shares, found, strict=True)
    )
    return ", ".join(f"{share:.0%}" for share in shares[0]), unused
