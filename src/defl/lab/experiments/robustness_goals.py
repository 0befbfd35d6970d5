"""How the adaptive rule fares by what is asked of it, from the results of the robustness cells.

Without attack: points lost to FedAvg, and how often an honest member was left out. Under attack:
points against Multi-Krum. Means over seeds and the worst seed; a negative difference is a loss.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from defl.lab.experiments.robustness_cell import NO_ATTACK, RobustnessCell, RobustnessResult
from defl.lab.experiments.robustness_table import kind_of_data

RULE = "adaptive"
WITHOUT_ATTACK = "fed_avg"
UNDER_ATTACK = "multi_krum"

# The goals, in points: the least mean over seeds and the least of any seed.
CALM_MEAN_MIN, CALM_SEED_MIN = -0.5, -3.0
ATTACK_MEAN_MIN, ATTACK_SEED_MIN = -0.3, -5.0
LEFT_OUT_MAX = 0.1  # of its rounds, for every honest member at every seed
MEAN, SEED, LEFT_OUT = "mean", "seed", "left out"  # goals that a setting misses
HEADINGS = "n | data | rounds | away | seeds | mean | worst"

Results = Mapping[RobustnessCell, RobustnessResult]
Setting = tuple[int, float | None, int, int, str]  # members, alpha, rounds, away, attack


@dataclass(frozen=True, slots=True)
class GoalOutcome:
    """One setting: for each seed of the rule and its reference the difference in points, and the
    rule's result."""

    points: list[float]
    results: list[RobustnessResult]

    def missed(self, attack: str) -> list[str]:
        """The goals that this setting misses."""
        calm = attack == NO_ATTACK
        least = CALM_MEAN_MIN if calm else ATTACK_MEAN_MIN
        worst = CALM_SEED_MIN if calm else ATTACK_SEED_MIN
        shares = [
            share
            for result in self.results
            for share in (
                result.worst_left_out,
                result.worst_left_out_late,
                result.returned_left_out,
            )
            if share is not None
        ]
        judged = {
            MEAN: mean(self.points) < least,
            SEED: min(self.points) < worst,
            LEFT_OUT: calm and max(shares, default=0.0) > LEFT_OUT_MAX,
        }
        return [name for name, is_missed in judged.items() if is_missed]


def outcomes(results: Results) -> dict[Setting, GoalOutcome]:
    gathered: dict[Setting, GoalOutcome] = {}
    for cell, result in results.items():
        reference = replace(cell, rule=WITHOUT_ATTACK if cell.attack == NO_ATTACK else UNDER_ATTACK)
        if cell.rule == RULE and reference in results:
            outcome = gathered.setdefault(_setting(cell), GoalOutcome([], []))
            outcome.points.append(100 * (result.accuracy - results[reference].accuracy))
            outcome.results.append(result)
    return gathered


def goals_markdown(results: Results) -> str:
    """Two tables; empty if nothing compares."""
    gathered = outcomes(results)
    if not gathered:
        return ""
    calm = {setting: outcome for setting, outcome in gathered.items() if setting[4] == NO_ATTACK}
    hard = {setting: outcome for setting, outcome in gathered.items() if setting[4] != NO_ATTACK}
    lines = [
        "The adaptive rule, in points of accuracy; negative: a loss. *Missed*: the goals that a",
        "line misses. Without attack: a mean of at least",
        f"{CALM_MEAN_MIN:g}, every seed at least {CALM_SEED_MIN:g}, no honest member left out in",
        f"more than {100 * LEFT_OUT_MAX:.0f} % of its rounds, of the last half, or after its",
        f"return. Under attack: a mean of at least {ATTACK_MEAN_MIN:g}, every seed at least",
        f"{ATTACK_SEED_MIN:g}.",
    ]
    if calm:
        lines += [
            "",
            "Without attack, against FedAvg. *Left out*: share of its rounds in which the rule",
            "left out the worst-off honest member, mean over seeds and the worst seed; over all",
            "rounds, over the last half, and of a member that was away, after its return.",
            _counts(calm),
            "",
            f"| {HEADINGS} | left out | last half | returned | missed |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
            *(_line(setting, outcome, _shares(outcome)) for setting, outcome in calm.items()),
        ]
    if hard:
        lines += [
            "",
            f"Under attack, against Multi-Krum. {_counts(hard)}",
            "",
            f"| {HEADINGS} | attack | missed |",
            "|---|---|---|---|---|---|---|---|---|",
            *(_line(setting, outcome, [setting[4]]) for setting, outcome in hard.items()),
        ]
    return "\n".join(lines) + "\n"


def _setting(cell: RobustnessCell) -> Setting:
    return (cell.members, cell.alpha, cell.rounds, cell.away, cell.attack)


def _counts(settings: Mapping[Setting, GoalOutcome]) -> str:
    missed = [outcome.missed(setting[4]) for setting, outcome in settings.items()]
    by_goal = Counter(goal for goals in missed for goal in goals)
    parts = ", ".join(f"{goal} {count}" for goal, count in by_goal.items())
    return (
        f"{sum(not goals for goals in missed)} of {len(missed)} lines miss nothing"
        + (f"; missed: {parts}" if parts else "")
        + "."
    )


def _line(setting: Setting, outcome: GoalOutcome, more: Sequence[str]) -> str:
    members, alpha, rounds, away, attack = setting
    points = outcome.points
    figures = [f"{members}", kind_of_data(alpha), f"{rounds}", f"{away}", f"{len(points)}"]
    figures += [f"{mean(points):+.2f}", f"{min(points):+.1f}", *more]
    return "| " + " | ".join([*figures, ", ".join(outcome.missed(attack))]) + " |"


def _shares(outcome: GoalOutcome) -> list[str]:
    results = outcome.results
    return [
        _mean_and_worst([result.worst_left_out for result in results]),
        _mean_and_worst([result.worst_left_out_late for result in results]),
        _mean_and_worst([result.returned_left_out for result in results]),
    ]


def _mean_and_worst(shares: Sequence[float | None]) -> str:
    known = [100 * share for share in shares if share is not None]
    return f"{mean(known):.0f} %, {max(known):.0f} %" if known else ""
