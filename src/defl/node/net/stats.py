"""Counts that the transport keeps, for status and metrics."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from defl.ids import NodeId
from defl.node.net.framing import Lane
from defl.node.net.refusal import Refusal
from defl.node.net.send_queue import Traffic

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts since the start. Those by contact are of the present ones; refusals are of accepted
    and of dialled connections."""

    traffic: dict[tuple[NodeId, Lane], Traffic] = field(default_factory=dict)
    # Of the contacts that have gone, so that totals never sink.
    traffic_gone: dict[Lane, Traffic] = field(
        default_factory=lambda: {lane: Traffic() for lane in Lane}
    )
    refusals: Counter[Refusal] = field(default_factory=Counter)
    reconnects: Counter[NodeId] = field(default_factory=Counter)
    replaced: Counter[NodeId] = field(default_factory=Counter)
    trouble: dict[NodeId, str] = field(default_factory=dict)  # why a peer is not connected

    def follow(
        self,
        numbers: Mapping[NodeId, NodeId],
        traffic: Mapping[tuple[NodeId, Lane], Traffic],
    ) -> None:
        """Keeps what is known of these contacts, under their new numbers, and of others the sum of
        their traffic."""
        kept = {id(counts) for counts in traffic.values()}
        for (_, lane), counts in self.traffic.items():
            if id(counts) not in kept:
                self.traffic_gone[lane] += counts
        self.traffic.clear()
        self.traffic.update(traffic)
        _renumber(self.reconnects, numbers)
        _renumber(self.replaced, numbers)
        _renumber(self.trouble, numbers)

    def totals(self) -> dict[Lane, Traffic]:
        """With all contacts that there ever were."""
        totals = dict(self.traffic_gone)
        for (_, lane), counts in self.traffic.items():
            totals[lane] += counts
        return totals


def _renumber(values: dict[NodeId, Value], numbers: Mapping[NodeId, NodeId]) -> None:
    kept = {numbers[peer]: value for peer, value in values.items() if peer in numbers}
    values.clear()
    values.update(kept)
