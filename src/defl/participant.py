"""One node's whole behaviour: replica, pool and client joined into one pure machine.

`handle(event, now) -> Output` is the only entry. node/ drives it with real sockets, disks and
clocks, sim/ with virtual ones; what is simulated is what ships.
"""

from collections.abc import Iterable
from typing import TypeVar

from defl.client import RoundClient
from defl.committee import Federation
from defl.consensus.chain import genesis_of
from defl.consensus.effects import ConsensusEffects
from defl.consensus.mempool import Slot, slot_of
from defl.consensus.replica import Replica
from defl.consensus.safety import Safety, first_record
from defl.crypto import Signer
from defl.finish import Finish
from defl.ids import Digest, NodeId, Round
from defl.ledger import Ledger, LedgerState
from defl.messages import (
    Attestation,
    BlockRequest,
    Blocks,
    Certificates,
    Chunk,
    ChunkRequest,
    Evidence,
    Gossip,
    Manifest,
    ManifestAnswer,
    ManifestRequest,
    Message,
    NotHeld,
    Offer,
    Pace,
    Proposal,
    Snapshot,
    Statement,
    Statements,
    StatementsRequest,
    Status,
    StoreAck,
    Timeout,
    Transaction,
    Vote,
    genesis_qc,
)
from defl.output import (
    Aggregated,
    ChunkLost,
    Committed,
    Connected,
    Durable,
    Envelope,
    Event,
    EvidenceFound,
    Faulted,
    Notice,
    Observing,
    Output,
    PeerMisbehaved,
    Persist,
    Question,
    Received,
    ReceivedChunk,
    RoundClosed,
    RoundProven,
    ServeChunk,
    Tick,
    Trained,
    Validate,
    Validated,
    Work,
    WorkFailed,
)
from defl.pool.pool import Pool, PoolEffects
from defl.recall import Recall, authors_of, beyond_record

NEVER = float("inf")
POOL_MESSAGES = (Offer, StoreAck, ManifestRequest, ManifestAnswer, ChunkRequest, Chunk, NotHeld)


def first_durable(federation: Federation, initial: Manifest) -> Durable:
    """What a new node's disk holds: a record that nothing was signed, and the initial weights."""
    genesis = genesis_of(federation, Ledger(federation))
    return Durable(
        record=first_record(federation.epoch, genesis_qc(genesis.id)),
        models=((Round(0), initial),),
        held=((initial, frozenset(range(len(initial.chunks)))),),
    )


class Participant:
    def __init__(
        self,
        federation: Federation,
        me: NodeId,
        signer: Signer,
        durable: Durable,
        safety: type[Safety] = Safety,
    ) -> None:
        self.federation = federation
        self.me = me
        self._replica: Replica[LedgerState] = Replica(
            federation, me, signer, Ledger(federation), durable, safety=safety
        )
        self._round = self._replica.state.round
        self._pool = Pool(federation, me, signer, durable, self._round)
        self._finish = Finish(federation, me, signer)
        self._client = RoundClient(federation, me, signer, self._pool, durable.models, self._finish)
        self._recall = Recall(federation, me)
        self._evidence = {_charge(evidence): evidence for evidence in durable.evidence}
        self._proven: Round = Round(-1)
        self._started = False
        self._others_wake_at = 0.0  # when pool, client or finish want to be asked next

    # --- Looking in ------------------------------------------------------------------------

    @property
    def replica(self) -> Replica[LedgerState]:
        return self._replica

    @property
    def pool(self) -> Pool:
        return self._pool

    @property
    def client(self) -> RoundClient:
        return self._client

    @property
    def state(self) -> LedgerState:
        return self._replica.state

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return tuple(self._evidence.values())

    @property
    def answers_missing(self) -> int:
        """How many more members must say what they have seen before this node signs."""
        return self._recall.answers_missing

    @property
    def finished(self) -> bool:
        return self._finish.finished

    @property
    def model(self) -> Digest | None:
        """The model of the newest closed round, once this node has it."""
        manifest = self._client.model(self.state.round)
        return manifest.digest if manifest is not None else None

    @property
    def stored(self) -> dict[str, int]:
        return {**self._replica.stored, **self._pool.stored, "evidence": len(self._evidence)}

    # --- What is worth verifying -----------------------------------------------------------

    def wanted(self, peer: NodeId, message: Message) -> Message | Question | None:
        """What of a message that nobody has verified yet is worth it: all, a part, nothing but
        the answer to the peer's question, or nothing at all.

        Exactly one rule for each type. Read-only and cheap: it stands between a liar and the
        verifier, and is asked again for every repetition.
        """
        wanted, is_proven = self._replica.wanted, self._is_proven
        match message:
            case Vote():
                return message if wanted.vote(message, is_proven) else Question(peer, message)
            case Timeout():
                return message if wanted.timeout(message, is_proven) else Question(peer, message)
            case Proposal():
                return wanted.proposal(message, is_proven)
            case Certificates(qc=qc, tc=tc):
                return wanted.certificates(qc, tc)
            case Gossip(transactions=transactions):
                return self._wanted_transactions(transactions)
            case Blocks(blocks=blocks):
                return wanted.blocks(blocks)
            case Snapshot():
                return message if wanted.snapshot(message) else None
            case Offer():
                return _or_question(self._pool.wants_offer(message, is_proven), peer, message)
            case Attestation():
                return _or_question(self._finish.wants(message, is_proven), peer, message)
            case Pace():
                return message if self._client.wants_pace(message) else None
            case StoreAck():
                return message if self._pool.wants_ack(message) else None
            case Evidence():
                return message if self._wants_evidence(message) else None
            case Chunk():
                return message if self._pool.wants_chunk(message) else None
            case Statements():
                return message if self._recall.wants_answer_of(peer) else None
            case Status() | BlockRequest() | ManifestRequest() | ChunkRequest() | NotHeld():
                return message  # unsigned; whoever answers limits its answers
            case StatementsRequest():
                return message  # likewise
            case ManifestAnswer():
                return message  # unsigned
            case _:
                return None

    def _wanted_transactions(self, transactions: tuple[Transaction, ...]) -> Gossip | None:
        """At most one for each slot, since an honest peer sends no two."""
        kept: dict[Slot, Transaction] = {}
        for transaction in transactions:
            slot = slot_of(transaction)
            if slot not in kept and self._replica.wants(transaction, self._is_proven):
                kept[slot] = transaction
        return Gossip(tuple(kept.values())) if kept else None

    def _wants_evidence(self, evidence: Evidence) -> bool:
        return _charge(evidence) not in self._evidence and evidence.first.author != self.me

    def _is_proven(self, author: NodeId, kind: type[Statement]) -> bool:
        return (author, kind.__name__) in self._evidence

    # --- The one entry ---------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> Output:
        if not self._started:
            self._started = True
            self._mute()
            self._replica.resume(now)
            self._pool.resume()
            self._client.state_is(self.state, now)
        output = _Output()
        if self._route(event, now, output) and self._replica.idle and now < self._others_wake_at:
            return Output(wake_at=self._earliest(self._replica.wake_at))
        self._settle(now, output)
        others = (
            self._pool.wake_at,
            self._client.wake_at,
            self._finish.wake_at,
            self._recall.wake_at,
        )
        self._others_wake_at = min((at for at in others if at is not None), default=NEVER)
        return output.done(self._earliest(self._replica.wake_at))

    def _earliest(self, replica_wakes_at: float | None) -> float | None:
        at = min(self._others_wake_at, NEVER if replica_wakes_at is None else replica_wakes_at)
        return None if at == NEVER else at

    def _route(self, event: Event, now: float, output: "_Output") -> bool:
        """True if only the replica was told: then nothing may follow for the other parts."""
        match event:
            case Received(peer=peer, message=message):
                return self._receive(peer, message, now, output)
            case ReceivedChunk():
                self._pool.receive_chunk(event, now)
            case Question(peer=peer, message=message):
                return self._answer(peer, message, now)
            case Tick():
                self._replica.tick(now)
            case Connected(peer=peer):
                self._replica.connected(peer, now)
                output.send.extend(self._recall.connected(peer))
                self._client.connected(peer, now)
            case Validated(digest=digest, fault=fault):
                self._pool.validated(digest, fault)
            case Aggregated():
                self._client.aggregated(event)
            case Trained():
                self._client.trained(event, now)
            case ChunkLost(digest=digest, index=index):
                self._pool.lost(digest, index)
            case WorkFailed(work=work):
                if isinstance(work, Validate):
                    self._pool.not_validated(work.manifest.digest)
                self._client.failed(event, now)
            case Faulted(peer=peer, reason=reason):
                output.notices.append(PeerMisbehaved(peer, reason))
        return False

    def _receive(self, peer: NodeId, message: Message, now: float, output: "_Output") -> bool:
        self._recall.saw(message)
        if isinstance(message, POOL_MESSAGES):
            self._pool.receive(peer, message, now)
        elif isinstance(message, Attestation):
            self._finish.receive(peer, message, now)
        elif isinstance(message, StatementsRequest):
            acks = self._pool.acks_from(peer)
            output.send.extend(self._recall.answer(peer, acks, now))
        elif isinstance(message, Statements):
            self._learn_statements(peer, message, now, output)
        elif isinstance(message, Pace):
            self._client.receive_pace(peer, message, now)
        elif isinstance(message, Evidence):
            output.notices.append(EvidenceFound(message))  # like our own: `_settle` learns it
        else:
            self._replica.receive(peer, message, now)
            return True
        return False

    def _answer(
        self, peer: NodeId, message: Vote | Timeout | Offer | Attestation, now: float
    ) -> bool:
        match message:
            case Vote() | Timeout():
                self._replica.asked(message, now)
                return True
            case Offer():
                self._pool.asked(peer, message)
            case Attestation():
                self._finish.asked(peer, now)
        return False

    def _settle(self, now: float, output: "_Output") -> None:
        """Let the parts feed each other until nothing new comes of it."""
        output.send.extend(self._recall.ask(now))
        while True:
            ordered = self._replica.take()
            self._after_consensus(ordered, now, output)
            self._client.advance(now)
            self._pool.ask(now)
            pooled = self._pool.take()
            output.add_pool(pooled)
            for upd in pooled.certified:
                self._replica.submit(upd, now)
            done = self._client.take()
            output.model = done.model or output.model
            output.send.extend(done.send)
            output.work.extend(done.work)
            output.notices.extend(done.notices)
            for transaction in done.submit:
                self._replica.submit(transaction, now)
            ended = self._finish.take()
            output.send.extend(ended.send)
            output.notices.extend(ended.notices)
            if not pooled.certified and not done.submit:
                break
        for notice in list(output.notices):
            if isinstance(notice, EvidenceFound):
                output.notices.remove(notice)
                self._learn_evidence(notice.evidence, output)

    def _after_consensus(self, ordered: ConsensusEffects, now: float, output: "_Output") -> None:
        output.add_consensus(ordered)
        if any(isinstance(notice, Observing) for notice in ordered.notices):
            self._mute()
        state = self.state
        if ordered.committed or ordered.snapshot is not None:
            if state.round != self._round:
                self._round_closed(state, output)
            self._prove(state, output)
            self._client.state_is(state, now)

    def _round_closed(self, state: LedgerState, output: "_Output") -> None:
        for closed in state.closed:
            if closed.round > self._round:
                authors = tuple(ref.author for ref in closed.updates)
                missing = tuple(
                    m for m in self.federation.committee.members if m not in set(authors)
                )
                output.notices.append(RoundClosed(closed.round, authors, missing))
        self._round = state.round
        # With one round of grace, like the blobs that these records name.
        output.forget_round = Round(state.round - self.federation.tau - 1)

    def _prove(self, state: LedgerState, output: "_Output") -> None:
        """q updates of the next round that share a base prove that base as a round's model."""
        for closed in state.closed:
            round_ = Round(closed.round - 1)
            if round_ > self._proven:
                self._proven = round_
                output.notices.append(RoundProven(round_, closed.base, closed.updates))

    def _mute(self) -> None:
        """Nothing is signed by an observer, nor before the others were asked."""
        silent = self._recall.asking or self._replica.observing is not None
        self._replica.muted = silent
        self._pool.muted = self._client.muted = self._finish.muted = silent
        self._client.observing = self._replica.observing is not None

    def _learn_statements(
        self, peer: NodeId, statements: Statements, now: float, output: "_Output"
    ) -> None:
        """An answer of a peer: what this node signed, as far as that peer has seen it."""
        if authors_of(statements) - {self.me}:
            output.notices.append(PeerMisbehaved(peer, "it answered with others' statements"))
            return
        forgotten = Round(self.state.round - self.federation.tau)
        unknown = beyond_record(statements, self._replica.record, self._pool, forgotten)
        if unknown is not None:
            name = self.federation.members[peer].name
            self._replica.observe(
                f"{name} shows {unknown}, signed by this node and not in its record: "
                "its state is an old copy"
            )
        was_asking = self._recall.asking
        self._recall.answered(peer)
        if was_asking and not self._recall.asking and self._replica.observing is None:
            self._mute()
            self._replica.unmute(now)
            self._pool.resume()

    def _learn_evidence(self, evidence: Evidence, output: "_Output") -> None:
        """Keep the first proof of each kind against each member, and pass it on once."""
        if self._wants_evidence(evidence):
            self._evidence[_charge(evidence)] = evidence
            output.evidence.append(evidence)
            output.notices.append(EvidenceFound(evidence))
            output.send.append(Envelope(None, evidence))


def _charge(evidence: Evidence) -> tuple[NodeId, str]:
    """Who did what: one proof of each kind against each member says all that there is to say."""
    return evidence.first.author, type(evidence.first).__name__


def _or_question(
    worth: bool | None, peer: NodeId, message: Offer | Attestation
) -> Offer | Attestation | Question | None:
    if worth is None:
        return None
    return message if worth else Question(peer, message)


T = TypeVar("T")


def _last(values: Iterable[T | None]) -> T | None:
    newest = None
    for value in values:
        newest = newest if value is None else value
    return newest


class _Output:
    """An Output in the making."""

    def __init__(self) -> None:
        self.send: list[Envelope | ServeChunk] = []
        self.work: list[Work] = []
        self.notices: list[Notice] = []
        self.model: tuple[Round, Manifest] | None = None
        self.evidence: list[Evidence] = []
        self.forget_round: Round | None = None
        self._ordered: list[ConsensusEffects] = []
        self._pooled: list[PoolEffects] = []

    def add_consensus(self, ordered: ConsensusEffects) -> None:
        self._ordered.append(ordered)
        self.send.extend(ordered.send)
        self.notices.extend(ordered.notices)

    def add_pool(self, pooled: PoolEffects) -> None:
        self._pooled.append(pooled)
        self.send.extend(pooled.send)
        self.work.extend(pooled.work)
        self.notices.extend(pooled.notices)

    def done(self, wake_at: float | None) -> Output:
        return Output(
            persist=self._persist(),
            store=tuple(chunk for pooled in self._pooled for chunk in pooled.store),
            send=tuple(self.send),
            committed=self._committed(),
            work=tuple(self.work),
            drop=tuple(digest for pooled in self._pooled for digest in pooled.drop),
            notices=tuple(self.notices),
            wake_at=wake_at,
        )

    def _committed(self) -> tuple[Committed, ...]:
        return tuple(block for ordered in self._ordered for block in ordered.committed)

    def _persist(self) -> Persist | None:
        persist = Persist(
            record=_last(ordered.record for ordered in self._ordered),
            blocks=tuple(block for ordered in self._ordered for block in ordered.blocks),
            snapshot=_last(ordered.snapshot for ordered in self._ordered),
            acks=tuple(ack for pooled in self._pooled for ack in pooled.acks),
            offer=_last(pooled.offer for pooled in self._pooled),
            model=self.model,
            evidence=tuple(self.evidence),
            forget_round=self.forget_round,
        )
        return None if persist == Persist() else persist
