"""The part of a node's status that a run follows, typed. The only place here that reads one."""

from pathlib import Path
from typing import Any

from msgspec import Struct, convert

from defl.node.report.status_client import asked_status, last_status

FiniteMetrics = dict[str, float | None]  # None: not finite


class RoundStatus(Struct, frozen=True):
    round: int
    missing: list[str] = []  # members without an update
    left_out: list[str] | None = None  # by the rule; None: not aggregated yet
    late: list[str] = []  # of the missing: those that were waited for
    metrics: FiniteMetrics = {}  # of the round's model
    training: FiniteMetrics = {}  # of the member's own update


class ShareStatus(Struct, frozen=True):
    weight: float
    score: float | None


class AggregationStatus(Struct, frozen=True):
    round: int
    members: dict[str, ShareStatus]


class EvaluationStatus(Struct, frozen=True):
    round: int
    metrics: FiniteMetrics


class LaneBytes(Struct, frozen=True):
    sent: int
    received: int


class MemberStatus(Struct, frozen=True):
    round: int  # rounds closed
    model: str | None
    finished: bool
    disk_full: bool
    no_descriptors: bool
    waiting: str
    training_failures: int
    worker_error: str | None
    evaluation_error: str | None
    disk_bytes: int
    commit_ms: dict[str, float]
    traffic: dict[str, LaneBytes]
    aggregation: AggregationStatus | None
    evaluation: EvaluationStatus | None
    history: list[RoundStatus]

    @property
    def sent_bytes(self) -> int:
        return sum(lane.sent for lane in self.traffic.values())

    @property
    def received_bytes(self) -> int:
        return sum(lane.received for lane in self.traffic.values())


def live_status(node: Path) -> MemberStatus | None:
    """From the running node; None if it does not answer."""
    return _typed(asked_status(node))


def final_status(node: Path) -> MemberStatus | None:
    """What the node wrote on exit; None if it was killed before it could."""
    return _typed(last_status(node))


def _typed(fields: dict[str, Any] | None) -> MemberStatus | None:
    return None if fields is None else convert(fields, MemberStatus)
