"""The rounds of a run, gathered from its members' statuses, which report the newest rounds only."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import isfinite, nan
from pathlib import Path
from typing import TypeVar

from msgspec import convert

from defl.node.report.status import Aggregation, NodeStatus
from defl.node.report.status import Metrics as FiniteMetrics
from defl.results import ByMember, Metrics, Omission, OmissionReason, RoundRecord

T = TypeVar("T")
# Written by an unfinished run, for the one that resumes it.
RECORDS_FILE = "rounds.json"


class RunRecords:
    """Every member builds the same models and leaves out the same updates, so any member's report
    will do. Metrics and lateness are each member's own."""

    def __init__(self, earlier: Sequence[RoundRecord] = ()) -> None:
        self.metrics: dict[int, dict[str, Metrics]] = {r.number: dict(r.metrics) for r in earlier}
        self.training: dict[int, dict[str, Metrics]] = {r.number: dict(r.training) for r in earlier}
        self._omissions: dict[int, dict[str, Omission]] = {
            r.number: {omission.member: omission for omission in r.omissions} for r in earlier
        }
        self._seconds: dict[int, float | None] = {r.number: r.seconds for r in earlier}

    def observe(self, statuses: Mapping[str, NodeStatus]) -> None:
        for name, status in statuses.items():
            for report in status.history:
                if report.metrics:
                    self.metrics.setdefault(report.round, {})[name] = _floats(report.metrics)
                if report.training:
                    self.training.setdefault(report.round, {})[name] = _floats(report.training)
                if report.round <= status.round and report.left_out is not None:
                    self._omit(report.round, report.left_out, OmissionReason.BY_RULE)
                    self._omit(report.round, report.missing, OmissionReason.NO_UPDATE)
                    self._omit(report.round, report.late, OmissionReason.LATE)
            if status.aggregation is not None:
                self._add_scores(status.aggregation)

    def closed(self, number: int, seconds: float) -> None:
        self._seconds[number] = seconds

    def omissions(self, number: int) -> tuple[Omission, ...] | None:
        """None: no member has aggregated the round yet."""
        omissions = self._omissions.get(number)
        return None if omissions is None else tuple(_in_order(omissions).values())

    def rounds(self, closed: int, digest: str | None) -> tuple[RoundRecord, ...]:
        """The first `closed` rounds; `digest` is of the last one's model."""
        return tuple(
            RoundRecord(
                number=number,
                digest=digest if number == closed else None,
                metrics=_in_order(self.metrics.get(number, {})),
                training=_in_order(self.training.get(number, {})),
                omissions=self.omissions(number) or (),
                seconds=self._seconds.get(number),
            )
            for number in range(1, closed + 1)
        )

    @property
    def initial_metrics(self) -> ByMember:
        return _in_order(self.metrics.get(0, {}))

    def _omit(self, number: int, members: list[str], reason: OmissionReason) -> None:
        """A member is late if any other member waited for it."""
        omissions = self._omissions.setdefault(number, {})
        for member in members:
            if member not in omissions or reason is OmissionReason.LATE:
                omissions[member] = Omission(member, reason)

    def _add_scores(self, aggregation: Aggregation) -> None:
        kept = [share.score for share in aggregation.members.values() if share.weight]
        worst = max((score for score in kept if score), default=None)
        omissions = self._omissions.get(aggregation.round, {})
        for member, share in aggregation.members.items():
            omission = omissions.get(member)
            if omission is not None and not share.weight and share.score and worst:
                detail = f"score {share.score / worst:.1f} times the worst kept"
                omissions[member] = dataclasses.replace(omission, detail=detail)


def _in_order(by_member: Mapping[str, T]) -> dict[str, T]:
    """node-2 before node-10."""
    return dict(sorted(by_member.items(), key=lambda item: (len(item[0]), item[0])))


def _floats(metrics: FiniteMetrics) -> dict[str, float]:
    return {name: nan if value is None else value for name, value in metrics.items()}


def not_finite(metrics: Metrics) -> list[str]:
    return [name for name, value in metrics.items() if not isfinite(value)]


def write_records(folder: Path, records: Sequence[RoundRecord]) -> None:
    """A convenience: on a full disk the previous file stays."""
    text = json.dumps([dataclasses.asdict(record) for record in records])
    temporary = folder / f".{RECORDS_FILE}.writing"
    with suppress(OSError):
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(folder / RECORDS_FILE)


def read_records(folder: Path) -> list[RoundRecord]:
    """Empty without the file: nothing is known about the rounds of a run that was killed."""
    path = folder / RECORDS_FILE
    if not path.exists():
        return []
    return convert(json.loads(path.read_text(encoding="utf-8")), list[RoundRecord])
