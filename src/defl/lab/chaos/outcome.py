"""What a run has shown: pure functions of what was seen, and the values they give."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

Log = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Moment:
    """A member's height in the log, as seen at this time."""

    at: float
    member: int
    height: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds after the heal."""

    first_commit_s: float  # somebody committed something new
    everybody_s: float  # each member has committed something new


def recovery_of(moments: Sequence[Moment], healed_at: float, members: int) -> Recovery | None:
    """None as long as some member has not passed the highest block committed before the heal."""
    before = max((m.height for m in moments if m.at <= healed_at), default=0)
    passed: dict[int, float] = {}
    for moment in moments:
        if moment.at > healed_at and moment.height > before:
            passed.setdefault(moment.member, moment.at - healed_at)
    if len(passed) < members:
        return None
    return Recovery(min(passed.values()), max(passed.values()))


def round_seconds(logs: Sequence[Log]) -> float | None:
    """The median time from close to close, over rounds and members; None with one round."""
    spans = []
    for log in logs:
        closed = {line["round"]: line["time"] for line in log if line["event"] == "round closed"}
        spans += [closed[n] - closed[n - 1] for n in closed if n - 1 in closed]
    return median(spans) if spans else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    name: str
    title: str
    members: int
    rounds: int  # closed at every member
    rounds_wanted: int
    seconds: float
    round_s: float | None
    recovery: Recovery | None  # None: nothing was to heal
    view_s: float  # the period of a view
    late_ms: float  # how late the link itself was at worst
    notes: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.violations
