"""The members as the page shows them: links, what became of their updates, trust, trouble."""

from collections import Counter
from collections.abc import Sequence

from defl.cards import Reach
from defl.dashboard.downloads import file_href
from defl.dashboard.nodes import WatchedNode
from defl.dashboard.strip import Strip
from defl.dashboard.view import EvidenceView, MemberView
from defl.node.report.round_facts import UpdateVerdict
from defl.node.report.status import Aggregation, NodeStatus

EVIDENCE_SHOWN = 5
JUDGED = (
    UpdateVerdict.KEPT,
    UpdateVerdict.LEFT_OUT,
    UpdateVerdict.LATE,
    UpdateVerdict.NO_UPDATE,
)


def member_views(
    witness: WatchedNode, nodes: Sequence[WatchedNode], strip: Strip
) -> list[MemberView]:
    """As the witness sees them; of several nodes, also who is connected with whom."""
    federation = witness.federation
    present = () if federation is None else federation.members
    active = {member.name: member for member in present if member.active}
    names = [*active, *(name for name in strip.members if name not in active)]
    return [
        _view(
            name,
            witness,
            strip,
            is_active=name in active,
            address=_address(active[name].address, active[name].reach) if name in active else "",
            linked=_linked(name, nodes) if len(nodes) > 1 else {},
        )
        for name in names
    ]


def _address(address: str, reach: Reach) -> str:
    return "only dials" if reach is Reach.DIAL else address


def _view(
    name: str,
    witness: WatchedNode,
    strip: Strip,
    *,
    is_active: bool,
    address: str,
    linked: dict[str, bool],
) -> MemberView:
    status = witness.status
    counts = strip.counts.get(name, Counter[str]())
    kept, left_out, late, no_update = (counts[verdict] for verdict in JUDGED)
    judged = kept + left_out + late + no_update
    link = status.links.get(name) if status is not None and witness.runs else None
    connected = witness.runs and status is not None and status.peers.get(name, False)
    round_trip_s = None if link is None else link.round_trip_s
    traffic = None if status is None else status.peer_traffic.get(name)
    share = _aggregation(status).members.get(name)
    return MemberView(
        name=name,
        active=is_active,
        address=address,
        link=_link(name, witness, is_active=is_active),
        is_this_node=name == witness.name,
        connected=connected,
        away_s=None if status is None or not witness.runs else status.away_s.get(name),
        last_round=strip.newest_with_update(name) if name in strip.members else None,
        route="" if link is None else link.route,
        round_trip_ms=None if round_trip_s is None else round_trip_s * 1000,
        sent_bytes=None if traffic is None else traffic.sent,
        received_bytes=None if traffic is None else traffic.received,
        kept=kept,
        left_out=left_out,
        late=late,
        no_update=no_update,
        judged=judged,
        summary=summary(kept, left_out, late, no_update),
        trust=None if share is None else share.trust,
        trouble=_trouble(name, witness),
        evidence=_evidence(name, witness),
        refused=0 if status is None else status.refused.get(name, 0),
        linked=linked,
    )


def _link(name: str, witness: WatchedNode, *, is_active: bool) -> str:
    if name == witness.name:
        return "this node"
    if not is_active:
        return "left"
    if not witness.runs or witness.status is None:
        return "not known"
    if witness.status.peers.get(name, False):
        return "connected"
    return "away" if _trouble(name, witness) else "not connected yet"


def summary(kept: int, left_out: int, late: int, no_update: int) -> str:
    judged = kept + left_out + late + no_update
    if not judged:
        return "no round yet"
    parts = (("left out", left_out), ("late", late), ("none", no_update))
    out = ", ".join(f"{count} {what}" for what, count in parts if count)
    return f"{kept} of {judged} kept; {out or 'never out'}"


NOT_AGGREGATED = Aggregation(0, "", {})


def _aggregation(status: NodeStatus | None) -> Aggregation:
    return (status.aggregation if status is not None else None) or NOT_AGGREGATED


def _trouble(name: str, witness: WatchedNode) -> str:
    if witness.status is None or not witness.runs:
        return ""
    return witness.status.trouble.get(name, "")


def _evidence(name: str, witness: WatchedNode) -> list[EvidenceView]:
    evidence = witness.status.evidence if witness.status is not None else []
    own = [contradiction for contradiction in evidence if contradiction.member == name]
    return [
        EvidenceView(
            str(contradiction),
            file_href(witness.name, contradiction.file) if contradiction.file else None,
        )
        for contradiction in own[:EVIDENCE_SHOWN]
    ]


def _linked(name: str, nodes: Sequence[WatchedNode]) -> dict[str, bool]:
    """Which of the running nodes are connected with this member."""
    return {
        node.name: node.status.peers.get(name, False)
        for node in nodes
        if node.name != name and node.runs and node.status is not None
    }
