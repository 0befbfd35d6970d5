"""A running node as figures: the status that `defl node status` shows, and Prometheus metrics."""

import resource
from time import monotonic
from typing import TYPE_CHECKING, Any

from defl.node.report.history import Reports
from defl.node.report.telemetry import label, prometheus

if TYPE_CHECKING:
    from defl.node.node import Node


def status_of(node: "Node") -> dict[str, Any]:
    participant = node.participant
    replica = participant.replica
    members = node.federation.committee.members
    model = participant.model
    waits_for = _waits_for(node)
    return {
        "member": node.me,
        "name": node.federation.members[node.me].name,
        "federation": node.federation.chain.hex(),
        "round": participant.state.round,
        "rounds": node.federation.rounds,
        "model": model.hex() if model is not None else None,
        "view": replica.view,
        "height": replica.head.height,
        "observing": replica.observing,
        "disk_full": node.writing.disk_full,
        "no_descriptors": node.writing.no_descriptors,
        "finished": participant.finished,
        "peers": {
            node.federation.members[peer].name: node.transport.connected(peer)
            for peer in members
            if peer != node.me
        },
        "trouble": {
            node.federation.members[peer].name: why
            for peer, why in node.transport.stats.trouble.items()
        },
        "commit_ms": node.measures.commit_percentiles(),
        "waiting": waiting_sentence(
            answers_missing=participant.answers_missing,
            over=participant.state.round == node.federation.rounds,
            updates=len(participant.state.current),
            quorum=node.federation.committee.quorum,
            waits_for=waits_for,
        ),
        "waiting_for_s": waits_for,
        "blobs": participant.stored["blobs"],
        "disk_bytes": node.storage.bytes_used,
        "evidence": [
            {"member": e.first.author, "kind": type(e.first).__name__} for e in participant.evidence
        ],
        "refused": {str(peer): count for peer, count in node.measures.peer_faults.items()},
        "traffic": _traffic(node),
        "memory_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "training_failures": node.worker.training_failures,
        "worker_error": node.worker.last_error,
        **node.reports.status(),
    }


def _waits_for(node: "Node") -> dict[str, float]:
    """For whom this node keeps the open round open, and how many seconds longer at most."""
    now = monotonic()
    return {
        node.federation.members[member].name: round(left, 3)
        for member, deadline in node.participant.client.deadlines.items()
        if (left := deadline - now) > 0
    }


def waiting_sentence(
    *, answers_missing: int, over: bool, updates: int, quorum: int, waits_for: dict[str, float]
) -> str:
    """What must happen next, in words."""
    if answers_missing:
        members = "member" if answers_missing == 1 else "members"
        return (
            f"for {answers_missing} more {members} to say what they have seen this node sign; "
            "it signs nothing before"
        )
    if over:
        return "for nobody: all rounds are closed"
    if updates < quorum:
        return f"for updates: {updates} of at least {quorum} are in"
    if not waits_for:
        return "for the round to close"
    return "for " + ", ".join(f"{name} (up to {left:.1f} s)" for name, left in waits_for.items())


def _traffic(node: "Node") -> dict[str, dict[str, int]]:
    totals: dict[str, dict[str, int]] = {}
    for (_, lane), traffic in node.transport.stats.traffic.items():
        lane_total = totals.setdefault(lane.value, {"sent": 0, "received": 0})
        lane_total["sent"] += traffic.bytes_out
        lane_total["received"] += traffic.bytes_in
    return totals


def metrics_of(node: "Node") -> str:
    status = status_of(node)
    by_peer = node.transport.stats.traffic
    return prometheus(
        {
            "round": {"": status["round"]},
            "view": {"": status["view"]},
            "height": {"": status["height"]},
            "observing": {"": float(status["observing"] is not None)},
            "disk_full": {"": float(status["disk_full"])},
            "no_descriptors": {"": float(status["no_descriptors"])},
            "training_failures": {"": status["training_failures"]},
            "blobs_held": {"": status["blobs"]},
            "disk_bytes": {"": status["disk_bytes"]},
            "evidence": {"": len(status["evidence"])},
            "waiting_for_seconds": {
                label("member", name): left for name, left in status["waiting_for_s"].items()
            },
            "peers_connected": {"": sum(status["peers"].values())},
            "commit_latency_ms": {
                f'quantile="{name}"': value for name, value in status["commit_ms"].items()
            },
            "bytes_sent": {
                f'peer="{peer}",lane="{lane.value}"': traffic.bytes_out
                for (peer, lane), traffic in by_peer.items()
            },
            "bytes_received": {
                f'peer="{peer}",lane="{lane.value}"': traffic.bytes_in
                for (peer, lane), traffic in by_peer.items()
            },
            **_of_rounds(node.reports),
            "refused_messages": {
                f'peer="{peer}"': count for peer, count in status["refused"].items()
            },
        }
    )


def _of_rounds(reports: Reports) -> dict[str, dict[str, float]]:
    aggregation, evaluation = reports.aggregation, reports.evaluation
    members = aggregation.members if aggregation is not None else {}
    return {
        "left_out_total": {
            f"{label('member', name)},{label('reason', reason)}": count
            for reason, counts in (
                ("rule", reports.left_out_by_rule),
                ("no update", reports.without_update),
            )
            for name, count in counts.items()
        },
        "late_rounds_total": {
            label("member", name): lateness.rounds for name, lateness in reports.late.items()
        },
        "late_seconds": {
            label("member", name): lateness.late_s
            for name, lateness in reports.late.items()
            if lateness.late_s is not None
        },
        "aggregated_round": {} if aggregation is None else {"": aggregation.round},
        "aggregate_weight": {label("member", name): s.weight for name, s in members.items()},
        "aggregate_score": {
            label("member", name): s.score for name, s in members.items() if s.score is not None
        },
        "evaluated_round": {} if evaluation is None else {"": evaluation.round},
        "evaluation": {}
        if evaluation is None
        else {label("metric", name): value for name, value in evaluation.metrics.items()},
    }
