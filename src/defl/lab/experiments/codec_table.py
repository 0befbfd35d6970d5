"""What a codec costs: the robustness cells of each codec beside the same cells with fp32.

Seeds are paired: both cells of a pair have the same data, batches and first weights, so the
deviation of their difference is far below that of the accuracies.
"""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev

from defl.lab.experiments.robustness_cell import NO_ATTACK, RobustnessCell, RobustnessResult
from defl.lab.experiments.robustness_table import kind_of_data
from defl.schema import Codec

Place = tuple[str, int, float | None]  # rule, members, alpha
Accuracies = dict[Codec, dict[int, float]]  # by seed


def codecs_markdown(results: Mapping[RobustnessCell, RobustnessResult]) -> str:
    """A table for each rule, size and split; empty unless there are cells to compare."""
    gathered: dict[Place, dict[str, Accuracies]] = {}
    for cell, result in results.items():
        place = (cell.rule, cell.members, cell.alpha)
        by_codec = gathered.setdefault(place, {}).setdefault(cell.attack, {})
        by_codec.setdefault(Codec(cell.codec), {})[cell.seed] = result.accuracy
    lines = [
        "Test accuracy with fp32, and the difference that another codec makes: percentage points,",
        "mean ± standard deviation over the seeds. f = (n - 1) / 3 attackers.",
    ]
    compared = False
    for (rule, members, alpha), by_attack in gathered.items():
        others = [
            codec
            for codec in Codec
            if codec != Codec.FP32 and any(codec in row for row in by_attack.values())
        ]
        if not others:
            continue
        compared = True
        lines += ["", f"### {rule}, n = {members}, {kind_of_data(alpha)}", ""]
        lines += [
            "| attack | fp32 | " + " | ".join(others) + " |",
            "|---" * (len(others) + 2) + "|",
        ]
        lines += [_line(attack, by_codec, others) for attack, by_codec in by_attack.items()]
        attacked = [by_codec for attack, by_codec in by_attack.items() if attack != NO_ATTACK]
        if len(attacked) > 1:
            lines.append(_line("mean of the attacks", _means(attacked), others))
    return "\n".join(lines) + "\n" if compared else ""


def _line(name: str, by_codec: Accuracies, others: Sequence[Codec]) -> str:
    plain = by_codec.get(Codec.FP32, {})
    numbers = [_spread(list(plain.values()), signed=False)]
    numbers += [
        _spread(_differences(by_codec.get(codec, {}), plain), signed=True) for codec in others
    ]
    return f"| {name} | " + " | ".join(numbers) + " |"


def _means(attacked: Sequence[Accuracies]) -> Accuracies:
    """Over the attacks, for each seed that all of them have."""
    means: Accuracies = {}
    for codec in Codec:
        by_seed = [accuracies.get(codec, {}) for accuracies in attacked]
        shared = set.intersection(*(set(seeds) for seeds in by_seed))
        means[codec] = {seed: mean(seeds[seed] for seeds in by_seed) for seed in sorted(shared)}
    return means


def _differences(coded: Mapping[int, float], plain: Mapping[int, float]) -> list[float]:
    return [coded[seed] - plain[seed] for seed in sorted(coded.keys() & plain.keys())]


def _spread(shares: Sequence[float], *, signed: bool) -> str:
    if not shares:
        return ""
    deviation = 100 * stdev(shares) if len(shares) > 1 else 0.0
    number = f"{100 * mean(shares):+.2f}" if signed else f"{100 * mean(shares):.2f}"
    return f"{number} ± {deviation:.2f}"
