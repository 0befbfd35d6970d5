"""Members of different size in the robustness table: what agreed weights are worth, and what the
cap costs. FedAvg by size, without a cap, is the upper line without attack.

Sizes are a pattern such as 1:2:7, repeated over the members. The attackers are the smallest or the
largest of them.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import mean, stdev

from defl.committee import WEIGHS_MEMBERS, faults_of
from defl.errors import UserError
from defl.fields import WEIGHT_MAX
from defl.lab.experiments.robustness_cell import (
    LARGEST,
    NO_ATTACK,
    ROUNDS,
    SMALLEST,
    RobustnessCell,
    RobustnessResult,
    Weighting,
)
from defl.lab.experiments.robustness_table import kind_of_data, percent

# They always leave f updates out. With n = 3f + 1 the cap then makes all shares equal.
ALWAYS_LEAVE_OUT = (
    "multi_krum",
    "multi_krum_blanchard",
    "multi_krum_two",
    "smallest_eigenvalue_subset",
)
SIDES = (SMALLEST, LARGEST)
BACKDOOR_WORKED = "backdoor worked"  # a line of its own: the share of stamped images

Column = tuple[str, Weighting]
Line = tuple[int, float | None, str, str]  # members, alpha, attack, which members attack
Accuracies = dict[Line, dict[Column, dict[int, float]]]  # by seed


def check_sizes(pattern: str) -> None:
    parts = pattern.split(":")
    digits = [p for p in parts if p.isascii() and p.isdigit() and len(p) <= len(str(WEIGHT_MAX))]
    if digits != parts or not all(1 <= int(p) <= WEIGHT_MAX for p in parts):
        raise UserError(
            f"--sizes is a pattern of whole numbers from 1 to {WEIGHT_MAX}, for example 1:2:7, "
            f"not {pattern!r}"
        )


def weightings(rule: str, members: int, sizes: str) -> tuple[Weighting, ...]:
    """How the rule is run: plainly, and where it makes a difference with weights."""
    if not sizes or rule not in WEIGHS_MEMBERS:
        return (Weighting.EQUAL,)
    if rule == "fed_avg":
        return (Weighting.BY_SIZE, Weighting.EQUAL)
    faults = faults_of(members)
    if rule in ALWAYS_LEAVE_OUT and members - faults <= 3 * faults:
        return (Weighting.EQUAL,)
    return (Weighting.EQUAL, Weighting.AGREED)


def sides(attack: str, sizes: str, wanted: Sequence[str]) -> Sequence[str]:
    return (wanted or SIDES) if sizes and attack != NO_ATTACK else (SMALLEST,)


def sizes_markdown(results: Mapping[RobustnessCell, RobustnessResult]) -> str:
    """For each pattern the table of its cells, after what follows from it; runs of other length do
    not compare, and have a table of their own."""
    tables: dict[tuple[str, int], dict[RobustnessCell, RobustnessResult]] = {}
    for cell, result in results.items():
        tables.setdefault((cell.sizes, cell.rounds), {})[cell] = result
    return "\n".join(
        ("" if rounds == ROUNDS else f"Runs of {rounds} rounds.\n\n") + _of_pattern(pattern, cells)
        for (pattern, rounds), cells in tables.items()
    )


def _of_pattern(pattern: str, results: Mapping[RobustnessCell, RobustnessResult]) -> str:
    gathered: Accuracies = {}
    for cell, result in results.items():
        line = (cell.members, cell.alpha, cell.attack, "" if not cell.attackers else cell.attacker)
        column = (cell.rule, cell.weighting)
        gathered.setdefault(line, {}).setdefault(column, {})[cell.seed] = result.accuracy
        if cell.attack == "backdoor":
            worked = gathered.setdefault((*line[:2], BACKDOOR_WORKED, line[3]), {})
            worked.setdefault(column, {})[cell.seed] = result.backdoor
    columns = list(dict.fromkeys(column for row in gathered.values() for column in row))
    lines = [
        f"Members of sizes {pattern}, the pattern repeated; every sample is at one member. Test",
        "accuracy in percent, means over so many seeds, the first from 1 on. f = (n - 1) / 3,",
        "rounded down, attackers: the smallest or the largest members. *By size*: FedAvg by size",
        "without a cap, the upper line without attack. *Weights*: agreed weights equal to the",
        "sizes, capped. The last column is what weights change: the adaptive rule with them less",
        "without, ± the standard error.",
        "",
        *_summary(gathered),
    ]
    last = None
    for (members, alpha, attack, side), row in sorted(gathered.items(), key=_place):
        if (members, alpha) != last:
            last = (members, alpha)
            heads = ["attack", "seeds", *map(_head, columns), "weights change"]
            lines += ["", f"### n = {members}, {kind_of_data(alpha)}", ""]
            lines += ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
        shared = sorted(set.intersection(*(set(by_seed) for by_seed in row.values())))
        numbers = [
            percent(mean(row[c][seed] for seed in shared)) if c in row and shared else ""
            for c in columns
        ]
        by = f", {side}" if side else ""
        figures = [f"{attack}{by}", str(len(shared)), *numbers, _with_error(_changes(row))]
        lines.append("| " + " | ".join(figures) + " |")
    return "\n".join(lines) + "\n"


def _place(item: tuple[Line, object]) -> tuple[int, float, bool]:
    (members, alpha, attack, _), _ = item
    return members, -(alpha or 1e9), attack != NO_ATTACK


def _head(column: Column) -> str:
    rule, weighting = column
    return {
        Weighting.EQUAL: rule,
        Weighting.AGREED: f"{rule}, weights",
        Weighting.BY_SIZE: f"{rule} by size",
    }[weighting]


def _changes(
    row: Mapping[Column, Mapping[int, float]],
    one: Column = ("adaptive", Weighting.AGREED),
    other: Column = ("adaptive", Weighting.EQUAL),
) -> list[float]:
    """The differences at the seeds that both columns have."""
    with_, without = row.get(one, {}), row.get(other, {})
    return [with_[seed] - without[seed] for seed in sorted(set(with_) & set(without))]


def _with_error(changes: Sequence[float]) -> str:
    if len(changes) < 2:
        return _signed(changes[0]) if changes else ""
    error = stdev(changes) / sqrt(len(changes))
    return f"{_signed(mean(changes))} ± {100 * error:.2f}"


def _summary(gathered: Accuracies) -> list[str]:
    """Means over the attacks: what weights change, and how far the rule is below FedAvg by size."""
    heads = (
        "n",
        "data",
        "weights change, no attack",
        "mean of the attacks by the smallest (lowest, highest)",
        "by the largest",
        "plain rule less FedAvg by size, no attack",
        "with weights",
    )
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for members, alpha in sorted(
        {line[:2] for line in gathered}, key=lambda p: (p[0], -(p[1] or 1e9))
    ):
        clean = gathered.get((members, alpha, NO_ATTACK, ""), {})
        upper = ("fed_avg", Weighting.BY_SIZE)
        figures = [_with_error(_changes(clean))]
        for side in SIDES:
            changes = [
                mean(of_seeds)
                for line, row in gathered.items()
                if line[:2] == (members, alpha) and line[3] == side and line[2] != BACKDOOR_WORKED
                if (of_seeds := _changes(row))
            ]
            spread = f" ({_signed(min(changes))}, {_signed(max(changes))})" if changes else ""
            figures.append(_signed(mean(changes)) + spread if changes else "")
        figures += [
            _with_error(_changes(clean, ("adaptive", weighting), upper))
            for weighting in (Weighting.EQUAL, Weighting.AGREED)
        ]
        lines.append(f"| {members} | {kind_of_data(alpha)} | " + " | ".join(figures) + " |")
    return lines


def _signed(change: float) -> str:
    return f"{100 * change:+.2f}"
