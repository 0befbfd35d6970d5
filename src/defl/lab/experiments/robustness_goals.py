"""How the adaptive rule fares by what is asked of it, from the results of the robustness cells.

Without attack: points lost to FedAvg, and how often an honest member was left out. Under attack:
points against Multi-Krum. Means over seeds and the worst seed; a negative difference is a loss.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import mean

from defl.lab.experiments.robustness_cell import NO_ATTACK, RobustnessCell, RobustnessResult
from defl.lab.experiments.robustness_table import kind_of_data

RULE = "adaptive"
WITHOUT_ATTACK = "fed_avg"
UNDER_ATTACK = "multi_krum"

Results = Mapping[RobustnessCell, RobustnessResult]
Setting = tuple[int, float | None, int, int, str]  # members, alpha, rounds, away, attack


def differences(results: Results) -> dict[Setting, list[float]]:
    """By setting, the rule's accuracy minus its reference's in points, for each seed of both."""
    gathered: dict[Setting, list[float]] = {}
    for cell, result in results.items():
        reference = replace(cell, rule=WITHOUT_ATTACK if cell.attack == NO_ATTACK else UNDER_ATTACK)
        if cell.rule == RULE and reference in results:
            points = 100 * (result.accuracy - results[reference].accuracy)
            gathered.setdefault(_setting(cell), []).append(points)
    return gathered


def goals_markdown(results: Results) -> str:
    """Two tables; empty if nothing compares."""
    gathered = differences(results)
    if not gathered:
        return ""
    lines = ["The adaptive rule, in points of accuracy; negative: a loss."]
    calm = {setting: points for setting, points in gathered.items() if setting[4] == NO_ATTACK}
    if calm:
        lines += [
            "",
            "Without attack, against FedAvg. *Left out*: share of its rounds in which the rule",
            "left out the worst-off honest member, mean over seeds and the worst seed; over all",
            "rounds, over the last half, and of a member that was away, after its return.",
            "",
            "| n | data | rounds | away | seeds | mean | worst | left out | last half | returned |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
    for setting, points in calm.items():
        of_setting = [
            result
            for cell, result in results.items()
            if cell.rule == RULE and _setting(cell) == setting
        ]
        shares = [
            _mean_and_worst(result.worst_left_out for result in of_setting),
            _mean_and_worst(result.worst_left_out_late for result in of_setting),
            _mean_and_worst(result.returned_left_out for result in of_setting),
        ]
        lines.append("| " + " | ".join([*_figures(setting, points), *shares]) + " |")
    if len(calm) < len(gathered):
        lines += [
            "",
            "Under attack, against Multi-Krum.",
            "",
            "| n | data | rounds | away | seeds | mean | worst | attack |",
            "|---|---|---|---|---|---|---|---|",
        ]
        lines += [
            "| " + " | ".join([*_figures(setting, points), setting[4]]) + " |"
            for setting, points in gathered.items()
            if setting not in calm
        ]
    return "\n".join(lines) + "\n"


def _setting(cell: RobustnessCell) -> Setting:
    return (cell.members, cell.alpha, cell.rounds, cell.away, cell.attack)


def _figures(setting: Setting, points: Sequence[float]) -> list[str]:
    members, alpha, rounds, away, _ = setting
    counts = [f"{rounds}", f"{away}", f"{len(points)}"]
    return [
        f"{members}",
        kind_of_data(alpha),
        *counts,
        f"{mean(points):+.2f}",
        f"{min(points):+.1f}",
    ]


def _mean_and_worst(shares: Iterable[float | None]) -> str:
    known = [100 * share for share in shares if share is not None]
    return f"{mean(known):.0f} %, {max(known):.0f} %" if known else ""
