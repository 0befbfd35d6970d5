"""Pictures of tables, costs and traffic, each as PNG and as SVG, by matplotlib.

The same numbers give the same bytes: files contain no dates and no random names.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from textwrap import fill
from typing import Any

from defl.clients.extras import install_command
from defl.errors import UserError
from defl.lab.experiments.paper.costs import CostCell, CostResult
from defl.lab.experiments.paper.findings import CALM, CHANCE
from defl.lab.experiments.paper.settings import SYSTEM_WORDS, Table
from defl.lab.experiments.paper.study import ALPHAS, HEADING, MERGES
from defl.lab.experiments.paper.tables import TableEntry
from defl.lab.experiments.paper.traffic import BISCOTTI_LEADER, TrafficCell, TrafficResult

COLOURS = {
    "fl": "tab:orange",
    "swarm": "tab:red",
    "biscotti": "tab:green",
    BISCOTTI_LEADER: "tab:olive",
    "defl": "tab:blue",
}
MARKS = {"fl": "o", "swarm": "s", "biscotti": "^", BISCOTTI_LEADER: "v", "defl": "D"}
WORDS = {**SYSTEM_WORDS, BISCOTTI_LEADER: "Biscotti, leader sends"}
MB = 1e6

Values = Callable[[CostResult], float]


def require_matplotlib() -> None:
    """Fail before anything is measured, not after."""
    try:
        import_module("matplotlib")
    except ImportError as error:
        raise UserError(f"pictures need matplotlib: {install_command('paper')}") from error


def plot_table(table: Table, entries: Sequence[TableEntry], note: str, path: Path) -> None:
    """Bars are measured here; black marks are the paper's."""
    figure = _figure(1.0 + 1.15 * len(table.rows), 1.1 + 3.0 * len(table.datasets))
    by_place = {(e.dataset, e.setting, e.system): e for e in entries}
    width = 0.8 / len(table.systems)
    panels = figure.subplots(len(table.datasets), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (dataset, _) in zip(panels, table.datasets, strict=True):
        for place, system in enumerate(table.systems):
            measured = {
                i + (place - (len(table.systems) - 1) / 2) * width: entry
                for i, line in enumerate(table.rows)
                if (entry := by_place.get((dataset, line.words, system)))
            }
            xs, row = list(measured), list(measured.values())
            axes.bar(
                xs,
                [entry.accuracy for entry in row],
                width * 0.92,
                yerr=[entry.spread for entry in row] if row and row[0].spread else None,
                color=COLOURS[system],
                label=f"{SYSTEM_WORDS[system]}, measured",
            )
            label = "the paper's (full-size model)" if place == 0 else None
            papers = [entry.paper for entry in row]
            axes.plot(xs, papers, "_", color="black", markersize=11, mew=2, label=label)
        chance = CHANCE[table.kind]
        axes.axhline(chance, color="grey", linestyle=":", linewidth=1, label="guessing")
        axes.set(ylim=(0, 1), ylabel="test accuracy")
        axes.set_title(dataset, loc="left", fontsize=10)
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    labels = [
        "no attack" if row.words == CALM else row.words.replace(" (", "\n(") for row in table.rows
    ]
    panels[-1].set_xticks(range(len(labels)), labels, fontsize=8)
    by_rate = len({row.nodes for row in table.rows}) > 1
    panels[-1].set_xlabel(
        "honest + Byzantine nodes (share of Byzantine ones)" if by_rate else "attack"
    )
    _finish(figure, panels[0], table.heading, note, path)


def plot_study(accuracies: Mapping[tuple[str, str | None], float], note: str, path: Path) -> None:
    """One panel for each division of the data, a bar for each merge."""
    figure = _figure(9.5, 5.6)
    panels = figure.subplots(len(ALPHAS), 1, sharex=True)
    for axes, words in zip(panels, ALPHAS, strict=True):
        values = [accuracies[words, merge] for merge in MERGES]
        colours = [_STUDIED.get(merge, ("tab:grey", ""))[0] for merge in MERGES]
        bars = axes.barh(range(len(values)), values, color=colours)
        axes.bar_label(bars, fmt="%.3f", padding=3, fontsize=8)
        axes.set_yticks(range(len(values)), list(MERGES.values()), fontsize=8)
        axes.invert_yaxis()
        axes.set_ylabel("a round's model is\nthe mean of", fontsize=9)
        axes.set_title(f"{words} data, four honest nodes", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("test accuracy")
    panels[-1].set_xlim(0, max(accuracies.values()) * 1.1)
    first = panels[0]
    for colour, label in dict.fromkeys([("tab:grey", "all updates"), *_STUDIED.values()]):
        first.bar(0, 0, color=colour, label=label)
    _finish(figure, first, HEADING, note, path)


_STUDIED: dict[str | None, tuple[str, str]] = {
    **dict.fromkeys(("random_2", "random_3"), ("tab:cyan", "drawn at random")),
    **dict.fromkeys(("multi_krum", "multi_krum_two"), ("tab:blue", "chosen by Multi-Krum")),
}


def plot_costs(title: str, results: Mapping[CostCell, CostResult], note: str, path: Path) -> None:
    """Over the number of nodes: memory, storage, and bytes received and sent by all together."""
    figure = _figure(9.5, 7.0)
    panels = figure.subplots(2, 2)
    shown: tuple[tuple[Any, str, Values, str], ...] = (
        (panels[0, 0], "memory of all processes", lambda r: r.memory_bytes or 0, "-"),
        (panels[0, 1], "stored by all nodes: chain or log (lines), all (dots)", _logged, "-"),
        (panels[0, 1], "stored by all nodes: chain or log (lines), all (dots)", _stored, ":"),
        (panels[1, 0], "received by all nodes", lambda r: sum(r.received_bytes), "-"),
        (panels[1, 1], "sent by all nodes", lambda r: sum(r.sent_bytes), "-"),
    )
    for axes, words, value, style in shown:
        for system, name in SYSTEM_WORDS.items():
            of_system = {c.nodes: value(r) for c, r in results.items() if c.system == system}
            points = sorted((nodes, size) for nodes, size in of_system.items() if size > 0)
            axes.plot(
                [nodes for nodes, _ in points],
                [size / MB for _, size in points],
                style,
                marker=MARKS[system],
                color=COLOURS[system],
                label=name,
            )
        axes.set(xlabel="nodes", ylabel="MB", xticks=sorted({c.nodes for c in results}))
        axes.set_title(words, fontsize=10)
        axes.grid(alpha=0.3, which="both")
        if axes is not panels[0, 0]:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
    _finish(figure, panels[0, 0], title, note, path)


def _logged(result: CostResult) -> float:
    return sum(result.log_bytes)


def _stored(result: CostResult) -> float:
    return sum(result.stored_bytes)


def plot_traffic(results: Mapping[TrafficCell, TrafficResult], note: str, path: Path) -> None:
    """Marks are measured, lines are the formulas; on logarithmic axes slopes are exponents."""
    figure = _figure(9.5, 4.2)
    left, right = figure.subplots(1, 2)
    rounds_most = max(cell.rounds for cell in results)
    nodes_most = max(cell.nodes for cell in results)
    for system in dict.fromkeys(cell.system for cell in results):
        by_nodes = [c for c in results if c.system == system and c.rounds == rounds_most]
        by_rounds = [c for c in results if c.system == system and c.nodes == nodes_most]
        _line(
            left,
            system,
            [c.nodes for c in by_nodes],
            [sum(results[c].payload_sent) / MB for c in by_nodes],
            [c.predicted.sent / MB for c in by_nodes],
        )
        _line(
            right,
            system,
            [c.rounds for c in by_rounds],
            [results[c].weights_stored[0] / MB for c in by_rounds],
            [c.predicted.stored / MB for c in by_rounds],
        )
    left.set(xlabel="nodes", ylabel=f"weights sent by all in {rounds_most} rounds (MB)")
    right.set(xlabel="rounds", ylabel=f"weights stored by one of {nodes_most} nodes (MB)")
    for axes, values in ((left, {c.nodes for c in results}), (right, {c.rounds for c in results})):
        axes.set(xscale="log", yscale="log")
        axes.set_xticks(sorted(values), [str(value) for value in sorted(values)])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    _finish(figure, left, "Traffic and storage: measured (marks) and predicted (lines)", note, path)


def _line(
    axes: Any,
    system: str,
    xs: Sequence[int],
    measured: Sequence[float],
    predicted: Sequence[float],
) -> None:
    colour = COLOURS[system]
    axes.plot(xs, predicted, color=colour, alpha=0.6)
    axes.plot(xs, measured, MARKS[system], color=colour, label=WORDS[system])


def _figure(width: float, height: float) -> Any:
    return import_module("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")


def _finish(figure: Any, first: Any, title: str, note: str, path: Path) -> None:
    """`path` has no suffix; `note` says below the picture what was run."""
    width = int(10 * figure.get_figwidth())  # letters that fit
    figure.suptitle(fill(title, width), fontsize=11)
    handles, labels = first.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=5 if figure.get_figwidth() >= 8 else 2,
        frameon=False,
        fontsize=9,
        title=fill(note, width),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with import_module("matplotlib").rc_context({"svg.hashsalt": "defl"}):
        figure.savefig(path.with_suffix(".png"), dpi=130)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
