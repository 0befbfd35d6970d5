"""What the dashboard's server asks for: feed.py answers from folders, tests from sample data.

`overview`, `rounds`, `round` and `facts` are called one at a time, all from one thread; `file` may
be called from several. A DeflError or OSError becomes a 503 with its message: the page keeps what
it has and asks again.
"""

from dataclasses import dataclass
from typing import BinaryIO, Protocol

from defl.dashboard.view import FactsView, Overview, RoundsView, RoundView


@dataclass(frozen=True, slots=True)
class Download:
    """An open file, so that neither a new version nor a deletion changes what is being sent."""

    name: str
    content: BinaryIO
    size: int


class Source(Protocol):
    def overview(self) -> Overview: ...

    def rounds(self, since: str) -> RoundsView:
        """`since`: the version that the page has; empty: none."""
        ...

    def round(self, number: int, node: str | None) -> RoundView | None:
        """As this node saw it; None: as the node that knows most."""
        ...

    def facts(self, name: str | None) -> FactsView | None:
        """None: of the first node."""
        ...

    def file(self, node: str, name: str) -> Download | None: ...
