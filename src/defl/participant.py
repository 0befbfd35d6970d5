"""One node's whole behaviour: replica, pool and client joined into one pure machine.

`handle(event, now) -> Output` is the only entry point. node/ drives it with real sockets, disks
and clocks, sim/ with virtual ones, so the simulator runs the code that ships.
"""

from defl.client import RoundClient
from defl.committee import Federation
from defl.consensus.chain import genesis_of
from defl.consensus.effects import ConsensusEffects
from defl.consensus.mempool import Slot, slot_of
from defl.consensus.replica import REPLICA_MESSAGES, Replica
from defl.consensus.safety import Safety, first_record
from defl.crypto import Signer
from defl.evidence import EvidenceLog
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
    BlobLost,
    ChunkLost,
    Connected,
    Durable,
    Envelope,
    Event,
    EvidenceFound,
    Faulted,
    Observing,
    Output,
    PeerMisbehaved,
    Question,
    Received,
    ReceivedChunk,
    RoundClosed,
    RoundProven,
    Tick,
    Trained,
    Validate,
    Validated,
    WorkFailed,
)
from defl.output_builder import OutputBuilder
from defl.pool.pool import Pool
from defl.recall import Recall, authors_of, beyond_record

NEVER = float("inf")
POOL_MESSAGES = (Offer, StoreAck, ManifestRequest, ManifestAnswer, ChunkRequest, Chunk, NotHeld)


def first_durable(federation: Federation, initial: Manifest) -> Durable:
    """The disk of a new node: a record that nothing has been signed, and the initial weights."""
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
        self._evidence = EvidenceLog(me, durable.evidence)
        self._proven: Round = Round(-1)
        self._started = False
        self._others_wake_at = 0.0  # when a part other than the replica next needs a Tick

    # --- Read-only views --------------------------------------------------------------------

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
        return self._evidence.all

    @property
    def answers_missing(self) -> int:
        """How many more members must answer its Recall before this node may sign."""
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
        """Which part of an unverified message is worth verifying: all of it, some of it, or none.

        A Question means: answer the peer, but do not verify. There is exactly one rule per type.
        It is read-only and cheap, since it protects the verifier from liars and runs again for
        each repetition.
        """
        wanted, is_proven = self._replica.wanted, self._evidence.is_proven
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
                return message if self._evidence.wants(message) else None
            case Chunk():
                return message if self._pool.wants_chunk(message) else None
            case Statements():
                return message if self._recall.wants_answer_of(peer) else None
            case Status() | BlockRequest() | ManifestRequest() | ChunkRequest() | NotHeld():
                return message  # unsigned; the code that answers limits its answers
            case StatementsRequest():
                return message  # likewise
            case ManifestAnswer():
                return message  # unsigned
            case _:
                return None

    def _wanted_transactions(self, transactions: tuple[Transaction, ...]) -> Gossip | None:
        """At most one per slot: an honest peer never sends two."""
        kept: dict[Slot, Transaction] = {}
        for transaction in transactions:
            slot = slot_of(transaction)
            if slot not in kept and self._replica.wants(transaction, self._evidence.is_proven):
                kept[slot] = transaction
        return Gossip(tuple(kept.values())) if kept else None

    # --- The entry point -------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> Output:
        if not self._started:
            self._started = True
            self._mute()
            self._replica.resume(now)
            self._pool.resume()
            self._client.set_state(self.state, now)
        for_replica = self._give_replica(event, now)
        if for_replica and self._replica.idle and now < self._others_wake_at:
            return Output(wake_at=self._earliest(self._replica.wake_at))
        output = OutputBuilder()
        if not for_replica:
            self._route(event, now, output)
        self._settle(now, output)
        others = (
            self._pool.wake_at,
            self._client.wake_at,
            self._finish.wake_at,
            self._recall.wake_at,
        )
        self._others_wake_at = min([at for at in others if at is not None], default=NEVER)
        return output.build(self._earliest(self._replica.wake_at))

    def _earliest(self, replica_wakes_at: float | None) -> float | None:
        at = min(self._others_wake_at, NEVER if replica_wakes_at is None else replica_wakes_at)
        return None if at == NEVER else at

    def _give_replica(self, event: Event, now: float) -> bool:
        """True if the event was for the replica alone: the other parts may have nothing to do."""
        match event:
            case Received(peer=peer, message=message) if isinstance(message, REPLICA_MESSAGES):
                self._recall.remember(message)
                self._replica.receive(peer, message, now)
                return True
            case Question(message=Vote() | Timeout() as message):
                self._replica.answer(message, now)
                return True
        return False

    def _route(self, event: Event, now: float, output: OutputBuilder) -> None:
        match event:
            case Received(peer=peer, message=message):
                self._receive(peer, message, now, output)
            case ReceivedChunk():
                self._pool.receive_chunk(event, now)
            case Question(peer=peer, message=Offer() as offer):
                self._pool.answer_offer(peer, offer)
            case Question(peer=peer, message=Attestation()):
                self._finish.answer(peer, now)
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
                self._pool.refetch(digest, (index,))
            case BlobLost(digest=digest):
                self._pool.refetch(digest)
            case WorkFailed(work=work):
                if isinstance(work, Validate):
                    self._pool.not_validated(work.manifest.digest)
                self._client.failed(event, now)
            case Faulted(peer=peer, reason=reason):
                output.notices.append(PeerMisbehaved(peer, reason))

    def _receive(self, peer: NodeId, message: Message, now: float, output: OutputBuilder) -> None:
        self._recall.remember(message)
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
            output.notices.append(EvidenceFound(message))  # `_settle` learns it, like our own

    def _settle(self, now: float, output: OutputBuilder) -> None:
        """Let the parts feed each other until none submits another transaction."""
        output.send.extend(self._recall.ask(now))
        while True:
            self._after_consensus(self._replica.take(), now, output)
            self._client.advance(now)
            self._pool.send_due(now)
            pool_effects = self._pool.take()
            output.add_pool(pool_effects)
            for upd in pool_effects.certified:
                self._replica.submit(upd, now)
            client_effects = self._client.take()
            output.add_client(client_effects)
            for transaction in client_effects.submit:
                self._replica.submit(transaction, now)
            output.add_finish(self._finish.take())
            if not pool_effects.certified and not client_effects.submit:
                break
        for notice in list(output.notices):
            if isinstance(notice, EvidenceFound):
                output.notices.remove(notice)
                self._learn_evidence(notice.evidence, output)

    def _after_consensus(
        self, effects: ConsensusEffects, now: float, output: OutputBuilder
    ) -> None:
        output.add_consensus(effects)
        if effects.notices and any(isinstance(notice, Observing) for notice in effects.notices):
            self._mute()
        state = self.state
        if effects.committed or effects.snapshot is not None:
            if state.round != self._round:
                self._round_closed(state, output)
            self._prove(state, output)
            self._client.set_state(state, now)

    def _round_closed(self, state: LedgerState, output: OutputBuilder) -> None:
        for closed in state.closed:
            if closed.round > self._round:
                authors = tuple(ref.author for ref in closed.updates)
                members = self.federation.committee.members
                missing = tuple(sorted(set(members).difference(authors)))
                output.notices.append(RoundClosed(closed.round, authors, missing))
        self._round = state.round
        # With one round of grace, like the blobs that these records name.
        output.forget_round = Round(state.round - self.federation.tau - 1)

    def _prove(self, state: LedgerState, output: OutputBuilder) -> None:
        """q updates of the next round that share a base prove that base as a round's model."""
        for closed in state.closed:
            round_ = Round(closed.round - 1)
            if round_ > self._proven:
                self._proven = round_
                output.notices.append(RoundProven(round_, closed.base, closed.updates))

    def _mute(self) -> None:
        """An observer signs nothing, and neither does a node whose Recall is unanswered."""
        silent = self._recall.asking or self._replica.observing is not None
        self._replica.muted = silent
        self._pool.muted = self._client.muted = self._finish.muted = silent
        self._client.observing = self._replica.observing is not None

    def _learn_statements(
        self, peer: NodeId, statements: Statements, now: float, output: OutputBuilder
    ) -> None:
        """Learn from a peer which statements of this node it has seen."""
        if authors_of(statements) - {self.me}:
            output.notices.append(
                PeerMisbehaved(peer, "it answered with other members' statements")
            )
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
        self._recall.record_answer(peer)
        if was_asking and not self._recall.asking and self._replica.observing is None:
            self._mute()
            self._replica.unmute(now)
            self._pool.resume()

    def _learn_evidence(self, evidence: Evidence, output: OutputBuilder) -> None:
        """Keep the first proof of each kind against each member, and relay it once."""
        if self._evidence.wants(evidence):
            self._evidence.add(evidence)
            output.evidence.append(evidence)
            output.notices.append(EvidenceFound(evidence))
            output.send.append(Envelope(None, evidence))


def _or_question(
    worth: bool | None, peer: NodeId, message: Offer | Attestation
) -> Offer | Attestation | Question | None:
    if worth is None:
        return None
    return message if worth else Question(peer, message)
