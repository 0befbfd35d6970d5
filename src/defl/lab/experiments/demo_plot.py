"""The demonstration's picture: accuracy after each round, by matplotlib."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from defl.errors import UserError

Draw = Callable[[Sequence[float], Mapping[int, float], Sequence[float]], None]
KINDS = (".png", ".svg", ".pdf")


def drawing(path: Path) -> Draw | None:
    """Ready to draw there; a name that cannot be is refused now. None: without matplotlib."""
    if path.suffix not in KINDS:
        raise UserError(f"{path}: a picture's name ends in one of {', '.join(KINDS)}")
    if not path.parent.is_dir():
        raise UserError(f"{path.parent}: no such folder; make it first")
    try:
        figures = import_module("matplotlib.figure")
    except ModuleNotFoundError:
        return None

    def draw(attacked: Sequence[float], defl: Mapping[int, float], alone: Sequence[float]) -> None:
        figure = figures.Figure(figsize=(7, 3.5), layout="constrained")
        axes = figure.subplots()
        rounds = range(1, len(alone) + 1)
        known = sorted(number for number in defl if number)
        axes.plot(rounds, [100 * a for a in alone], "--", color="0.5", label="FedAvg, no attack")
        values = [100 * defl[number] for number in known]
        axes.plot(known, values, "o-", color="tab:blue", label="DeFL, one attacker")
        worst = [100 * a for a in attacked]
        axes.plot(rounds, worst, "x-", color="tab:red", label="FedAvg, one attacker")
        axes.set(xlabel="round", ylabel="test accuracy (%)", ylim=(0, 100))
        axes.grid(alpha=0.3)
        axes.legend(loc="center right")
        figure.savefig(path, dpi=120)

    return draw
