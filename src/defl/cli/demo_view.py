"""How a running demonstration is shown: a live table in a terminal, lines elsewhere."""

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from defl.cli.run import echo_lines
from defl.running import MemberState, RunProgress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Group

Show = Callable[[RunProgress], None]
REFRESH_PER_S = 4
NEWS_SHOWN = 6
STYLES = {
    MemberState.ATTACKING: "red",
    MemberState.KILLED: "yellow",
    MemberState.STARTING: "dim",
    MemberState.ENDED: "green",
}


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


@contextmanager
def live_view(*, err: bool) -> Iterator[Show]:
    """A table that changes in place if there is a terminal and rich; lines otherwise.

    With `err` the lines go to standard error, because standard output is JSON.
    """
    if err or not sys.stdout.isatty() or find_spec("rich") is None:
        yield partial(echo_lines, err=err)
        return
    from rich.live import Live  # noqa: PLC0415 - an extra

    news: deque[str] = deque(maxlen=NEWS_SHOWN)
    with Live(refresh_per_second=REFRESH_PER_S) as live:

        def show(progress: RunProgress) -> None:
            news.extend(progress.lines)
            live.update(table(progress, news))

        yield show


def table(progress: RunProgress, news: "Iterable[str]") -> "Group":
    from rich.console import Group  # noqa: PLC0415 - an extra
    from rich.table import Table  # noqa: PLC0415 - an extra
    from rich.text import Text  # noqa: PLC0415 - an extra

    shown = Table(title=f"round {progress.rounds_closed} of {progress.rounds} closed")
    shown.add_column("node")
    shown.add_column("")
    for head in ("round", "accuracy", "commit", "sent", "received"):
        shown.add_column(head, justify="right")
    for member in progress.members:
        shown.add_row(
            member.name,
            Text(member.state, style=STYLES.get(member.state, "")),
            str(member.round),
            percent((member.metrics or {}).get("accuracy")),
            "-" if member.commit_ms is None else f"{member.commit_ms:.0f} ms",
            megabytes(member.sent_bytes),
            megabytes(member.received_bytes),
        )
    return Group(shown, *(Text(line) for line in news))
