"""The progress of a run as lines for people and as a table of its members.

Lines come in the order of rounds. A round's line comes when its members know of it; a failure, a
full disk or a diverging training is reported at once.
"""

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from pathlib import Path

from defl.node.report.status import NodeStatus
from defl.printable import printable_lines
from defl.progress import Progress, in_notebook
from defl.results import ACCURACY, ERROR_SHOWN_MAX, Metrics, RoundRecord
from defl.running.records import RunRecords, not_finite

# A model's evaluation is shown at the latest when this many more rounds have closed, with the
# metrics that are available by then.
EVALUATION_ROUNDS_MAX = 2
# Without news for this long, a line says what the federation is waiting for.
SILENCE_S = 30.0


class MemberState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    ATTACKING = "attacking"
    KILLED = "killed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class MemberNow:
    name: str
    state: MemberState
    round: int = 0  # rounds closed
    metrics: Metrics | None = None  # of the newest model that it evaluated
    commit_ms: float | None = None  # median latency from submission to commit
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RunProgress:
    """What a run's `watch` function receives, several times a second."""

    rounds_closed: int  # by all members that are not down on purpose
    rounds: int
    members: tuple[MemberNow, ...]
    lines: tuple[str, ...]  # news since the last call
    folder: Path | None = None  # of the run, once its nodes' folders are there


Watch = Callable[[RunProgress], None]


class Audience:
    """Recipients of progress: the caller's functions, and people at a terminal or notebook."""

    def __init__(self, progress: Progress, watch: Watch | None) -> None:
        self._on_round = progress if callable(progress) else None
        self._watch = watch
        shows = in_notebook() or sys.stdout.isatty()
        # Lines rather than one that changes: they stay readable in a notebook and in a log.
        self._prints = shows if progress is None else progress is True

    def report(self, progress: RunProgress) -> None:
        if self._watch is not None:
            self._watch(progress)
        if self._prints:
            for line in progress.lines:
                print(printable_lines(line), flush=True)  # noqa: T201 - for users of `defl.run`

    def closed(self, record: RoundRecord) -> None:
        if self._on_round is not None:
            self._on_round(record)


class ProgressLines:
    """Produces each line once."""

    def __init__(self, rounds: int, records: RunRecords, *, closed: int = 0) -> None:
        self._rounds = rounds
        self._records = records
        self._closed = closed
        self._omitted = closed
        self._evaluated = closed - 1  # the newest model whose evaluation was shown
        self._errors: set[str] = set()
        self._lacking: set[tuple[str, str]] = set()
        self._diverging: set[tuple[str, str]] = set()
        self._news_at: float | None = None

    def update(
        self,
        statuses: Mapping[str, NodeStatus],
        closed: int,
        evaluating: Collection[str],
        now: float,
    ) -> list[str]:
        """`closed` rounds are closed by all; `evaluating` members may still evaluate models."""
        lines = self._machine_lines(statuses) + self._error_lines(statuses)
        for number in range(self._closed + 1, closed + 1):
            lines += self._evaluation_lines(number - 1, evaluating)
            lines.append(self._closed_line(number))
            self._closed = number
        lines += self._omission_lines()
        lines += self._evaluation_lines(closed, evaluating)
        lines += self._divergence_lines(statuses)
        if lines or self._news_at is None:
            self._news_at = now
        elif now - self._news_at >= SILENCE_S:
            self._news_at = now
            lines += _waiting_lines(statuses, self._closed)
        return lines

    def settled(self, evaluating: Collection[str]) -> int:
        """Rounds about which nothing more is expected: closed, aggregated and evaluated."""
        number = self._omitted
        while number and not self._is_complete(number, evaluating):
            number -= 1
        return number

    def _closed_line(self, number: int) -> str:
        line = f"round {number} of {self._rounds} closed"
        training = self._records.training.get(number, {})
        metric = _shown_metric(training.values(), prefer="loss")
        if metric is None:
            return line
        return f"{line}; training: {_figures(metric, training)}"

    def _omission_lines(self) -> list[str]:
        lines = []
        while self._omitted < self._closed:
            omissions = self._records.omissions(self._omitted + 1)
            if omissions is None and self._omitted + 1 > self._closed - EVALUATION_ROUNDS_MAX:
                break
            self._omitted += 1
            if omissions:
                members = ", ".join(map(str, omissions))
                lines.append(f"model of round {self._omitted}: without {members}")
        return lines

    def _evaluation_lines(self, newest: int, evaluating: Collection[str]) -> list[str]:
        """Evaluations of the models up to round `newest`. That of the initial model is reported
        before round 1 closes or not at all; the final table has it."""
        oldest = max(self._evaluated + 1, min(self._closed, 1))
        candidates = [n for n in sorted(self._records.metrics) if oldest <= n <= newest]
        complete = [n for n in candidates if self._is_complete(n, evaluating)]
        lines = []
        for number in candidates:
            if not complete or number > complete[-1]:
                break
            self._evaluated = number
            metrics = self._records.metrics[number]
            metric = _shown_metric(metrics.values(), prefer=ACCURACY)
            if metric is not None:
                model = f"model of round {number}" if number else "initial model"
                lines.append(f"{model}: {_figures(metric, metrics)}")
        return lines

    def _is_complete(self, number: int, evaluating: Collection[str]) -> bool:
        overdue = number <= self._closed - EVALUATION_ROUNDS_MAX
        return overdue or set(evaluating) <= set(self._records.metrics.get(number, ()))

    def _error_lines(self, statuses: Mapping[str, NodeStatus]) -> list[str]:
        lines = [
            f"{name}: {in_one_line(status.worker_error)}"
            for name, status in statuses.items()
            if status.worker_error is not None
        ]
        lines = [line for line in lines if line not in self._errors]
        self._errors.update(lines)
        return lines

    def _machine_lines(self, statuses: Mapping[str, NodeStatus]) -> list[str]:
        lines = []
        for name, status in statuses.items():
            for lacks, (begin, end) in zip(
                (status.disk_full, status.no_descriptors), MACHINE_LINES, strict=True
            ):
                key = (name, begin)
                if lacks and key not in self._lacking:
                    self._lacking.add(key)
                    lines.append(f"{name}: {begin}")
                elif not lacks and key in self._lacking:
                    self._lacking.remove(key)
                    lines.append(f"{name}: {end}")
        return lines

    def _divergence_lines(self, statuses: Mapping[str, NodeStatus]) -> list[str]:
        """Report divergence when it begins, and again if it recurs."""
        lines = []
        for work, advice, by_round in (
            ("training for round", DIVERGES, self._records.training),
            ("evaluation of the model of round", "check its data", self._records.metrics),
        ):
            for name in statuses:
                rounds = (number for number, members in by_round.items() if name in members)
                newest = max(rounds, default=None)
                metrics = not_finite(by_round[newest][name]) if newest is not None else []
                if metrics and (name, work) not in self._diverging:
                    lines.append(
                        f"{name}: {work} {newest} gives {', '.join(metrics)} = NaN or infinity: "
                        f"{advice}"
                    )
                    self._diverging.add((name, work))
                elif not metrics:
                    self._diverging.discard((name, work))
        return lines


DIVERGES = "it diverges; lower its learning rate, or check its data"
# For a full disk and for too many open files: the line at the beginning and at the end.
MACHINE_LINES = (
    (
        "DISK FULL: it signs nothing until there is room. Free some space, and it continues",
        "there is room on the disk again",
    ),
    (
        "TOO MANY OPEN FILES: it signs nothing until it can open one. Raise ulimit -n, run again",
        "it can open files again",
    ),
)


def in_one_line(error: str) -> str:
    """What failed, and the traceback's last line; the node's log has the rest."""
    lines = error.strip().splitlines()
    if lines[0].endswith("failed:"):
        return _shortened(f"{lines[0]} {lines[-1]}")
    return _shortened(lines[0].removesuffix("; the end of its log:"))


def _shortened(line: str) -> str:
    return line if len(line) <= ERROR_SHOWN_MAX else f"{line[:ERROR_SHOWN_MAX]} ..."


def _waiting_lines(statuses: Mapping[str, NodeStatus], closed: int) -> list[str]:
    for name, status in statuses.items():
        if not status.finished:
            return [f"round {closed + 1} is open; {name} waits {status.waiting}"]
    return []


def _shown_metric(by_member: Collection[Metrics], prefer: str) -> str | None:
    """The metric to show among those that all report: the preferred one, one whose name contains
    it, or the first by name."""
    reported = sorted(set.intersection(*map(set, by_member))) if by_member else []
    return next((name for name in reported if name == prefer), None) or next(
        (name for name in reported if prefer in name), next(iter(reported), None)
    )


def _figures(metric: str, by_member: Mapping[str, Metrics]) -> str:
    """Mean, lowest and highest of the finite values, and the members whose values are not."""
    values = {n: metrics[metric] for n, metrics in by_member.items() if isfinite(metrics[metric])}
    others = sorted(set(by_member) - set(values))
    suffix = f"; not finite: {', '.join(others)}" if others else ""
    if not values:
        return f"{metric} is not finite"
    low, high = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
    mean = f"{sum(values.values()) / len(values):.4f}"
    if f"{values[low]:.4f}" == f"{values[high]:.4f}":
        return f"{metric} {mean}{suffix}"
    return f"mean {metric} {mean} ({low} {values[low]:.4f} to {high} {values[high]:.4f}{suffix})"
