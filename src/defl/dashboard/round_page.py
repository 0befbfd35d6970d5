"""One round, as one node has recorded it: what came, what the rule did with it, and the proof."""

from math import isfinite

from defl.dashboard.downloads import NodeFiles
from defl.dashboard.nodes import WatchedNode
from defl.dashboard.view import RoundView, ShareView
from defl.dashboard.words import metric_text, names, seconds_text
from defl.node.report.round_facts import Closed, RoundFacts, UpdateVerdict
from defl.node.report.status import MemberShare

NO_RECORD = RoundFacts(0)
NOT_RECORDED = "Not recorded: this node was away"


def round_view(number: int, node: WatchedNode) -> RoundView:
    facts = node.history.rounds.get(number) or NO_RECORD
    closed, federation = facts.closed, node.federation
    files = NodeFiles(node.folder, node.name).of_round(number)
    digest = facts.proven or facts.ready
    return RoundView(
        number=number,
        sentence=_sentence(number, facts, node),
        proven=_proven(facts),
        closed_at=None if closed is None else closed.at,
        took_s=None if closed is None else closed.lasted_s,
        digest=None if digest is None else digest.digest,
        seen_from=node.name,
        phases=[] if facts.timed is None else facts.timed.phases,
        closes_s=None if closed is None else closed.deadline_s,
        rule=""
        if federation is None
        else f"{federation.aggregation}, faults_max {federation.updates_faults_max}",
        reason="" if facts.judged is None else facts.judged.reason,
        facts=_facts(facts, node),
        members=_shares(facts, node),
        files=files.files,
        verify=files.verify,
        proof=_proof(number, facts),
    )


def _sentence(number: int, facts: RoundFacts, node: WatchedNode) -> str:
    closed, judged = facts.closed, facts.judged
    if closed is None and judged is None:
        done = 0 if node.status is None else node.status.round
        if number > done:
            return f"Round {number} has not closed yet."
        return f"{node.name} has no record of round {number}: it was away, or joined later."
    by_verdict: dict[UpdateVerdict, list[str]] = {}
    for name in _members(facts, node):
        by_verdict.setdefault(facts.verdict(name), []).append(name)
    kept = by_verdict.get(UpdateVerdict.KEPT, [])
    left_out = by_verdict.get(UpdateVerdict.LEFT_OUT, [])
    pending = by_verdict.get(UpdateVerdict.PENDING, [])
    late, missing = (
        by_verdict.get(verdict, []) for verdict in (UpdateVerdict.LATE, UpdateVerdict.NO_UPDATE)
    )
    came = len(kept) + len(left_out) + len(pending)
    total = came + len(late) + len(missing)
    parts = [f"All {total} updates came" if came == total else f"{came} of {total} updates came"]
    if judged is None:
        parts[0] += "; the rule has not judged them here yet."
    elif not left_out:
        parts[0] += "; the rule kept all of them."
    else:
        parts[0] += f"; the rule kept {len(kept)}."
        parts.append(f"Left out: {names(left_out)}.")
    if late:
        parts.append(f"Late: {names(late)}.")
    if missing:
        parts.append(f"No update: {names(missing)}.")
    return " ".join(parts)


def _members(facts: RoundFacts, node: WatchedNode) -> list[str]:
    """In the federation's order."""
    known = facts.members or frozenset()
    if facts.judged is not None:
        known |= facts.judged.members.keys()
    if facts.closed is not None:
        known |= facts.closed.arrivals.keys() | set(facts.closed.missing)
    order = [name for epoch in node.history.epochs.values() for name in epoch.members]
    return [name for name in dict.fromkeys([*order, *sorted(known)]) if name in known]


def _proven(facts: RoundFacts) -> str:
    if facts.proven is None:
        return ""
    return f"Proven by {facts.proven.signatures} of {facts.proven.members}"


def _proof(number: int, facts: RoundFacts) -> str:
    proven = facts.proven
    if proven is None:
        return "Not proven yet: members vouch for a model by training from it."
    signed = f"{proven.signatures} signatures, {proven.needed} are needed"
    return f"{signed}: their members vouch for exactly this model of round {number}."


def _facts(facts: RoundFacts, node: WatchedNode) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    if facts.measured is not None:
        before = node.history.rounds.get(facts.number - 1)
        earlier = before.measured.metrics if before is not None and before.measured else {}
        for name, value in facts.measured.metrics.items():
            text = metric_text(name, value)
            if name in earlier:
                text += f" (round {facts.number - 1}: {metric_text(name, earlier[name])})"
            lines.append((f"{name} of the model", text))
        lines.append(("evaluated in", seconds_text(facts.measured.seconds)))
    if facts.trained is not None:
        lines += [
            (f"{name} of {node.name}'s update", metric_text(name, value))
            for name, value in facts.trained.metrics.items()
        ]
    if node.federation is not None:
        longest = seconds_text(node.federation.timing.gst_lt_max_s)
        lines.append(("waited at most", f"{longest} (gst_lt_max_s)"))
    if facts.closed is not None and facts.closed.commit_ms is not None:
        lines.append(("commit latency", f"{facts.closed.commit_ms:.0f} ms"))
    return lines


def _shares(facts: RoundFacts, node: WatchedNode) -> list[ShareView]:
    judged = facts.judged.members if facts.judged is not None else {}
    kept = [s.score for s in judged.values() if s.reason is None and s.score is not None]
    worst = max(kept, default=0.0)
    return [
        _share(name, facts.verdict(name), judged.get(name), facts.closed, worst)
        for name in _members(facts, node)
    ]


def _share(
    name: str,
    verdict: UpdateVerdict,
    share: MemberShare | None,
    closed: Closed | None,
    worst: float,
) -> ShareView:
    score = None if share is None else share.score
    is_out = verdict is UpdateVerdict.LEFT_OUT
    times = score / worst if is_out and score is not None and worst > 0 else None
    came_s = None if closed is None else closed.arrivals.get(name)
    return ShareView(
        member=name,
        verdict=verdict,
        words=_words(verdict, share),
        weight=share.weight if share is not None and verdict in JUDGED_BY_RULE else None,
        score=score,
        times_worst_kept=times if times is not None and isfinite(times) else None,
        came_s=came_s,
        waited_s=_waited_s(name, closed),
        came=_came(name, verdict, closed, came_s),
        reason=share.detail if share is not None else "",
    )


JUDGED_BY_RULE = (UpdateVerdict.KEPT, UpdateVerdict.LEFT_OUT)


def _words(verdict: UpdateVerdict, share: MemberShare | None) -> str:
    match verdict:
        case UpdateVerdict.KEPT:
            return "Kept"
        case UpdateVerdict.LEFT_OUT:
            detail = share.detail if share is not None else ""
            return f"Left out: {detail}" if detail else "Left out by the rule"
        case UpdateVerdict.LATE:
            return "Late: the round closed without it"
        case UpdateVerdict.NO_UPDATE:
            return "No update"
        case UpdateVerdict.NOT_A_MEMBER:
            return "Not a member"
        case UpdateVerdict.PENDING:
            return "In, not judged yet"
        case UpdateVerdict.UNKNOWN:
            return NOT_RECORDED


def _came(name: str, verdict: UpdateVerdict, closed: Closed | None, came_s: float | None) -> str:
    if came_s is not None:
        return f"{came_s:.1f} s, in time"
    late = closed.late.get(name) if closed is not None else None
    if late is not None:
        return f"late: waited {late.waited_s:.1f} s for it"
    return "no update" if verdict is UpdateVerdict.NO_UPDATE else ""


def _waited_s(name: str, closed: Closed | None) -> float | None:
    """How long the round had to wait for the update that came last."""
    if closed is None:
        return None
    came = {member: at for member, at in closed.arrivals.items() if at is not None}
    others = [at for member, at in came.items() if member != name]
    if name not in came or not others or came[name] <= max(others):
        return None
    return came[name] - max(others)
