"""The live progress of a federation on this machine, told line by line from its nodes' statuses."""

from collections.abc import Callable, Mapping
from typing import Any

ACCURACY = "accuracy"


class RunProgress:
    """Each line is told once: of a round when all nodes know of it, of a failure at once."""

    def __init__(self, rounds: int, tell: Callable[[str], None]) -> None:
        self._rounds = rounds
        self._tell = tell
        self._closed = 0
        self._aggregated = 0
        self._evaluated = -1
        self._troubles: dict[str, str] = {}

    def update(self, states: Mapping[str, dict[str, Any]]) -> None:
        """By node; one that has not spoken yet says nothing but round 0."""
        closed = min(state["round"] for state in states.values())
        for number in range(self._closed + 1, closed + 1):
            self._tell(f"round {number} of {self._rounds} closed by all nodes")
        self._closed = max(self._closed, closed)
        self._tell_left_out(states)
        self._tell_metrics(states)
        self._tell_troubles(states)

    def _tell_left_out(self, states: Mapping[str, dict[str, Any]]) -> None:
        """Every node makes the same aggregate, so any one's word will do."""
        found = {
            report["round"]: report
            for state in states.values()
            for report in state.get("history", ())
            if self._aggregated < report["round"] <= self._closed and report["left_out"] is not None
        }
        for number, report in sorted(found.items()):
            parts = [f"{name} (left out by the rule)" for name in report["left_out"]]
            parts += [f"{name} (no update in time)" for name in report["missing"]]
            if parts:
                self._tell(f"model of round {number}: without {', '.join(parts)}")
            self._aggregated = number

    def _tell_metrics(self, states: Mapping[str, dict[str, Any]]) -> None:
        """One metric of each model that all nodes have evaluated: the accuracy, or the first by
        name of those that all clients report."""
        by_node = {name: _metrics(state) for name, state in states.items()}
        rounds = set.intersection(*(set(found) for found in by_node.values()))
        for number in sorted(round_ for round_ in rounds if round_ > self._evaluated):
            metrics = {name: found[number] for name, found in by_node.items()}
            reported = set.intersection(*(set(found) for found in metrics.values()))
            if not reported:
                continue
            metric = ACCURACY if ACCURACY in reported else min(reported)
            values = {name: found[metric] for name, found in metrics.items()}
            shown = "  ".join(f"{name} {value:.4f}" for name, value in values.items())
            mean = sum(values.values()) / len(values)
            self._tell(f"model of round {number}: mean {metric} {mean:.4f} ({shown})")
            self._evaluated = number

    def _tell_troubles(self, states: Mapping[str, dict[str, Any]]) -> None:
        for name, state in states.items():
            trouble = state.get("worker_error")
            if trouble is not None and trouble != self._troubles.get(name):
                self._tell(f"{name}: {in_one_line(trouble)}")
                self._troubles[name] = trouble


def in_one_line(trouble: str) -> str:
    """What was done, and the traceback's last line; the node's log has the rest."""
    lines = trouble.strip().splitlines()
    if lines[0].endswith("failed:"):
        return f"{lines[0]} {lines[-1]}"
    return lines[0].removesuffix("; the end of its log:")


def _metrics(state: Mapping[str, Any]) -> dict[int, dict[str, float]]:
    """Those of the newest rounds, as the node's own client found them; what is no number is not
    among them."""
    return {
        report["round"]: {
            name: value for name, value in report["metrics"].items() if value is not None
        }
        for report in state.get("history", ())
    }
