"""A node's status as text for a person."""

from defl.node.report.status import MemberShare, NodeStatus
from defl.printable import printable_lines

NAME_COLUMNS = 14
INDENTED = "\n" + " " * (NAME_COLUMNS + 2)  # a traceback stays in its column
DIGEST_CHARACTERS = 16


def status_text(status: NodeStatus) -> str:
    lines = [
        *_progress(status),
        *_changes(status),
        *_network(status),
        *_rounds(status),
        *_problems(status),
    ]
    return printable_lines(
        "\n".join(
            f"  {name:<{NAME_COLUMNS}}{text.rstrip().replace(chr(10), INDENTED)}"
            for name, text in lines
        )
    )


def _progress(status: NodeStatus) -> list[tuple[str, str]]:
    model = "none yet" if status.model is None else status.model[:DIGEST_CHARACTERS]
    finished = ", finished" if status.finished else ""
    return [
        ("federation", status.federation[:DIGEST_CHARACTERS]),
        ("epoch", _epoch(status)),
        ("round", f"{status.round} of {status.rounds}{finished}"),
        ("waiting", status.waiting),
        ("model", model),
        ("consensus", f"view {status.view}, height {status.height}"),
    ]


def _epoch(status: NodeStatus) -> str:
    left = ", left for good" if status.departed else ""
    counts = "" if status.counts is None else f", {status.counts}"
    return f"{status.epoch}, {status.role}{left}{counts}"


def _changes(status: NodeStatus) -> list[tuple[str, str]]:
    """Pending changes of the membership."""
    lines = []
    for change in status.changes:
        what = "; ".join(change.operations)
        lines.append(("change", f"{change.digest[:DIGEST_CHARACTERS]} of {change.author}: {what}"))
        approved = f"{', '.join(change.approvals)} ({len(change.approvals)} of {change.needs})"
        lines.append(("", f"approved by {approved}; then {change.after}"))
        effect = f"takes effect when round {status.round + 1} closes"
        lines.append(("", "missing: " + "; ".join(change.missing) if change.missing else effect))
    return lines


def _network(status: NodeStatus) -> list[tuple[str, str]]:
    connected = sum(status.peers.values())
    lines = [("peers", f"{connected} of {len(status.peers)} connected")]
    for name, is_connected in status.peers.items():
        if not is_connected:
            lines.append(("", f"{name}: {status.trouble.get(name, 'not connected yet')}"))
        elif name in status.links:
            lines.append(("", f"{name}: {status.links[name]}"))
    lines.append(
        ("traffic", f"{_size(status.sent_bytes)} sent, {_size(status.received_bytes)} received")
    )
    if status.commit_ms is not None:
        latency = f"{status.commit_ms.p50:.0f} ms (median), {status.commit_ms.p99:.0f} ms (p99)"
        lines.append(("commits", latency))
    lines.append(("disk", f"{_size(status.disk_bytes)}, {status.blobs} blobs"))
    lines.append(("memory", f"{_size(status.memory_peak_bytes)} at most"))
    return lines


def _rounds(status: NodeStatus) -> list[tuple[str, str]]:
    lines = []
    aggregation, evaluation = status.aggregation, status.evaluation
    if aggregation is not None:
        lines.append(("aggregate", f"of round {aggregation.round}: {aggregation.reason}"))
        lines += [("", f"{name}: {_share(s)}") for name, s in aggregation.members.items()]
    for name, rounds in status.left_out.items():
        text = f"{name}: {rounds.by_rule} rounds by the rule, {rounds.no_update} without an update"
        lines.append(("left out", text))
    lines += [("late", f"{name}: {lateness}") for name, lateness in status.late.items()]
    if evaluation is not None:
        metrics = ", ".join(
            f"{name} {_number(value)}" for name, value in evaluation.metrics.items()
        )
        lines.append(("evaluation", f"of round {evaluation.round}: {metrics or 'no metrics'}"))
    return lines


def _problems(status: NodeStatus) -> list[tuple[str, str]]:
    lines = []
    if status.observing is not None:
        lines.append(("observing", f"it signs nothing: {status.observing}"))
    if status.disk_full:
        lines.append(("disk full", "it signs nothing until there is room"))
    if status.no_descriptors:
        lines.append(("open files", "no more can be opened; start it with a higher ulimit -n"))
    for contradiction in status.evidence:
        text = f"{contradiction.member} signed two contradicting {contradiction.kind} statements"
        lines.append(("evidence", text))
    for name, count in status.refused.items():
        lines.append(("refused", f"{count} messages of {name} that broke the protocol"))
    if status.own_update_late is not None:
        late = status.own_update_late
        lines.append(("own update", f"{late.late_s:.1f} s late in round {late.round}"))
    if status.training_failures:
        lines.append(("training", f"failed {status.training_failures} times in a row"))
    if status.worker_error is not None:
        lines.append(("last error", status.worker_error))
    if status.evaluation_error is not None:
        lines.append(("no evaluation", status.evaluation_error))
    return lines


def _share(share: MemberShare) -> str:
    score = "" if share.score is None else f", score {_number(share.score)}"
    return (
        f"left out, {share.reason}{score}"
        if share.left_out
        else f"weight {share.weight:.3f}{score}"
    )


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _size(count: float) -> str:
    units = ["bytes", "kB", "MB", "GB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        units.pop(0)
    return f"{count:.3g} {units[0]}"
