"""Prometheus metrics of a node, as a scraper reads them."""

import asyncio
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from defl.ids import Digest, NodeId, Round
from defl.lab.experiments.processes import Nodes
from defl.messages import Agg
from defl.node.net.tls_transport import RecordFlood
from defl.node.node import Node
from defl.node.report.changes import Counts, Review
from defl.node.report.log import Log
from defl.node.report.metrics import Measures, NodeMetrics, _of_changes, _of_peers
from defl.node.report.peer_log import PEER_LINES_BURST
from defl.node.report.status import LinkStatus
from defl.node.startup import open_node
from defl.node.work.worker_process import WorkReport
from defl.output import Aggregate, MemberLate, Reference, RoundClosed, RoundSeen
from support.logs import log_to
from support.statuses import status

NOTHING = Digest(bytes(32))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Nodes(tmp_path_factory.mktemp("metrics") / "federation", 4, 1).local.nodes[0]


@pytest.fixture
def node(folder: Path) -> Iterator[Node]:
    opened = open_node(folder, Log())
    yield opened
    opened.writing.close()
    opened.storage.close()


def families(metrics: bytes) -> dict[str, prometheus_client.Metric]:
    return {family.name: family for family in text_string_to_metric_families(metrics.decode())}


def scraped(node: Node) -> dict[str, list[Sample]]:
    text = node._metrics.text()
    return {name: family.samples for name, family in families(text).items()}


def test_every_metric_has_help_and_the_unit_in_its_name(node: Node) -> None:
    metrics = families(node._metrics.text())

    assert "defl_round" in metrics
    for name, family in metrics.items():
        assert name.startswith("defl_")
        assert family.documentation
        assert not name.endswith(("_ms", "_mb"))


def test_counts_since_the_start_are_counters(node: Node) -> None:
    node.measures.peer_faults["node-1"] += 3
    text = node._metrics.text().decode()

    assert "# TYPE defl_refused_messages_total counter" in text
    assert 'defl_refused_messages_total{peer="node-1"} 3.0' in text
    assert "# TYPE defl_sent_bytes_total counter" in text
    assert 'defl_sent_bytes_total{lane="weights",peer="node-1"} 0.0' in text
    assert "# TYPE defl_round gauge" in text


def test_floods_of_tls_records_are_counted_and_logged_a_few_times(folder: Path) -> None:
    lines = io.StringIO()
    node = open_node(folder, log_to(lines))

    async def floods() -> None:
        for peer in (NodeId(1), None, *[None] * 100):
            node._flooded(peer, RecordFlood(24, "192.0.2.7 port 4711", None))

    try:
        asyncio.run(floods())
        text = node._metrics.text().decode()
    finally:
        node.writing.close()
        node.storage.close()

    assert 'defl_tls_floods_total{peer="node-1"} 1.0' in text
    assert 'defl_tls_floods_total{peer="a stranger"} 101.0' in text
    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    told = [line for line in told if "TLS records" in line["event"]]
    assert [line["peer"] for line in told[:2]] == ["node-1", "a stranger"]
    assert {(line["address"], line["records"]) for line in told} == {("192.0.2.7 port 4711", 24)}
    assert len(told) == 1 + PEER_LINES_BURST


def test_epoch_members_and_pending_changes_are_shown(node: Node) -> None:
    samples = {name: [s.value for s in found] for name, found in scraped(node).items()}
    assert samples["defl_epoch"] == samples["defl_departed"] == [0]
    assert samples["defl_member"] == [1]
    assert [samples[f"defl_{name}"] for name in ("members", "faults_tolerated", "quorum")] == [
        [4],
        [1],
        [3],
    ]
    change = Review("ab" * 32, "alice", 1, ["remove dan"], ["alice", "bob"], 3, Counts.of(4), ["1"])
    families = {family.name: family.samples for family in _of_changes(status(changes=[change]))}

    (approvals,) = families["defl_change_approvals"]
    assert approvals.labels == {"change": "ab" * 8, "author": "alice"}
    assert (approvals.value, families["defl_change_complete"][0].value) == (2, 0)


def test_round_trips_are_shown_by_peer_and_route() -> None:
    links = {
        "bob": LinkStatus("direct", 0.02),
        "carol": LinkStatus("through the relay hub", 0.3),
        "dave": LinkStatus("direct"),  # not measured yet
    }
    metrics = {metric.name: metric.samples for metric in _of_peers(status(links=links))}

    assert [
        (sample.labels, sample.value) for sample in metrics["defl_link_round_trip_seconds"]
    ] == [
        ({"peer": "bob", "route": "direct"}, 0.02),
        ({"peer": "carol", "route": "through the relay hub"}, 0.3),
    ]


def test_a_rounds_outcome_is_shown_per_member(node: Node) -> None:
    history = node.history
    updates = tuple(
        Reference(NodeId(author), NOTHING, 400, NOTHING, b"", b"") for author in (0, 1, 3)
    )
    late = (MemberLate(NodeId(2), waited_s=1.0, usual_s=3.0),)
    seen = RoundSeen(
        whole=True, opened_at=0.0, lasted_s=2.0, arrivals=(), late=late, deadline_s=None
    )
    history.closed(RoundClosed(Round(1), (), (NodeId(2),), seen))
    history.aggregated(
        Aggregate(Round(1), NOTHING, updates, NOTHING, 1),
        WorkReport(Round(1), {}, (0.5, 0.5, 0.0), (1.0, 2.0, math.inf), "two are close"),
    )
    history.evaluated(1, {'a"b\\c\nd': 0.5, "loss": math.nan}, 0.1)

    samples = scraped(node)
    left_out = {tuple(s.labels.values()): s.value for s in samples["defl_left_out"]}
    assert left_out["node-2", "no update"] == 1
    assert left_out["node-3", "rule"] == 1
    assert [s.value for s in samples["defl_late_seconds"]] == [1.0]
    scores = {s.labels["member"]: s.value for s in samples["defl_aggregate_score"]}
    assert scores == {"node-0": 1.0, "node-1": 2.0, "node-3": math.inf}
    evaluation = {s.labels["metric"]: s.value for s in samples["defl_evaluation"]}
    assert evaluation['a"b\\c\nd'] == 0.5
    assert math.isnan(evaluation["loss"])


def test_commit_latency_is_a_histogram_in_seconds() -> None:
    now = iter([10.0, 10.0, 10.04, 11.0])
    measures = Measures(lambda: next(now))
    first, second = (Agg(Round(n), NodeId(0), b"") for n in (1, 2))
    measures.submitted(first)
    measures.submitted(second)

    assert measures.committed(first) == pytest.approx(0.04)
    assert measures.committed(second) == 1.0
    assert measures.committed(second) is None  # submitted by a former process
    latency = measures.commit_latency()
    assert latency is not None
    assert (latency.p50, latency.p99) == (1000.0, 1000.0)
    value = measures.registry.get_sample_value
    assert value("defl_commit_latency_seconds_count") == 2
    assert value("defl_commit_latency_seconds_sum") == pytest.approx(1.04)
    assert value("defl_commit_latency_seconds_bucket", {"le": "0.05"}) == 1


def test_each_node_has_its_own_registry(node: Node) -> None:
    assert node.measures.registry is not prometheus_client.REGISTRY
    assert not any(
        isinstance(collector, NodeMetrics)
        for collector in prometheus_client.REGISTRY._collector_to_names
    )
    assert not any(f.name.startswith("defl_") for f in prometheus_client.REGISTRY.collect())
