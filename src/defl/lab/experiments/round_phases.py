"""Where a round's time goes: its critical path through the nodes' logs.

A round closes when the last update commits, so the path follows the member whose UPD was submitted
last: from the close of the previous round, through its training and the transfer of its blob to
the member whose ack completed the certificate, to its own close of the round. The lines "offered",
"received" and "acknowledged" are logged at level debug.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

PHASES = (
    "aggregate and start",
    "train",
    "hash, write and offer",
    "transfer",
    "validate and ack",
    "commit",
)

Log = Sequence[Mapping[str, Any]]
Times = tuple[float, ...]  # of the wall clock: the start of each phase, and the end of the last


def critical_paths(logs: Sequence[Log], quorum: int, first_round: int) -> list[Times]:
    """The path of each round from `first_round` on, from all nodes' logs."""
    rounds = sorted({line["round"] for line in logs[0] if line["event"] == "round closed"})
    return [_critical_path(logs, quorum, number) for number in rounds if number >= first_round]


def _critical_path(logs: Sequence[Log], quorum: int, number: int) -> Times:
    submitted = []
    for log in logs:
        upd = _line(log, "committed", round=number, kind="UPD")
        submitted.append(upd["time"] - upd["ms"] / 1000)
    author = submitted.index(max(submitted))
    log = logs[author]
    trained = _line(log, "trained", round=number)
    acks = sorted(
        (ack["time"], _line(other, "received", digest=ack["digest"])["time"])
        for member, other in enumerate(logs)
        if member != author
        for ack in [_line(other, "acknowledged", round=number, author=author)]
    )
    _, received = acks[quorum - 2]  # the author's own ack is the first of the quorum
    return (
        _line(log, "round closed", round=number - 1)["time"],
        trained["ended"] - trained["seconds"],
        trained["ended"],
        _line(log, "offered", round=number)["time"],
        received,
        submitted[author],
        _line(log, "round closed", round=number)["time"],
    )


def _line(log: Log, event: str, **fields: object) -> Mapping[str, Any]:
    """The first such line."""
    return next(
        line
        for line in log
        if line["event"] == event and all(line[name] == value for name, value in fields.items())
    )


def durations(paths: Sequence[Times]) -> list[float]:
    """The median duration of each phase."""
    return [
        median(path[number + 1] - path[number] for path in paths) for number in range(len(PHASES))
    ]
