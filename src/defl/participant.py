"""One node's whole behaviour: replica, pool and client joined into one pure machine.

`handle(event, now) -> Output` is the only entry point. node/ drives it with real sockets, disks
and clocks, sim/ with virtual ones, so the simulator runs the code that ships.
"""

from msgspec.structs import replace

from defl.committee import Federation
from defl.consensus.effects import ConsensusEffects
from defl.consensus.replica import REPLICA_MESSAGES
from defl.contacts import Contacts, PeerRole, former_after, id_of
from defl.evidence import EvidenceLog
from defl.finish import ALONE_S
from defl.ids import OUTSIDER, NodeId, Round
from defl.ledger import Ledger, LedgerState, decode_state
from defl.messages import (
    Attestation,
    Chunk,
    ChunkRequest,
    Evidence,
    Handover,
    Have,
    ManifestAnswer,
    ManifestRequest,
    Message,
    NotHeld,
    Offer,
    Pace,
    Statements,
    StatementsRequest,
    Status,
    StoreAck,
    Timeout,
    Vote,
)
from defl.output import (
    Aggregated,
    ApproveChange,
    BlobLost,
    ChunkLost,
    Connected,
    Disconnected,
    Durable,
    Envelope,
    EpochBegan,
    Event,
    EvidenceFound,
    Faulted,
    Isolated,
    Observing,
    OtherEpoch,
    Output,
    PeerMisbehaved,
    Propose,
    Question,
    Received,
    ReceivedChunk,
    RoundClosed,
    RoundProven,
    Switch,
    Tick,
    Trained,
    Validate,
    Validated,
    WorkFailed,
)
from defl.output_builder import OutputBuilder
from defl.participant_parts import ParticipantParts, first_record_of
from defl.recall import Recall, authors_of, beyond_record
from defl.succession import next_membership
from defl.wire import EPOCHLESS

NEVER = float("inf")
POOL_MESSAGES = (
    Offer,
    StoreAck,
    ManifestRequest,
    ManifestAnswer,
    ChunkRequest,
    Chunk,
    NotHeld,
    Have,
)
# How long a node that was behind waits for the next handover before it fetches blobs, as a share of
# a view's first period: a handover takes one round trip.
HANDOVER_SHARE = 0.25


class Participant(ParticipantParts):
    # --- The entry point -------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> Output:
        if isinstance(event, Received | ReceivedChunk | Connected | Disconnected):
            self._isolation.saw(self.federation.committee, event, now)
        if self._is_stale(event):
            event = Tick()
        if not self._started:
            self._started = True
            self._mute()
            self._replica.resume(now)
            self._pool.resume()
            self._client.set_state(self.state, now)
        for_replica = self._give_replica(event, now)
        if for_replica and self._replica.idle and now < self._others_wake_at:
            return Output(wake_at=self._earliest(self._replica.wake_at))
        output = OutputBuilder(self.federation.epoch)
        if not for_replica:
            self._route(event, now, output)
        self._settle(now, output)
        self._release_leavers(output)
        committee = self.federation.committee
        # A guest may wait for people: before they approve it, no member talks to it.
        round_ = Round(0) if self.role is PeerRole.GUEST else self.state.round
        if not self.finished and self._isolation.judge(committee, round_, now):
            output.notices.append(Isolated(ALONE_S, committee.faults))
        others = (
            self._pool.wake_at,
            self._client.wake_at,
            self._finish.wake_at,
            self._recall.wake_at,
            self._crossing.wake_at,
            self._isolation.wake_at,
        )
        self._others_wake_at = min([at for at in others if at is not None], default=NEVER)
        if self.me == OUTSIDER:
            output.keep_said(self._crossing.may_say)
        return output.build(self._earliest(self._replica.wake_at))

    def _earliest(self, replica_wakes_at: float | None) -> float | None:
        at = min(self._others_wake_at, NEVER if replica_wakes_at is None else replica_wakes_at)
        return None if at == NEVER else at

    def _is_stale(self, event: Event) -> bool:
        """It was checked by another epoch's facts: an old certificate would poison the record."""
        if not isinstance(event, Received) or event.epoch == self.federation.epoch:
            return False
        return not isinstance(event.message, EPOCHLESS)

    def _give_replica(self, event: Event, now: float) -> bool:
        """True if the event was for the replica alone: the other parts may have nothing to do."""
        match event:
            case Received(peer=peer, message=message) if isinstance(message, REPLICA_MESSAGES):
                self._recall.remember(message)
                former = self._contacts.role_of(peer) is PeerRole.FORMER
                if not former:  # who follows no log
                    self._replica.receive(peer, message, now)
                if isinstance(message, Status) and self._crossing.meets_outsider(peer):
                    if not former or self._client.can_do_without_leavers:
                        self._crossing.met(peer, now)
                    return False
                return True
            case Question(message=Vote() | Timeout() as message):
                self._replica.answer(message, now)
                return True
        return False

    def _route(self, event: Event, now: float, output: OutputBuilder) -> None:
        if isinstance(event, Connected):
            self._pool.connected(event.peer)
        match event:
            case Received(peer=peer, message=message):
                self._receive(peer, message, now, output)
            case ReceivedChunk():
                self._pool.receive_chunk(event, now)
            case Question(peer=peer, message=Offer() as offer):
                self._pool.answer_offer(peer, offer)
            case Question(peer=peer, message=Attestation() as attestation):
                self._finish.answer(peer, attestation, now)
            case Tick():
                self._replica.tick(now)
            case OtherEpoch(peer=peer, epoch=epoch):
                self._crossing.met_epoch(peer, epoch, now)
            case Propose(operations=operations):
                self._crossing.propose(operations)
            case ApproveChange(change=change, agrees=agrees):
                self._crossing.approve(change, agrees=agrees)
            case Connected(peer=peer, epoch=epoch) if epoch is not None and epoch != self.epoch:
                self._crossing.met_epoch(peer, epoch, now)
            case Connected(peer=peer) if self._contacts.role_of(peer) is PeerRole.FORMER:
                self._leavers_wait = True
            case Connected(peer=peer):
                self._replica.connected(peer, now)
                output.add_sent(self._recall.connected(peer))
                self._client.connected(peer, now)
            case Disconnected(peer=peer):
                self._pool.disconnected(peer)
            case Validated(digest=digest, fault=fault):
                self._pool.validated(digest, fault)
            case Aggregated():
                self._client.aggregated(event)
            case Trained():
                self._client.trained(event, now)
            case ChunkLost(digest=digest, index=index):
                self._pool.refetch(digest, (index,))
                self._client.lost(digest, now)
            case BlobLost(digest=digest):
                self._pool.refetch_whole(digest, now)
                self._client.lost(digest, now)
            case WorkFailed(work=work):
                if isinstance(work, Validate):
                    self._pool.not_validated(work.manifest.digest)
                self._client.failed(event, now)
            case Faulted(peer=peer, reason=reason) if self._contacts.knows(peer):
                output.notices.append(PeerMisbehaved(peer, reason))

    def _receive(self, peer: NodeId, message: Message, now: float, output: OutputBuilder) -> None:
        self._recall.remember(message)
        if isinstance(message, POOL_MESSAGES):
            if not self._crossing.refuses(peer, message):
                self._pool.receive(peer, message, now)
        elif isinstance(message, Handover):
            self._receive_handover(peer, message, now, output)
        elif isinstance(message, Attestation):
            self._finish.receive(peer, message, now)
        elif isinstance(message, StatementsRequest):
            acks = self._pool.acks_from(peer)
            output.add_sent(self._recall.answer(peer, acks, now))
        elif isinstance(message, Statements):
            self._learn_statements(peer, message, now, output)
        elif isinstance(message, Pace):
            self._client.receive_pace(peer, message, now)
        elif isinstance(message, Evidence):
            output.notices.append(EvidenceFound(message))  # `_settle` learns it, like our own

    def _settle(self, now: float, output: OutputBuilder) -> None:
        """Let the parts feed each other until none submits another transaction."""
        output.add_sent(self._recall.ask(now))
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
            if self._switch_if_due(now, output):
                continue
            own = self._crossing.due()
            for transaction in own:
                self._replica.submit(transaction, now)
            self._crossing.speak(now)
            output.add_crossing(self._crossing.take())
            if not pool_effects.certified and not client_effects.submit and not own:
                break
        self._learn_found_evidence(output)

    def _after_consensus(
        self, effects: ConsensusEffects, now: float, output: OutputBuilder
    ) -> None:
        output.add_consensus(effects)
        if effects.notices and any(isinstance(notice, Observing) for notice in effects.notices):
            self._mute()
        state = self.state
        if effects.committed or effects.snapshot is not None:
            self._contacts.set_changes(state.changes)
            if state.ended:
                self._mute()
            self._client.set_state(state, now)
            self._report_rounds(state, output)

    def _report_rounds(self, state: LedgerState, output: OutputBuilder) -> None:
        if state.round != self._round:
            self._round_closed(state, output)
        self._prove(state, output)

    def _round_closed(self, state: LedgerState, output: OutputBuilder) -> None:
        for closed in state.closed:
            if closed.round > self._round:
                authors = tuple(ref.author for ref in closed.updates)
                members = self.federation.committee.members
                missing = tuple(sorted(set(members).difference(authors)))
                seen = self._client.waiting.seen if closed.round == state.round else None
                output.notices.append(RoundClosed(closed.round, authors, missing, seen))
        self._round = state.round
        # With one round of grace, like the blobs that these records name.
        output.forget_round = Round(state.round - self.federation.tau - 1)

    def _prove(self, state: LedgerState, output: OutputBuilder) -> None:
        """q updates of the next round that share a base prove that base as a round's model."""
        for closed in state.closed:
            round_ = Round(closed.round - 1)
            if round_ > self._proven:
                self._proven = round_
                output.notices.append(
                    RoundProven(round_, closed.base, closed.updates, closed.epoch)
                )

    def _mute(self) -> None:
        """An observer signs nothing, and neither does a node whose Recall is unanswered."""
        outside = self.me == OUTSIDER
        silent = outside or self._recall.asking or self._replica.observing is not None
        self._replica.muted = silent
        # When the epoch has ended, only its log is still signed, until its end is proven.
        quiet = silent or self.state.ended
        self._pool.muted = self._client.muted = self._finish.muted = quiet
        self._client.observing = outside or self._replica.observing is not None

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

    def _learn_found_evidence(self, output: OutputBuilder) -> None:
        for notice in list(output.notices):
            if isinstance(notice, EvidenceFound):
                output.notices.remove(notice)
                self._learn_evidence(notice.evidence, output)

    def _learn_evidence(self, evidence: Evidence, output: OutputBuilder) -> None:
        """Keep the first proof of each kind against each member, and relay it once."""
        if self._evidence.wants(evidence):
            evidence = replace(evidence, epoch=self.epoch)
            self._evidence.add(evidence)
            output.evidence.append(evidence)
            output.add_sent([Envelope(None, evidence)])

    # --- Epochs ----------------------------------------------------------------------------

    def _receive_handover(
        self, peer: NodeId, handover: Handover, now: float, output: OutputBuilder
    ) -> None:
        """Its signatures are checked; its state must be the one that they vouch for."""
        snapshot = handover.snapshot
        if handover.epoch != self.epoch:
            return
        root = Ledger(self.federation).root_of(snapshot.state)
        if root != snapshot.proof.state_root or not decode_state(snapshot.state).ended:
            reason = "it sent a handover that does not show the end of an epoch"
            output.notices.append(PeerMisbehaved(peer, reason))
            return
        was_behind = not self.state.ended
        self._switch(handover, now, output)
        if was_behind:  # and may be so again: the next handover is perhaps on its way
            self._client.fetch_from(now + self.federation.timing.view_base_s * HANDOVER_SHARE)
        if self._contacts.role_of(peer) is not PeerRole.MEMBER:
            output.add_sent([Envelope((peer,), self._replica.status)])

    def _switch_if_due(self, now: float, output: OutputBuilder) -> bool:
        """Once a certified header shows that the epoch has ended, the next one begins."""
        snapshot = self._replica.snapshot
        if not self.state.ended or snapshot is None:
            return False
        if not decode_state(snapshot.state).ended:
            return False
        self._switch(Handover(snapshot), now, output)
        return True

    def _switch(self, handover: Handover, now: float, output: OutputBuilder) -> None:
        """From here on this node is in the next epoch. Its facts follow from the handover alone."""
        self._learn_found_evidence(output)  # it is of this epoch
        before, record = self.federation, self._replica.record
        state = decode_state(handover.snapshot.state)
        membership = next_membership(before, state.round, state.changes, state.ready)
        if membership is None:
            raise AssertionError("an epoch ends only if another one follows")
        federation = Federation(before.charter, membership)
        me = id_of(federation, self._signer.public_key)
        former = former_after(self._contacts.former, before, federation)
        was_answered = self.me != OUTSIDER and not self._recall.asking
        self._set_facts(federation, me, state.closed)
        self._contacts = Contacts(federation, me, former)
        new_record = first_record_of(federation, state.closed)
        durable = Durable(replace(new_record, observing=record.observing))
        self._recall = Recall(federation, me, is_answered=was_answered)
        self._begin_log(durable)
        self._pool.enter(federation, me)
        self._client.enter(federation, me, self._finish, self._contacts.leavers)
        self._evidence = EvidenceLog(me, self._evidence.all, federation.epoch)
        self._join_parts()
        output.enter(
            Switch(membership, state.closed, former, handover), durable.record, federation.epoch
        )
        output.notices.append(EpochBegan(federation, me, handover))
        self._mute()
        self._replica.resume(now)
        self._client.set_state(self.state, now)
        self._report_rounds(self.state, output)
        self._leavers_wait = True

    def _release_leavers(self, output: OutputBuilder) -> None:
        """Show former members a Status of this epoch: it says that they may go. They may have most
        of the synced copies of an update, so a node first syncs the model of their last round."""
        if self._leavers_wait and self._client.can_do_without_leavers:
            self._leavers_wait = False
            former = self._contacts.former_ids
            output.add_sent([Envelope(former, self._replica.status)] if former else [])
