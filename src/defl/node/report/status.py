"""The status of a node: what `defl node status`, /status and status.json show.

`NodeStatus` is a plain value and needs no node: clients decode it from JSON with `decode_status`.
JSON has no NaN and no infinity, so a figure that is not finite is null. A field that is added
later needs a default, so that a node of the release before can still be read.
"""

import resource
from math import isfinite
from time import monotonic
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from defl.contacts import PeerRole
from defl.ids import OUTSIDER
from defl.node.report.changes import Counts, Review, counts_of, reviews
from defl.node.report.contradiction import Contradiction
from defl.node.report.open_round import OpenRoundStatus, open_round_of
from defl.node.report.outsider_text import outsider_waits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from defl.node.node import Node

BY_RULE = "the rule gave it no weight"
NO_UPDATE = "no update in the round"

Metrics = dict[str, float | None]  # None: not finite


class MemberShare(Struct, frozen=True):
    """One member's part in an aggregate."""

    weight: float = 0.0
    score: float | None = None  # its meaning depends on the rule; None: no update, or not finite
    reason: str | None = NO_UPDATE  # why it has no weight: BY_RULE or NO_UPDATE
    detail: str = ""  # the rule's words about this member, if it has any
    trust: float | None = None  # from past rounds, 0 to 1; None: the rule remembers nothing

    @property
    def left_out(self) -> bool:
        return self.reason is not None


def left_out_by_rule(members: "Mapping[str, MemberShare]") -> list[str]:
    return [name for name, share in members.items() if share.reason == BY_RULE]


class Aggregation(Struct, frozen=True):
    round: int
    reason: str  # in the rule's own words
    members: dict[str, MemberShare]

    @property
    def left_out(self) -> list[str]:
        """Members that the rule left out; not those that sent no update."""
        return left_out_by_rule(self.members)


class Evaluation(Struct, frozen=True):
    """This node's own evaluation of a round's model."""

    round: int
    metrics: Metrics
    seconds: float


class RoundStatus(Struct, frozen=True):
    round: int
    missing: list[str]  # members without an update
    left_out: list[str] | None = None  # by the rule; None: not aggregated here yet
    late: list[str] = []  # of the missing: those that the round was kept open for
    metrics: Metrics = {}  # of the round's model
    training: Metrics = {}  # of this node's own update


class LeftOutRounds(Struct, frozen=True):
    """How many rounds' models lack a member's update, since the start."""

    by_rule: int
    no_update: int


class MemberLateness(Struct, frozen=True):
    """A member that was expected and sent no update in time."""

    rounds: int  # since the start
    round: int  # the newest of them; what follows is about this one
    lasted_s: float
    waited_s: float  # how long the round was kept open for this member
    usual_s: float  # what the member usually needs

    @property
    def late_s(self) -> float | None:
        """By how much it was late; None if its pace is unknown or does not explain it."""
        return self.usual_s - self.lasted_s if self.usual_s > self.lasted_s else None

    def __str__(self) -> str:
        rounds = "1 round" if self.rounds == 1 else f"{self.rounds} rounds"
        late_s = self.late_s
        pace = "no update came"
        if late_s is not None:
            pace = f"it needs {self.usual_s:.1f} s, {late_s:.1f} s too long"
        return (
            f"late in {rounds}; round {self.round} lasted {self.lasted_s:.1f} s: {pace}; "
            f"waited {self.waited_s:.1f} s for it"
        )


class LateUpdate(Struct, frozen=True):
    """This node's own update came after the round had closed."""

    round: int
    late_s: float


class CommitLatency(Struct, frozen=True):
    """In milliseconds, over the newest transactions of this node."""

    p50: float
    p99: float


class LaneTraffic(Struct, frozen=True):
    """Bytes of frames on one lane, over all peers, since the start."""

    sent: int
    received: int


class LinkStatus(Struct, frozen=True):
    """How a connected peer is reached; of its control lane."""

    route: str  # direct, through the proxy HOST:PORT, through the relay NAME
    round_trip_s: float | None = None  # the newest; None: not measured yet

    def __str__(self) -> str:
        if self.round_trip_s is None:
            return self.route
        milliseconds = self.round_trip_s * 1000
        places = 1 if milliseconds < 10 else 0
        return f"{self.route}, round trip {milliseconds:.{places}f} ms"


class ProvenStatus(Struct, frozen=True):
    """The newest model that a quorum of members vouches for."""

    round: int
    digest: str  # in hex
    signatures: int
    members: int  # of the epoch in which they signed


class NodeStatus(Struct, frozen=True, kw_only=True):
    """Everything about a node that a person or a program may ask for; members by name."""

    member: int | None  # None: it is no member in this epoch
    name: str
    federation: str  # its id in epoch 0, by which it is known for all its life; in hex
    epoch: int = 0
    chain: str = ""  # its id in this epoch
    role: str = PeerRole.MEMBER.value
    counts: Counts | None = None  # of this epoch
    changes: list[Review] = []  # pending, in the log's order
    departed: bool = False  # it has left, and enough members know it
    round: int  # closed so far
    rounds: int  # in the whole federation
    model: str | None  # digest of the newest model, in hex
    proven: ProvenStatus | None = None  # since the start
    view: int
    height: int
    observing: str | None  # why this node signs nothing
    disk_full: bool
    no_descriptors: bool  # the process cannot open more files
    crowded: bool = False  # callers were turned away in the last minute: too many wait
    turned_away: int = 0  # connections, since the start
    finished: bool
    peers: dict[str, bool]  # is it connected?
    trouble: dict[str, str]  # why a peer is not connected
    links: dict[str, LinkStatus] = {}  # of each connected peer
    away_s: dict[str, float] = {}  # for how long a peer has not been connected
    peer_traffic: dict[str, LaneTraffic] = {}  # of both lanes together
    safety_broken: str | None = None  # why: more than f members lie
    elsewhere: str | None = None  # why it stopped: another process has its key
    commit_ms: CommitLatency | None
    waiting: str  # what must happen next, for people
    answers_missing: int = 0  # members that must report what they saw it sign, before it signs
    open_round: OpenRoundStatus | None = None  # None: all rounds are closed
    waiting_for_s: dict[str, float]  # how much longer the open round is kept open for a member
    blobs: int
    disk_bytes: int
    evidence: list[Contradiction]
    refused: dict[str, int]  # messages of a peer that broke the protocol
    traffic: dict[str, LaneTraffic]  # by lane
    memory_peak_bytes: int
    training_failures: int  # in a row
    worker_error: str | None  # the newest error of the training code
    aggregation: Aggregation | None  # the newest
    left_out: dict[str, LeftOutRounds]
    late: dict[str, MemberLateness]
    own_update_late: LateUpdate | None  # the newest
    evaluation: Evaluation | None  # the newest
    evaluation_error: str | None  # why the newest attempt gave no metrics
    history: list[RoundStatus]  # the newest rounds, oldest first

    @property
    def healthy(self) -> bool:
        """Nothing keeps this node from signing, and nothing contradicts what it has signed."""
        keeps = self.disk_full or self.no_descriptors
        return self.observing is None and self.safety_broken is None and not keeps

    @property
    def sent_bytes(self) -> int:
        return sum(lane.sent for lane in self.traffic.values())

    @property
    def received_bytes(self) -> int:
        return sum(lane.received for lane in self.traffic.values())


_decoder = msgspec.json.Decoder(NodeStatus)


def encode_status(status: NodeStatus) -> bytes:
    return msgspec.json.encode(status)


def decode_status(data: bytes) -> NodeStatus | None:
    """None: not the status of a node of this release."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def finite(values: "Mapping[str, float]") -> Metrics:
    return {name: value if isfinite(value) else None for name, value in values.items()}


def status_of(node: "Node") -> NodeStatus:
    participant = node.participant
    replica = participant.replica
    history = node.history
    federation, names = node.federation, node.names
    model = participant.model
    waiting_for_s = _waiting_for_s(node)
    state = participant.state
    pending = reviews(federation, state.round, state.changes, state.ready)
    return NodeStatus(
        member=None if node.me == OUTSIDER else node.me,
        name=node.name,
        federation=federation.origin.hex(),
        epoch=federation.epoch,
        chain=federation.chain.hex(),
        role=participant.role.value,
        counts=counts_of(federation),
        changes=pending,
        departed=participant.departed,
        round=state.round,
        rounds=federation.rounds,
        model=model.hex() if model is not None else None,
        proven=_proven(node),
        view=replica.view,
        height=replica.head.height,
        observing=replica.observing,
        elsewhere=node.elsewhere,
        disk_full=node.writing.disk_full,
        no_descriptors=node.writing.no_descriptors,
        crowded=node.transport.is_crowded,
        turned_away=node.transport.turned_away,
        finished=participant.finished,
        peers={
            names.of(peer): node.transport.connected(peer)
            for peer in federation.committee.members
            if peer != node.me
        },
        links=_links(node),
        trouble={
            names.of(peer): why
            for peer, why in node.transport.stats.trouble.items()
            if federation.committee.has(peer) and not node.transport.connected(peer)
        },
        away_s=_away_s(node),
        peer_traffic=_peer_traffic(node),
        safety_broken=node.safety_broken,
        commit_ms=node.measures.commit_latency(),
        answers_missing=participant.answers_missing,
        waiting=_waiting(node, waiting_for_s, pending),
        open_round=open_round_of(node),
        waiting_for_s=waiting_for_s,
        blobs=participant.stored["blobs"],
        disk_bytes=node.storage.bytes_used,
        evidence=[node.evidence_files.contradiction(proof) for proof in participant.evidence],
        refused=dict(node.measures.peer_faults),
        traffic=_traffic(node),
        memory_peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        training_failures=node.worker.training_failures,
        worker_error=node.worker.last_error,
        aggregation=history.aggregation,
        left_out=history.left_out,
        late=history.late,
        own_update_late=history.own_update_late,
        evaluation=history.evaluation,
        evaluation_error=history.evaluation_error,
        history=history.rounds,
    )


def _waiting_for_s(node: "Node") -> dict[str, float]:
    now = monotonic()
    return {
        node.names.of(member): round(left, 3)
        for member, deadline in node.participant.client.deadlines.items()
        if (left := deadline - now) > 0
    }


def _waiting(node: "Node", waiting_for_s: dict[str, float], pending: list[Review]) -> str:
    participant, federation = node.participant, node.federation
    if node.me == OUTSIDER:
        return outsider_waits(participant, pending)
    return waiting_sentence(
        answers_missing=participant.answers_missing,
        over=participant.state.round == federation.rounds,
        updates=len(participant.state.current),
        quorum=federation.committee.quorum,
        waiting_for_s=waiting_for_s,
    )


def waiting_sentence(
    *, answers_missing: int, over: bool, updates: int, quorum: int, waiting_for_s: dict[str, float]
) -> str:
    """What must happen next, as text that follows "waiting"."""
    if answers_missing:
        members = "member" if answers_missing == 1 else "members"
        return (
            f"for {answers_missing} more {members} to report what they have seen this node sign; "
            "it signs nothing before"
        )
    if over:
        return "for nothing: all rounds are closed"
    if updates < quorum:
        return f"for updates: {updates} of at least {quorum} are in"
    if not waiting_for_s:
        return "for the round to close"
    return "for " + ", ".join(
        f"{name} (up to {left:.1f} s)" for name, left in waiting_for_s.items()
    )


def _links(node: "Node") -> dict[str, LinkStatus]:
    return {
        node.names.of(peer): LinkStatus(str(link.route), link.round_trip_s)
        for peer in node.federation.committee.members
        if node.transport.connected(peer)
        and (link := node.transport.control_link(peer)) is not None
    }


def _away_s(node: "Node") -> dict[str, float]:
    return {
        node.names.of(peer): round(away_s, 1)
        for peer in node.federation.committee.members
        if peer != node.me and (away_s := node.transport.away_s(peer)) is not None
    }


def _peer_traffic(node: "Node") -> dict[str, LaneTraffic]:
    traffic = node.transport.stats.traffic
    lanes = {
        peer: [counts for (other, _), counts in traffic.items() if other == peer]
        for peer in node.federation.committee.members
        if peer != node.me
    }
    return {
        node.names.of(peer): LaneTraffic(
            sum(each.bytes_out for each in counts), sum(each.bytes_in for each in counts)
        )
        for peer, counts in lanes.items()
    }


def _proven(node: "Node") -> ProvenStatus | None:
    """Attestations of the last model still come in after a quorum has proven it."""
    proven = node.history.newest_proven
    if proven is None:
        return None
    late = node.participant.attesting if proven.round == node.federation.rounds else 0
    signatures = max(proven.signatures, late)
    return ProvenStatus(proven.round, proven.digest, signatures, proven.members)


def _traffic(node: "Node") -> dict[str, LaneTraffic]:
    totals = node.transport.stats.totals()
    return {
        lane.value: LaneTraffic(total.bytes_out, total.bytes_in) for lane, total in totals.items()
    }
