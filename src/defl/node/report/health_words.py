"""Names, reasons and counts in the sentences about a node's health.

Names, reasons and troubles come from peers and files: they are shortened and escaped here, so that
a sentence is one line of bounded length.
"""

from collections.abc import Sequence
from time import localtime, strftime

from defl.node.report.changes import Counts
from defl.node.report.status import NodeStatus
from defl.printable import printable

NAMES_SHOWN = 3
NAME_CHARACTERS = 64
CLAUSE_CHARACTERS = 160
TODAY_S = 12 * 3600.0  # an older time of day needs its date


def away(status: NodeStatus) -> list[str]:
    return [name for name, connected in status.peers.items() if not connected]


def reached(status: NodeStatus) -> int:
    """Members that are connected, with this node itself if it is one."""
    return sum(status.peers.values()) + (status.member is not None)


def counts(status: NodeStatus) -> Counts:
    return status.counts or Counts.of(len(status.peers) + (status.member is not None))


def shown_name(name: str) -> str:
    return short(printable(name), NAME_CHARACTERS)


def listed(names: Sequence[str]) -> str:
    """`bob, carol, dave and 5 more`."""
    shown = [shown_name(name) for name in names[:NAMES_SHOWN]]
    if len(names) > NAMES_SHOWN:
        return f"{', '.join(shown)} and {len(names) - NAMES_SHOWN} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def because(reason: str | None) -> str:
    """`: reason`; of a traceback the last line, of a reason with advice the reason alone."""
    lines = (reason or "").strip().splitlines()
    return f": {clause(lines[-1])}" if lines else ""


def clause(text: str) -> str:
    return short(printable(text.strip().partition("; ")[0]).rstrip("."), CLAUSE_CHARACTERS)


def short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def time_of_day(at: float, now: float) -> str:
    return strftime("%H:%M" if now - at < TODAY_S else "%H:%M on %Y-%m-%d", localtime(at))
