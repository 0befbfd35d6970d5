"""How a running demonstration is shown: a live table on a terminal, lines elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from defl.lab.experiments.demo import DemoPlan, Moment, name_of

if TYPE_CHECKING:
    from rich.console import Group

Show = Callable[[Moment], None]
REFRESH_PER_S = 4
NEWS_SHOWN = 4


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


class Lines:
    """Each thing is told once, on its own line, to people or to a log."""

    def __init__(self, plan: DemoPlan, *, err: bool) -> None:
        self._plan = plan
        self._err = err
        self._closed = 0
        self._news = 0
        self._accuracies: set[int] = set()

    def say(self, line: str) -> None:
        click.echo(line, err=self._err)

    def opening(self, folder: Path) -> None:
        plan = self._plan
        self.say(
            f"{plan.nodes} nodes in {folder}; {name_of(plan.attacker)} attacks: "
            f"{plan.attack_in_words}"
        )

    def show(self, moment: Moment) -> None:
        for line in moment.news[self._news :]:
            self.say(line)
        self._news = len(moment.news)
        for number in range(self._closed + 1, moment.rounds_closed + 1):
            self.say(f"round {number} of {self._plan.rounds} closed")
        self._closed = max(self._closed, moment.rounds_closed)
        for number in sorted(set(moment.told.accuracy) - self._accuracies):
            self._accuracies.add(number)
            if number:
                accuracy = percent(moment.told.accuracy[number])
                self.say(f"  model of round {number}: {accuracy}; left out:")
                for line in left_out_lines(moment.told.left_out.get(number, {})):
                    self.say(f"    {line}")


def left_out_lines(nodes: dict[str, str]) -> list[str]:
    return [f"{node}: {why}" for node, why in sorted(nodes.items())]


@contextmanager
def live_view(plan: DemoPlan, lines: Lines, *, wanted: bool) -> Iterator[Show]:
    """A table that changes in place if there is a terminal and rich; lines otherwise."""
    if not (wanted and sys.stdout.isatty() and find_spec("rich") is not None):
        yield lines.show
        return
    from rich.live import Live  # noqa: PLC0415 - an extra

    with Live(refresh_per_second=REFRESH_PER_S) as live:
        yield lambda moment: live.update(table(plan, moment))


def table(plan: DemoPlan, moment: Moment) -> "Group":
    from rich.console import Group  # noqa: PLC0415 - an extra
    from rich.table import Table  # noqa: PLC0415 - an extra
    from rich.text import Text  # noqa: PLC0415 - an extra

    shown = Table(title=f"round {moment.rounds_closed} of {plan.rounds} closed")
    shown.add_column("node")
    shown.add_column("")
    for head in ("round", "accuracy", "commit", "sent", "received"):
        shown.add_column(head, justify="right")
    styles = {"attacks": "red", "killed": "yellow", "starts": "dim", "ended": "green"}
    for node in moment.nodes:
        shown.add_row(
            node.name,
            Text(node.state, style=styles.get(node.state, "")),
            str(node.round),
            percent(node.accuracy),
            "-" if node.commit_ms is None else f"{node.commit_ms:.0f} ms",
            megabytes(node.bytes_sent),
            megabytes(node.bytes_received),
        )
    newest = max(moment.told.left_out, default=None)
    below = [] if newest is None else [f"left out of round {newest}:"]
    below += [] if newest is None else left_out_lines(moment.told.left_out[newest])
    below += moment.news[-NEWS_SHOWN:]
    return Group(shown, *(Text(line) for line in below))
