"""The plot of a History: a metric after each round, and the members that each round went without.

matplotlib is imported inside `draw` alone; without it everything else works.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from defl.errors import UserError
from defl.results import History, OmissionReason

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = (".png", ".svg", ".pdf")
COLOURS = {
    OmissionReason.BY_RULE: "tab:red",
    OmissionReason.LATE: "tab:orange",
    OmissionReason.NO_UPDATE: "0.6",
}
MEMBER_INCHES = 0.22


def draw(history: History, metric: str, path: str | Path | None = None) -> "Figure":
    file = None if path is None else _checked(Path(path))
    means = history.series(metric)
    try:
        figures = import_module("matplotlib.figure")
    except ModuleNotFoundError as error:
        raise UserError(
            "plot needs matplotlib, which is not installed: pip install matplotlib"
        ) from error
    if "IPython" in sys.modules:
        # Importing pyplot enables a notebook to show any figure, even one that is not pyplot's.
        import_module("matplotlib.pyplot")
    height = 3.0 + 0.6 + MEMBER_INCHES * len(history.members)
    figure: Figure = figures.Figure(figsize=(7, height), layout="constrained")
    upper, lower = figure.subplots(
        2, 1, sharex=True, height_ratios=(3.0, 0.6 + MEMBER_INCHES * len(history.members))
    )
    _draw_metric(upper, history, metric, means)
    _draw_omissions(lower, history)
    if file is not None:
        figure.savefig(file, dpi=120)
    return figure


def _checked(path: Path) -> Path:
    if path.suffix not in KINDS:
        raise UserError(f"{path}: a picture's name ends in one of {', '.join(KINDS)}")
    if not path.parent.is_dir():
        raise UserError(f"{path.parent}: no such folder; make it first")
    return path


def _draw_metric(axes: "Axes", history: History, metric: str, means: dict[int, float]) -> None:
    for member in history.members:
        values = history.series(metric, member)
        axes.plot(list(values), list(values.values()), color="tab:blue", alpha=0.25, linewidth=0.8)
    axes.plot(list(means), list(means.values()), "o-", color="tab:blue", label="mean of members")
    # A dollar sign would begin a formula, and a client chose this name.
    axes.set_ylabel(metric.replace("$", r"\$"))
    axes.grid(alpha=0.3)
    axes.legend(loc="best")


def _draw_omissions(axes: "Axes", history: History) -> None:
    for reason, colour in COLOURS.items():
        points = [
            (record.number, history.members.index(omission.member))
            for record in history.rounds
            for omission in record.omissions
            if omission.reason is reason
        ]
        if points:
            rounds, rows = zip(*points, strict=True)
            axes.scatter(rounds, rows, marker="s", color=colour, label=str(reason))
    names = [
        f"{name} ({history.byzantine[name]})" if name in history.byzantine else name
        for name in history.members
    ]
    axes.set_yticks(range(len(names)), [name.replace("$", r"\$") for name in names], fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set(xlabel="round", ylabel="not in the model")
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best", fontsize=8)
