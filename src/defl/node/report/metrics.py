"""Prometheus metrics of one node: what it counts itself, and its status as gauges and counters.

Each node has a registry of its own, and nothing here serves it: telemetry.py does. Counters start
at zero with the process. docs/OPERATING.md lists every metric.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from math import nan
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from defl.messages import Slot, Transaction, slot_of
from defl.node.report.status import CommitLatency, NodeStatus, status_of

if TYPE_CHECKING:
    from defl.node.node import Node

# A commit takes a few round trips: milliseconds in one room, seconds around the world, and view
# timeouts while a leader is down.
COMMIT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# The percentiles in the status are those of the newest commits.
COMMITS_KEPT = 1024
DIGEST_CHARACTERS = 16

Samples = Iterable[tuple[tuple[str, ...], float]]  # label values and the value


class Measures:
    """What a node counts and times as it goes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.registry = CollectorRegistry()
        self.peer_faults: Counter[str] = Counter()  # by name
        self.floods: Counter[str] = Counter()  # by name: links ended for empty TLS records
        self._submitted_at: dict[Slot, float] = {}
        self._commits_s: deque[float] = deque(maxlen=COMMITS_KEPT)
        self._commit_latency = Histogram(
            "defl_commit_latency_seconds",
            "From the submission of a transaction of this node to its commit",
            buckets=COMMIT_BUCKETS_S,
            registry=self.registry,
        )

    def submitted(self, transaction: Transaction) -> None:
        """Starts the clock, unless it runs: a transaction may be sent again."""
        self._submitted_at.setdefault(slot_of(transaction), self._clock())

    def committed(self, transaction: Transaction) -> float | None:
        """Seconds since its submission; None if an earlier process submitted it."""
        submitted = self._submitted_at.pop(slot_of(transaction), None)
        if submitted is None:
            return None
        latency_s = self._clock() - submitted
        self._commits_s.append(latency_s)
        self._commit_latency.observe(latency_s)
        return latency_s

    def commit_latency(self) -> CommitLatency | None:
        ordered = sorted(self._commits_s)
        if not ordered:
            return None
        return CommitLatency(
            p50=ordered[len(ordered) // 2] * 1000,
            p99=ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1000,
        )


class NodeMetrics(Collector):
    """Reads the node's status at each scrape."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._registry = node.measures.registry
        self._registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        status = status_of(self._node)
        yield from _gauges(status)
        yield from _of_peers(status)
        yield from _of_rounds(status)
        yield from self._traffic()

    def _traffic(self) -> Iterator[Metric]:
        by_lane = {
            (self._node.names.of(peer), lane.value): traffic
            for (peer, lane), traffic in self._node.transport.stats.traffic.items()
        }
        labels = ("peer", "lane")
        yield _counters(
            "sent_bytes",
            "Bytes of frames sent to a peer",
            labels,
            ((key, traffic.bytes_out) for key, traffic in by_lane.items()),
        )
        yield _counters(
            "received_bytes",
            "Bytes of frames received from a peer",
            labels,
            ((key, traffic.bytes_in) for key, traffic in by_lane.items()),
        )
        yield _counters(
            "tls_floods",
            "Connections ended because their TLS records brought nothing",
            ("peer",),
            (((name,), count) for name, count in self._node.measures.floods.items()),
        )


def _gauges(status: NodeStatus) -> Iterator[Metric]:
    yield _gauge("round", "Closed rounds", status.round)
    yield _gauge("epoch", "Changes of the membership so far", status.epoch)
    yield _gauge("member", "1 if this node is a member in this epoch", status.member is not None)
    yield _gauge("departed", "1 if this node has left and may stop", status.departed)
    if status.counts is not None:
        yield _gauge("members", "n: members in this epoch", status.counts.n)
        yield _gauge("faults_tolerated", "f: Byzantine members tolerated", status.counts.f)
        yield _gauge("quorum", "q: members that agree", status.counts.q)
    yield from _of_changes(status)
    yield _gauge("view", "View of consensus", status.view)
    yield _gauge("height", "Height of the newest committed block", status.height)
    yield _gauge("observing", "1 if this node signs nothing", status.observing is not None)
    yield _gauge(
        "safety_broken",
        "1 if another commit contradicts this node's: more than f members lied",
        status.safety_broken is not None,
    )
    yield _gauge("disk_full", "1 while records wait for room on the disk", status.disk_full)
    yield _gauge("no_descriptors", "1 while no more files can be opened", status.no_descriptors)
    yield _gauge("crowded", "1 if callers were turned away in the last minute", status.crowded)
    yield _counters(
        "turned_away_connections",
        "Connections turned away because too many callers waited to prove who they are",
        (),
        [((), status.turned_away)],
    )
    yield _gauge(
        "training_failures",
        "Trainings that failed since the last success",
        status.training_failures,
    )
    yield _gauge("blobs", "Blobs of weights in the store", status.blobs)
    yield _gauge("disk_bytes", "Size of the node's state on disk", status.disk_bytes)
    yield _gauge("evidence", "Contradictions signed by members", len(status.evidence))
    yield _gauge("peers_connected", "Connected peers", sum(status.peers.values()))


def _of_changes(status: NodeStatus) -> Iterator[Metric]:
    yield _gauges_by(
        "change_approvals",
        "Members that have approved a pending change",
        ("change", "author"),
        (
            ((change.digest[:DIGEST_CHARACTERS], change.author), len(change.approvals))
            for change in status.changes
        ),
    )
    yield _gauges_by(
        "change_complete",
        "1 if a pending change takes effect when the open round closes",
        ("change", "author"),
        (
            ((change.digest[:DIGEST_CHARACTERS], change.author), not change.missing)
            for change in status.changes
        ),
    )


def _of_peers(status: NodeStatus) -> Iterator[Metric]:
    yield _gauges_by(
        "link_round_trip_seconds",
        "The newest round trip to a connected peer, and the way to it",
        ("peer", "route"),
        (
            ((name, link.route), link.round_trip_s)
            for name, link in status.links.items()
            if link.round_trip_s is not None
        ),
    )
    yield _gauges_by(
        "waiting_for_seconds",
        "How much longer, at most, the open round is kept open for a member",
        ("member",),
        (((name,), left) for name, left in status.waiting_for_s.items()),
    )
    yield _counters(
        "late_rounds",
        "Rounds that closed without an update that was expected",
        ("member",),
        (((name,), lateness.rounds) for name, lateness in status.late.items()),
    )
    yield _gauges_by(
        "late_seconds",
        "By how much a member missed the newest of these rounds",
        ("member",),
        (
            ((name,), lateness.late_s)
            for name, lateness in status.late.items()
            if lateness.late_s is not None
        ),
    )
    yield _counters(
        "refused_messages",
        "Messages of a peer that broke the protocol",
        ("peer",),
        (((name,), count) for name, count in status.refused.items()),
    )


def _of_rounds(status: NodeStatus) -> Iterator[Metric]:
    aggregation, evaluation = status.aggregation, status.evaluation
    members = {} if aggregation is None else aggregation.members
    yield _counters(
        "left_out",
        "Rounds whose model lacks a member's update",
        ("member", "reason"),
        (
            ((name, reason), count)
            for name, rounds in status.left_out.items()
            for reason, count in (("rule", rounds.by_rule), ("no update", rounds.no_update))
        ),
    )
    yield _gauges_by(
        "aggregated_round",
        "Round of the newest aggregate",
        (),
        [] if aggregation is None else [((), aggregation.round)],
    )
    yield _gauges_by(
        "aggregate_weight",
        "A member's weight in the newest aggregate",
        ("member",),
        (((name,), share.weight) for name, share in members.items()),
    )
    yield _gauges_by(
        "aggregate_score",
        "A member's score in the newest aggregate; its meaning depends on the rule",
        ("member",),
        (((name,), share.score) for name, share in members.items() if share.score is not None),
    )
    yield _gauges_by(
        "evaluated_round",
        "Round of the newest evaluated model",
        (),
        [] if evaluation is None else [((), evaluation.round)],
    )
    yield _gauges_by(
        "evaluation",
        "What the client's evaluate returned for it",
        ("metric",),
        (
            ((name,), nan if value is None else value)
            for name, value in ({} if evaluation is None else evaluation.metrics).items()
        ),
    )


def _gauge(name: str, help_: str, value: float) -> Metric:
    return GaugeMetricFamily(f"defl_{name}", help_, value=float(value))


def _gauges_by(name: str, help_: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    return _filled(GaugeMetricFamily(f"defl_{name}", help_, labels=labels), samples)


def _counters(name: str, help_: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    """The library adds `_total` to the name."""
    return _filled(CounterMetricFamily(f"defl_{name}", help_, labels=labels), samples)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, samples: Samples) -> Metric:
    for values, value in samples:
        family.add_metric(values, value)
    return family
