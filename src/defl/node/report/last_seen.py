"""The health of a node that does not run, from the files that it left in its folder: the final
status of a clean exit, and the record of the rounds, which a killed node leaves too.
"""

from contextlib import suppress
from pathlib import Path

from defl.node.files import STARTED_FILE, STATUS_FILE
from defl.node.report.health import Health, health_when_stopped
from defl.node.report.round_facts import FoldedFacts
from defl.node.report.round_log import RoundLog
from defl.node.report.status import NodeStatus


def read_history(folder: Path) -> FoldedFacts:
    """Empty if there is none that can be read."""
    history = FoldedFacts()
    with suppress(OSError):
        history.add(RoundLog(folder).read_new().facts)
    return history


def health_by_files(
    name: str, folder: Path, last: NodeStatus | None, history: FoldedFacts
) -> Health:
    """`last`: the newest status that is known."""
    rounds, times = list(history.rounds), [start.at for start in history.starts]
    times += [facts.closed.at for facts in history.rounds.values() if facts.closed is not None]
    if history.starts:
        rounds.append(max(1, history.starts[-1].round))
    if last is not None:
        rounds.append(min(last.round + 1, last.rounds))
        with suppress(OSError):  # deleted meanwhile
            times.append((folder / STATUS_FILE).stat().st_mtime)
    return health_when_stopped(
        name,
        str(folder),
        last,
        last_round=max(rounds, default=None),
        seen_at=max(times, default=None),
        has_started=(folder / STARTED_FILE).exists(),
    )
