"""A node's health and status as text for a person, in the words that the dashboard uses too."""

from defl.node.report.health import Health
from defl.node.report.open_round_text import opened_sentence
from defl.node.report.status import MemberShare, NodeStatus
from defl.printable import printable, printable_lines

NAME_COLUMNS = 14
INDENTED = "\n" + " " * (NAME_COLUMNS + 2)  # a traceback stays in its column
DIGEST_CHARACTERS = 16


def health_text(health: Health) -> str:
    """The sentence, and a line for each note."""
    return "\n".join(
        [printable(health.sentence), *(f"  {printable(n.text)}" for n in health.notes)]
    )


def status_text(status: NodeStatus) -> str:
    lines = [
        *_progress(status),
        *_open_round(status),
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
    lines = [
        ("federation", status.federation[:DIGEST_CHARACTERS]),
        ("epoch", _epoch(status)),
        ("round", f"{status.round} of {status.rounds}{finished}"),
        ("waiting", status.waiting),
        ("model", model),
    ]
    if (proven := status.proven) is not None:
        by = f"by {proven.signatures} of {proven.members}"
        shown = proven.digest[:DIGEST_CHARACTERS]
        lines.append(("proven", f"round {proven.round} {by}: {shown}"))
    return [*lines, ("consensus", f"view {status.view}, height {status.height}")]


def _epoch(status: NodeStatus) -> str:
    left = ", left for good" if status.departed else ""
    counts = "" if status.counts is None else f", {status.counts}"
    return f"{status.epoch}, {status.role}{left}{counts}"


def _open_round(status: NodeStatus) -> list[tuple[str, str]]:
    opened = status.open_round
    if opened is None:
        return []
    lines = [("open round", f"{opened.round}, {opened_sentence(status)}")]
    if opened.phases and opened.phases[-1].end_s is None:
        phase = opened.phases[-1]
        since = f"for {opened.open_s - phase.start_s:.1f} s"
        lines.append(("", f"phase: {phase.phase.value}, {since}"))
    for name, came_s in opened.arrivals.items():
        lines.append(("", f"{name}: in" if came_s is None else f"{name}: in at {came_s:.1f} s"))
    lines += [("", f"{name}: awaited") for name in opened.awaited]
    return lines


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
    lines += [("", f"{name}: {peer}") for name in status.peers if (peer := _peer(status, name))]
    lines.append(
        ("traffic", f"{_size(status.sent_bytes)} sent, {_size(status.received_bytes)} received")
    )
    if status.commit_ms is not None:
        latency = f"{status.commit_ms.p50:.0f} ms (median), {status.commit_ms.p99:.0f} ms (p99)"
        lines.append(("commits", latency))
    lines.append(("disk", f"{_size(status.disk_bytes)}, {status.blobs} blobs"))
    lines.append(("memory", f"{_size(status.memory_peak_bytes)} at most"))
    return lines


def _peer(status: NodeStatus, name: str) -> str:
    """Empty if all is well and nothing more is known."""
    if status.peers[name]:
        parts = [str(status.links[name])] if name in status.links else []
    else:
        trouble = status.trouble.get(name, "not connected yet")
        away_s = status.away_s.get(name)
        parts = [trouble if away_s is None else f"away for {_duration(away_s)}: {trouble}"]
    traffic = status.peer_traffic.get(name)
    if traffic is not None and (traffic.sent or traffic.received):
        parts.append(f"{_size(traffic.sent)} sent, {_size(traffic.received)} received")
    return "; ".join(parts)


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
    if status.safety_broken is not None:
        lines.append(("safety broken", status.safety_broken))
    if status.elsewhere is not None:
        lines.append(("stopped", status.elsewhere))
    if status.observing is not None:
        lines.append(("observing", f"it signs nothing: {status.observing}"))
    if status.disk_full:
        lines.append(("disk full", "it signs nothing until there is room"))
    if status.no_descriptors:
        lines.append(("open files", "no more can be opened; start it with a higher ulimit -n"))
    for found in status.evidence:
        where = f"; evidence/{found.file}" if found.file is not None else ""
        lines.append(("evidence", f"{found.member} signed {found}{where}"))
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
    parts = [f"left out, {share.reason}" if share.left_out else f"weight {share.weight:.3f}"]
    if share.detail:
        parts[0] += f" ({share.detail})"
    if share.score is not None:
        parts.append(f"score {_number(share.score)}")
    if share.trust is not None:
        parts.append(f"trust {share.trust:.0%}")
    return ", ".join(parts)


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _size(count: float) -> str:
    units = ["bytes", "kB", "MB", "GB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        units.pop(0)
    return f"{count:.3g} {units[0]}"
