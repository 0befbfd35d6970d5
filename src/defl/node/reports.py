"""What a node tells people of its rounds: how good each model is on its own data.

Kept for the newest rounds alone, as plain figures; nothing depends on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

# Status tells of this many rounds, so that whoever asks now and then misses none.
ROUNDS_KEPT = 8


@dataclass(slots=True)
class RoundReport:
    metrics: dict[str, float] | None = None  # of the round's model, by this node's own client


@dataclass(frozen=True, slots=True)
class Evaluation:
    round: int
    metrics: dict[str, float]
    seconds: float  # that the client took


@dataclass(slots=True)
class Reports:
    evaluation: Evaluation | None = None  # the newest
    evaluation_error: str | None = None  # why the newest attempt gave no metrics
    _rounds: dict[int, RoundReport] = field(default_factory=dict)

    def evaluated(self, done: Evaluation) -> None:
        self.evaluation = done
        self.evaluation_error = None
        self._of(done.round).metrics = done.metrics

    def _of(self, round_: int) -> RoundReport:
        report = self._rounds.setdefault(round_, RoundReport())
        for old in sorted(self._rounds)[:-ROUNDS_KEPT]:
            del self._rounds[old]
        return report

    def status(self) -> dict[str, Any]:
        """For JSON, which knows no NaN: whatever is not finite is null."""
        return {
            "evaluation": None
            if self.evaluation is None
            else {
                "round": self.evaluation.round,
                "metrics": finite(self.evaluation.metrics),
                "seconds": self.evaluation.seconds,
            },
            "evaluation_error": self.evaluation_error,
            "history": [
                {"round": round_, "metrics": finite(report.metrics or {})}
                for round_, report in sorted(self._rounds.items())
            ],
        }


def finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if isfinite(value) else None for name, value in values.items()}


def told(metrics: Mapping[str, float], **own: object) -> dict[str, object]:
    """A client's metrics as fields of a log line whose own fields no metric can replace."""
    shown = {name: value if isfinite(value) else str(value) for name, value in metrics.items()}
    return {**own, **{name: value for name, value in shown.items() if name not in own}}
