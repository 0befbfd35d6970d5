"""The results of the robustness cells as CSV, as Markdown and as a heat map."""

import csv
from collections.abc import Mapping
from colorsys import hls_to_rgb
from dataclasses import asdict, fields
from html import escape
from math import isnan
from pathlib import Path
from statistics import mean

from defl.lab.experiments.robustness_cell import NO_ATTACK, RobustnessCell, RobustnessResult
from defl.schema import Codec

# The heat map's dimensions, in pixels.
CELL_WIDTH, CELL_HEIGHT, BASELINE = 48, 18, 13
LEFT, TOP, GAP = 110, 175, 14
OVERHANG = 100  # of the last rule's name, which is written at 45 degrees
LOSS_MAX = 0.3  # shown in full red


def write_tables(results: Mapping[RobustnessCell, RobustnessResult], folder: Path) -> None:
    """Write robustness.csv (a line per cell), and means over seeds as robustness.md and .svg."""
    write_csv(results, folder / "robustness.csv")
    means = mean_accuracies(results)
    (folder / "robustness.md").write_text(markdown(means), encoding="utf-8")
    (folder / "robustness.svg").write_text(heat_map(means), encoding="utf-8")


def write_csv(results: Mapping[RobustnessCell, RobustnessResult], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        names = [field.name for field in (*fields(RobustnessCell), *fields(RobustnessResult))]
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows({**asdict(cell), **asdict(result)} for cell, result in results.items())


Place = tuple[int, float | None, str]  # members, alpha, attack
Means = dict[Place, dict[str, float]]  # accuracy by rule


def mean_accuracies(results: Mapping[RobustnessCell, RobustnessResult]) -> Means:
    """Means over the seeds that all rules of a line share; other means do not compare."""
    gathered: dict[Place, dict[str, dict[int, float]]] = {}
    lengths = {cell.rounds for cell in results}
    for cell, result in results.items():
        place = (cell.members, cell.alpha, cell.attack)
        by_rule = gathered.setdefault(place, {})
        column = column_of(cell) + (f", {cell.rounds} rounds" if len(lengths) > 1 else "")
        by_rule.setdefault(column, {})[cell.seed] = result.accuracy
        if cell.attack == "backdoor":
            worked = gathered.setdefault((cell.members, cell.alpha, "backdoor worked"), {})
            worked.setdefault(column, {})[cell.seed] = result.backdoor
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


def column_of(cell: RobustnessCell) -> str:
    codec = "" if cell.codec == Codec.FP32 else f" {cell.codec}"
    away = f" away {cell.away}" if cell.away else ""
    return f"{cell.rule}{codec}{away}"


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
    """Green where the accuracy is FedAvg's without attack, red where LOSS_MAX of it is lost."""
    if isnan(share):
        return "#dddddd"
    loss = min(1.0, max(0.0, (best - share) / LOSS_MAX))
    red, green, blue = hls_to_rgb((1 - loss) / 3, 0.72, 0.65)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def heat_map(means: Means) -> str:
    """A panel per setting, data splits side by side, with a row per attack and a column per rule.

    Colours are relative to FedAvg without attack.
    """
    rules = rules_in(means)
    shown = [place for place in means if place[2] != "backdoor worked"]
    attacks = list(dict.fromkeys(attack for _, _, attack in shown))
    counts = list(dict.fromkeys(members for members, _, _ in shown))
    alphas = list(dict.fromkeys(alpha for _, alpha, _ in shown))
    panel_width = CELL_WIDTH * len(rules) + GAP
    panel_height = CELL_HEIGHT * (len(attacks) + 1) + GAP
    width = LEFT + panel_width * len(alphas) + OVERHANG
    height = TOP + panel_height * len(counts)
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="11" '
        f'viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    )
    title = (
        "Test accuracy in percent, by rule and attack. Green: as good as FedAvg without attack; "
        f"red: {100 * LOSS_MAX:g} points less, or worse."
    )
    parts = [head, '<rect width="100%" height="100%" fill="white"/>']
    parts.append(f'<text x="6" y="18" font-size="13">{escape(title)}</text>')
    for across in range(len(alphas)):
        for column, rule in enumerate(rules):
            x = LEFT + panel_width * across + CELL_WIDTH * column + CELL_WIDTH // 2
            parts.append(
                f'<text transform="translate({x},{TOP - 6}) rotate(-45)">{escape(rule)}</text>'
            )
    for down, members in enumerate(counts):
        y = TOP + panel_height * down
        for row, attack in enumerate(attacks, 1):
            below = y + CELL_HEIGHT * row + BASELINE
            parts.append(f'<text x="6" y="{below}">{escape(attack)}</text>')
        for across, alpha in enumerate(alphas):
            x = LEFT + panel_width * across
            parts += panel(means, members, alpha, rules, attacks, x, y)
    return "\n".join([*parts, "</svg>", ""])


def panel(
    means: Means,
    members: int,
    alpha: float | None,
    rules: list[str],
    attacks: list[str],
    left: int,
    top: int,
) -> list[str]:
    title = escape(f"n = {members}, {kind_of_data(alpha)}")
    parts = [f'<text x="{left}" y="{top + BASELINE}" font-weight="bold">{title}</text>']
    best = means.get((members, alpha, NO_ATTACK), {}).get("fed_avg", 1.0)
    for down, attack in enumerate(attacks, 1):
        row = means.get((members, alpha, attack), {})
        y = top + CELL_HEIGHT * down
        for across, rule in enumerate(rules):
            if rule in row:
                x = left + CELL_WIDTH * across
                parts.append(
                    f'<rect x="{x}" y="{y}" width="{CELL_WIDTH}" height="{CELL_HEIGHT}" '
                    f'fill="{colour(row[rule], best)}" stroke="white"/>'
                    f'<text x="{x + CELL_WIDTH // 2}" y="{y + BASELINE}" text-anchor="middle">'
                    f"{percent(row[rule])}</text>"
                )
    return parts
