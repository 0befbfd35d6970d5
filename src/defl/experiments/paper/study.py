"""Why Multi-Krum costs accuracy without attack: how many updates are averaged, and which.

Four honest nodes and one server, whose merge alone changes. Averaging fewer updates drawn at
random shows what their number costs; Multi-Krum with the same number shows what it costs on top
that the same outliers are left out again and again, and their data with them.
"""

import csv
from collections.abc import Mapping
from io import StringIO
from statistics import mean, stdev
from typing import Any

from defl.experiments.paper.accuracy import AccuracyCell, AccuracyResult
from defl.experiments.paper.settings import DIRICHLET, Setting
from defl.experiments.threats import NONE

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
ALPHAS: dict[str, float | None] = {"i.i.d.": None, "non-i.i.d.": DIRICHLET}

Cells = dict[tuple[str, str | None], list[AccuracyCell]]


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


def as_json(cells: Cells, results: Mapping[AccuracyCell, AccuracyResult]) -> list[dict[str, Any]]:
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


def as_markdown(cells: Cells, results: Mapping[AccuracyCell, AccuracyResult]) -> str:
    lines = [
        "### Why Multi-Krum costs accuracy without attack",
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
    return "\n".join(lines) + "\n"


def _left_out(found: list[AccuracyResult]) -> tuple[str, float]:
    """By node, of the first repeat (each has other data), and the samples over all repeats."""
    shares = [result.left_out or (0.0,) * NODES for result in found]
    unused = mean(
        sum(share * size for share, size in zip(left, result.samples, strict=True))
        / sum(result.samples)
        for left, result in zip(shares, found, strict=True)
    )
    return ", ".join(f"{share:.0%}" for share in shares[0]), unused
