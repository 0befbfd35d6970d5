"""The participant's input (events) and output.

`duty.py` says in which order a driver carries an output out. Work is slow; its result arrives
later as an event. The file is long because it is a list: all that goes into the machine and all
that comes out of it.
"""

from enum import StrEnum

from msgspec import Struct

from defl.changes import Operation
from defl.committee import Federation, Membership
from defl.contacts import Former
from defl.ids import Digest, NodeId, Round, View
from defl.messages import (
    QC,
    TC,
    Attestation,
    Block,
    Evidence,
    Handover,
    Manifest,
    Message,
    Offer,
    Proposal,
    Snapshot,
    StoreAck,
    Timeout,
    Vote,
)

# --- What was agreed -------------------------------------------------------------------------


class Reference(Struct, frozen=True, array_like=True):
    """A committed update: enough to fetch it, and its author's signature over it."""

    author: NodeId
    digest: Digest
    size: int
    base: Digest
    ackers: bytes
    signature: bytes


class ClosedRound(Struct, frozen=True, array_like=True):
    """A round that is over: its updates all share one base."""

    round: Round
    block: Digest  # id of the block that closed it
    base: Digest  # proven by these updates as the model of the previous round
    updates: tuple[Reference, ...]  # in member order
    epoch: int
    faults_max: int  # what the aggregation rule is told to tolerate: it is that epoch's


# --- What is durable -----------------------------------------------------------------------


class SafetyRecord(Struct, frozen=True, array_like=True):
    """What a replica must remember so as never to contradict itself; written atomically."""

    epoch: int
    last_voted_view: View
    last_timeout_view: View
    lock: QC
    high_qc: QC
    high_tc: TC | None
    last_vote: Vote | None  # as sent: after a restart the same bytes are sent again
    last_timeout: Timeout | None
    last_proposal: Proposal | None
    observing: str | None = None  # why this node signs nothing any more in this epoch
    commit_qc: QC | None = None  # the newest that committed something: a restart undoes no commit


class Switch(Struct, frozen=True, array_like=True):
    """Another epoch begins. Written with it: its record. Deleted with it: the blocks, the snapshot,
    the acks, the offers and the attestations of the epoch before. Handovers are kept for ever."""

    membership: Membership
    closed: tuple[ClosedRound, ...]  # the rounds of earlier epochs that are still kept
    former: tuple[Former, ...]
    handover: Handover  # proves how the epoch before ended


class Persist(Struct, frozen=True):
    """One atomic change of the durable state; empty fields change nothing."""

    record: SafetyRecord | None = None
    blocks: tuple[Block, ...] = ()
    snapshot: Snapshot | None = None  # blocks at or below its height are deleted with it
    acks: tuple[StoreAck, ...] = ()
    offer: Offer | None = None
    model: tuple[Round, Manifest] | None = None
    evidence: tuple[Evidence, ...] = ()
    attestations: tuple[Attestation, ...] = ()  # a quorum's, of the last model
    forget_round: Round | None = None  # acks, offers and models of this round and older
    switch: Switch | None = None


class Durable(Struct):
    """The state that a restarted participant gets back: the sum of its persists and stores."""

    record: SafetyRecord | None
    snapshot: Snapshot | None = None
    blocks: tuple[Block, ...] = ()
    acks: tuple[StoreAck, ...] = ()
    offers: tuple[Offer, ...] = ()
    models: tuple[tuple[Round, Manifest], ...] = ()
    evidence: tuple[Evidence, ...] = ()
    attestations: tuple[Attestation, ...] = ()
    held: tuple[tuple[Manifest, frozenset[int]], ...] = ()  # chunks that are really on disk
    switch: Switch | None = None  # into the present epoch; None in epoch 0


# --- Output --------------------------------------------------------------------------------


class StoreChunk(Struct, frozen=True):
    manifest: Manifest
    index: int
    data: bytes | memoryview


class Envelope(Struct, frozen=True):
    to: tuple[NodeId, ...] | None  # None: all other members
    message: Message
    epoch: int = 0  # that the message is of


class ServeChunk(Struct, frozen=True):
    """Read this chunk from the store and send it; the participant holds no blob bytes."""

    to: NodeId
    digest: Digest
    index: int


class ServeHandover(Struct, frozen=True):
    """Read how this epoch ended from the store and send it."""

    to: NodeId
    epoch: int


class Response(StrEnum):
    """The ledger's answer to a committed transaction (paper, Algorithm 2, and additions)."""

    OK = "OK"
    ALREADY_UPD = "AlreadyUPDError"
    ALREADY_AGG = "AlreadyAGGError"
    NOT_MEET_QUORUM = "NotMeetQuorumWarning"
    NOT_ENOUGH_UPDATES = "NotEnoughUpdatesWarning"
    NOT_PENDING = "NotPendingError"
    EPOCH_ENDED = "EpochEndedError"


class Committed(Struct, frozen=True):
    block: Block
    responses: tuple[Response, ...]  # one for each transaction


class Validate(Struct, frozen=True):
    """Check a blob's bytes by the deterministic rules of pool/weights.py."""

    manifest: Manifest


class Aggregate(Struct, frozen=True):
    round: Round
    base: Digest
    updates: tuple[Reference, ...]  # in member order
    closing_block: Digest  # decides ties
    faults_max: int  # Byzantine updates that the rule is told to tolerate
    weights: tuple[int, ...] = ()  # the authors' agreed ones; (): all the same


class Train(Struct, frozen=True):
    round: Round  # the round that the update is for
    base: Digest


Work = Validate | Aggregate | Train


class EvidenceFound(Struct, frozen=True):
    evidence: Evidence


class MemberLate(Struct, frozen=True):
    """A round closed without a member that was expected."""

    member: NodeId
    waited_s: float  # in vain, after the newest update
    usual_s: float  # its slowest time, as seen or claimed; 0: unknown


class RoundSeen(Struct, frozen=True):
    """How a round went, in seconds since it opened; if it is not whole, since this node started."""

    whole: bool  # seen from its opening
    opened_at: float  # by the clock that this node's machine is given
    lasted_s: float
    arrivals: tuple[tuple[NodeId, float], ...]  # when each update was committed
    late: tuple[MemberLate, ...]
    deadline_s: float | None  # of those that were awaited last, met or not; None: nobody was


class RoundClosed(Struct, frozen=True):
    round: Round
    updates: tuple[NodeId, ...]  # whose updates are aggregated
    missing: tuple[NodeId, ...]
    seen: RoundSeen | None = None  # None: this node was away


class WaitsFor(Struct, frozen=True):
    """A quorum has delivered; this node waits for these members, each at most this many seconds."""

    round: Round
    members: tuple[tuple[NodeId, float], ...]


class OwnUpdateLate(Struct, frozen=True):
    """This node's training ended after its round had closed."""

    round: Round
    late_s: float


class RoundProven(Struct, frozen=True):
    """q members trained from one digest: it is the model of this round."""

    round: Round
    digest: Digest
    updates: tuple[Reference, ...]
    epoch: int = 0  # in which they signed

    @property
    def signatures(self) -> int:
        return len(self.updates)


class ModelReady(Struct, frozen=True):
    round: Round
    digest: Digest


class Observing(Struct, frozen=True):
    """Why this node signs nothing any more in this epoch."""

    reason: str


class SafetyBroken(Struct, frozen=True):
    """More than f members lied: another member's commit contradicts this node's."""

    reason: str


class PeerMisbehaved(Struct, frozen=True):
    peer: NodeId
    reason: str


class WorkFailing(Struct, frozen=True):
    work: Work
    reason: str


class Isolated(Struct, frozen=True):
    """For so long this node has heard of at most f members, so it stops."""

    seconds: float
    faults: int


class Attested(Struct, frozen=True):
    """q members computed the same final model."""

    round: Round
    digest: Digest
    attestations: tuple[Attestation, ...]
    epoch: int = 0  # in which they signed

    @property
    def signatures(self) -> int:
        return len(self.attestations)


class Finished(Struct, frozen=True):
    """All members attested the last round, or the grace period is over: the node may exit."""

    round: Round


class EpochBegan(Struct, frozen=True):
    """This node is in another epoch now."""

    federation: Federation
    me: NodeId  # OUTSIDER if it is no member
    handover: Handover  # proves how the epoch before ended


class Departed(Struct, frozen=True):
    """This node is no member any more, and enough members can do without it: it may exit."""

    epoch: int


Notice = (
    EvidenceFound
    | RoundClosed
    | WaitsFor
    | OwnUpdateLate
    | RoundProven
    | ModelReady
    | Observing
    | SafetyBroken
    | PeerMisbehaved
    | WorkFailing
    | Attested
    | Isolated
    | Finished
    | EpochBegan
    | Departed
)


class Output(Struct, frozen=True):
    persist: Persist | None = None
    store: tuple[StoreChunk, ...] = ()
    send: tuple[Envelope | ServeChunk | ServeHandover, ...] = ()
    committed: tuple[Committed, ...] = ()
    work: tuple[Work, ...] = ()
    drop: tuple[Digest, ...] = ()  # blobs that retention no longer keeps
    notices: tuple[Notice, ...] = ()  # for people and metrics; nothing depends on them
    wake_at: float | None = None  # when to send the next Tick


# --- Events --------------------------------------------------------------------------------


class Received(Struct, frozen=True):
    """A message that ingress has checked."""

    peer: NodeId
    message: Message
    epoch: int = 0  # whose facts it was checked by


class OtherEpoch(Struct, frozen=True):
    """A peer's frame states another epoch; nothing else of it counts."""

    peer: NodeId
    epoch: int


class ReceivedChunk(Struct, frozen=True):
    peer: NodeId
    digest: Digest
    index: int
    data: bytes | memoryview
    chunk_digest: Digest  # computed by ingress from the data


class Question(Struct, frozen=True):
    """An unverified statement that is not news to this node: a peer that repeats it has not
    received the answer. It changes no state here; only the peer may learn something."""

    peer: NodeId
    message: Vote | Timeout | Offer | Attestation


class Faulted(Struct, frozen=True):
    """Ingress refused a peer's message."""

    peer: NodeId
    reason: str


class Tick(Struct, frozen=True):
    pass


class Connected(Struct, frozen=True):
    peer: NodeId
    epoch: int | None = None  # that the peer is in, by its hello


class Disconnected(Struct, frozen=True):
    peer: NodeId


class Propose(Struct, frozen=True):
    """The operator proposes a change of the membership; none withdraws the last one."""

    operations: tuple[Operation, ...]


class ApproveChange(Struct, frozen=True):
    """The operator agrees to a proposed change, or withdraws its approval."""

    change: Digest
    agrees: bool = True


class Validated(Struct, frozen=True):
    digest: Digest
    fault: str | None


class Aggregated(Struct, frozen=True):
    """The driver has stored the aggregate as a blob."""

    round: Round
    manifest: Manifest


class Trained(Struct, frozen=True):
    """The driver has stored the update as a blob, synced."""

    round: Round
    manifest: Manifest


class ChunkLost(Struct, frozen=True):
    """The driver detected a damaged chunk and discarded it."""

    digest: Digest
    index: int


class BlobLost(Struct, frozen=True):
    """The disk lost a blob before it was synced, and the driver dropped what is left of it."""

    digest: Digest


class WorkFailed(Struct, frozen=True):
    work: Work
    reason: str
    made: Digest | None = None  # a blob that the driver has stored but that must not be used


Event = (
    Received
    | OtherEpoch
    | Propose
    | ApproveChange
    | ReceivedChunk
    | Question
    | Faulted
    | Tick
    | Connected
    | Disconnected
    | Validated
    | Aggregated
    | Trained
    | ChunkLost
    | BlobLost
    | WorkFailed
)
