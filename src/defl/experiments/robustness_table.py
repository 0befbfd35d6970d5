"""The results of the robustness cells as CSV, as Markdown and as a heat map."""

import csv
from collections.abc import Mapping
from dataclasses import asdict, fields
from html import escape
from math import isnan
from pathlib import Path
from statistics import mean

from defl.experiments.robustness_cell import NO_ATTACK, Cell, CellResult

CELL_WIDTH, CELL_HEIGHT, LEFT, TOP = 62, 20, 190, 150


def written_tables(results: Mapping[Cell, CellResult], folder: Path) -> None:
    """`robustness.csv` (one line per cell), `robustness.md` and `robustness.svg` (means over
    seeds)."""
    with (folder / "robustness.csv").open("w", newline="", encoding="utf-8") as file:
        names = [field.name for field in (*fields(Cell), *fields(CellResult))]
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows({**asdict(cell), **asdict(result)} for cell, result in results.items())
    means = mean_accuracies(results)
    (folder / "robustness.md").write_text(markdown(means), encoding="utf-8")
    (folder / "robustness.svg").write_text(heat_map(means), encoding="utf-8")


Place = tuple[int, float | None, str]  # members, alpha, attack
Means = dict[Place, dict[str, float]]  # accuracy by rule


def mean_accuracies(results: Mapping[Cell, CellResult]) -> Means:
    """Over the seeds that all rules of a line were run with: means of others do not compare."""
    gathered: dict[Place, dict[str, dict[int, float]]] = {}
    for cell, result in results.items():
        place = (cell.members, cell.alpha, cell.attack)
        by_rule = gathered.setdefault(place, {})
        by_rule.setdefault(cell.rule, {})[cell.seed] = result.accuracy
        if cell.attack == "backdoor":
            worked = gathered.setdefault((cell.members, cell.alpha, "backdoor worked"), {})
            worked.setdefault(cell.rule, {})[cell.seed] = result.backdoor
    means: Means = {}
    for place in sorted(gathered, key=lambda p: (p[0], -(p[1] or 1e9))):
        by_rule = gathered[place]
        shared = set.intersection(*(set(by_seed) for by_seed in by_rule.values()))
        means[place] = {
            rule: mean(by_seed[seed] for seed in sorted(shared))
            for rule, by_seed in by_rule.items()
            if shared
        }
    return means


def kind_of_data(alpha: float | None) -> str:
    return "i.i.d." if alpha is None else f"alpha = {alpha:g}"


def rules_in(means: Means) -> list[str]:
    return list(dict.fromkeys(rule for row in means.values() for rule in row))


def percent(share: float) -> str:
    return "refused" if isnan(share) else f"{100 * share:.1f}"


def markdown(means: Means) -> str:
    rules = rules_in(means)
    lines = [
        "Test accuracy in percent, means over the seeds that all rules of a line were run with;",
        "attackers f = (n - 1) / 3; the first line of each: none.",
        "",
    ]
    last = None
    for (members, alpha, attack), row in means.items():
        if (members, alpha) != last:
            last = (members, alpha)
            lines += ["", f"### n = {members}, {kind_of_data(alpha)}", ""]
            lines += ["| attack | " + " | ".join(rules) + " |", "|---" * (len(rules) + 1) + "|"]
        numbers = [percent(row[rule]) if rule in row else "" for rule in rules]
        lines.append(f"| {attack} | " + " | ".join(numbers) + " |")
    return "\n".join(lines) + "\n"


def colour(share: float, best: float) -> str:
    """Green where the accuracy is FedAvg's without attack, red where nothing is left of it."""
    if isnan(share):
        return "#dddddd"
    loss = min(1.0, max(0.0, (best - share) / 0.5))
    return f"hsl({round(120 * (1 - loss))} 65% 72%)"


def heat_map(means: Means) -> str:
    """A row per attack and setting, a column per rule; colours relative to FedAvg unattacked."""
    rules = rules_in(means)
    shown = {place: row for place, row in means.items() if place[2] != "backdoor worked"}
    width = LEFT + CELL_WIDTH * len(rules) + 10
    height = TOP + CELL_HEIGHT * (len(shown) + 9) + 10
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="11" '
        f'width="{width}" height="{height}">'
    )
    parts = [head, '<rect width="100%" height="100%" fill="white"/>']
    for column, rule in enumerate(rules):
        x = LEFT + CELL_WIDTH * column + CELL_WIDTH // 2
        parts.append(
            f'<text transform="translate({x},{TOP - 8}) rotate(-45)">{escape(rule)}</text>'
        )
    y, last = TOP, None
    for (members, alpha, attack), row in shown.items():
        if (members, alpha) != last:
            last = (members, alpha)
            y += CELL_HEIGHT
            title = f"n = {members}, {kind_of_data(alpha)}"
            parts.append(f'<text x="6" y="{y - 5}" font-weight="bold">{escape(title)}</text>')
        best = means.get((members, alpha, NO_ATTACK), {}).get("fed_avg", 1.0)
        parts.append(f'<text x="16" y="{y + 14}">{escape(attack)}</text>')
        for column, rule in enumerate(rules):
            if rule in row:
                x = LEFT + CELL_WIDTH * column
                parts.append(
                    f'<rect x="{x}" y="{y}" width="{CELL_WIDTH}" height="{CELL_HEIGHT}" '
                    f'fill="{colour(row[rule], best)}" stroke="white"/>'
                    f'<text x="{x + CELL_WIDTH // 2}" y="{y + 14}" text-anchor="middle">'
                    f"{percent(row[rule])}</text>"
                )
        y += CELL_HEIGHT
    return "\n".join([*parts, "</svg>", ""])
