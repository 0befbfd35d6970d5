"""Following the log: all that a replica does without signing.

It applies certificates, stores, fetches and commits blocks, recovers after a restart, and answers
peers that know less. An observer does this and nothing else. What is signed and when is in
replica.py.
"""

from collections.abc import Callable
from functools import partial
from typing import Generic

from defl.committee import Federation
from defl.consensus.answers import Answers
from defl.consensus.chain import Chain, Fork, genesis_of
from defl.consensus.effects import ConsensusEffects
from defl.consensus.leaders import leader_of
from defl.consensus.mempool import Mempool
from defl.consensus.pacemaker import Pacemaker
from defl.consensus.rules import RULES
from defl.consensus.safety import Safety, first_record
from defl.consensus.states import Application, S
from defl.consensus.sync import Sync
from defl.consensus.tally import Tally
from defl.consensus.wanted import Wanted
from defl.crypto import Signer
from defl.fields import is_in, members_in
from defl.ids import NodeId, View
from defl.messages import (
    QC,
    TC,
    Block,
    BlockRequest,
    Blocks,
    Evidence,
    Message,
    Snapshot,
    Status,
    Transaction,
    genesis_qc,
)
from defl.output import (
    Durable,
    Envelope,
    EvidenceFound,
    Observing,
    PeerMisbehaved,
    SafetyBroken,
    SafetyRecord,
)


class Follower(Generic[S]):
    def __init__(
        self,
        federation: Federation,
        me: NodeId,
        signer: Signer,
        application: Application[S],
        durable: Durable,
        leader: Callable[[View], NodeId] | None = None,
        safety: type[Safety] = Safety,
    ) -> None:
        self._application = application
        self._committee = federation.committee
        self._rules = RULES[federation.rules]
        self._me = me
        self._leader = leader or partial(leader_of, federation.chain, self._committee.members)
        self._now = 0.0
        self._effects = ConsensusEffects()
        self._mempool = Mempool()
        self._work: bool | None = None  # recomputed after the mempool or the state has changed
        self._tally = Tally(federation.committee)
        self._sync = Sync(me, federation.timing.view_base_s)
        self._answers = Answers(federation.timing.view_base_s)

        genesis = genesis_of(federation, application)
        record = durable.record
        missing = record is None or record.epoch != federation.epoch
        if record is None or missing:
            record = first_record(federation.epoch, genesis_qc(genesis.id))
        self._safety = safety(record, federation.chain, me, signer)
        if missing:
            self.observe("the safety record is missing, so what was signed before is unknown")
        elif record.observing is not None:
            self._effects.notices.append(Observing(record.observing))
        self._chain = Chain(self._rules, application, genesis, durable)
        self._pace = Pacemaker(self._safety.next_view, federation.timing)
        self.wanted = Wanted(
            me, self._leader, self._safety, self._chain, self._pace, self._tally, self._sync
        )
        self._recover(durable)

    # --- Read-only views -------------------------------------------------------------------

    @property
    def view(self) -> View:
        return self._pace.view

    @property
    def state(self) -> S:
        return self._chain.state

    @property
    def head(self) -> Block:
        return self._chain.head

    @property
    def root(self) -> Block:
        """The newest block whose state a certified header shows."""
        return self._chain.root

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest state that this node can prove to others."""
        return self._chain.snapshot

    @property
    def record(self) -> SafetyRecord:
        return self._safety.record

    @property
    def observing(self) -> str | None:
        """Why this node no longer signs anything; None if it does sign."""
        return self._safety.record.observing

    @property
    def stored(self) -> dict[str, int]:
        """How much each bounded buffer holds."""
        return {
            "blocks": len(self._chain),
            "transactions": len(self._mempool),
            "statements": len(self._tally),
        }

    @property
    def idle(self) -> bool:
        """Is there no effect to be taken?"""
        return self._effects.is_empty and not self._safety.changed

    def take(self) -> ConsensusEffects:
        """All effects since the last call. A changed record comes with them, to go first."""
        effects = self._effects
        if self._safety.changed:
            effects.record = self._safety.record
            self._safety.changed = False
        self._effects = ConsensusEffects()
        return effects

    # --- Certificates and views ------------------------------------------------------------

    def _apply(self, qc: QC, tc: TC | None) -> None:
        """Certificates move the view first."""
        self._apply_qc(qc)
        if tc is not None:
            self._apply_qc(tc.qc)
            if tc.view > self._safety.record.last_timeout_view and is_in(tc.signers, self._me):
                self._saw_own_signature("timeout", tc.view)
            self._safety.learn_tc(tc)
            if tc.view == self.view:
                self._pace.given_up(self._leader(tc.view))
            self._enter(View(tc.view + 1))

    def _apply_qc(self, qc: QC) -> None:
        self._check_own_vote(qc)
        if self._safety.learn_qc(qc):
            if qc.view == self.view:
                self._pace.certified(self._leader(qc.view), self._now)
            self._enter(View(qc.view + 1))
            self._want_what_is_missing()
            self._commit()

    def _check_own_vote(self, qc: QC) -> None:
        if qc.view > self._safety.record.last_voted_view and is_in(qc.signers, self._me):
            self._saw_own_signature("vote", qc.view)

    def _saw_own_signature(self, kind: str, view: View) -> None:
        self.observe(f"a peer shows a {kind} of this node for view {view}, beyond its record")

    def observe(self, reason: str) -> None:
        """Sign nothing more in this epoch."""
        if self.observing is None:
            self._safety.observe(reason)
            self._effects.notices.append(Observing(reason))

    def _enter(self, view: View) -> None:
        if view <= self.view:
            return
        self._pace.enter(view)
        self._pace.heard(self._me)
        self._tally.entered(view)

    # --- Blocks ----------------------------------------------------------------------------

    def _add_block(self, block: Block) -> None:
        if not self._chain.add(block):
            reason = f"the block of view {block.view} claims height {block.height}"
            self._effects.notices.append(PeerMisbehaved(block.header.author, reason))
            return
        self._learn_transactions(block.transactions)
        if block.id == self._sync.wanted:
            self._want_what_is_missing()
        self._commit()

    def _on_blocks(self, blocks: tuple[Block, ...]) -> None:
        for block in blocks:
            # Wanted by its hash, from a verified QC downward: no other block is accepted.
            if block.id != self._sync.wanted:
                return
            self._add_block(block)

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        if self._chain.install(snapshot):
            self._effects.snapshot = snapshot
            self._state_changed()
            self._apply_qc(snapshot.proof_qc)
            self._sync.want(None)  # the next question is sent at once
            self._want_what_is_missing()

    def _want_what_is_missing(self) -> None:
        """The block of the highest QC or its nearest missing ancestor, from the QC's signers."""
        qc: QC | None = self.record.high_qc
        block = self._chain.get(self.record.high_qc.block)
        if block is not None:
            qc = self._chain.missing_below(block)
        elif self.record.high_qc.view <= self._chain.root.view:
            qc = None
        if qc is None:
            self._sync.want(None)
        else:
            self._sync.want(qc.block, members_in(qc.signers))

    def _commit(self) -> None:
        """Execute whatever the highest QC commits, and move the snapshot along."""
        qc = self.record.high_qc
        certified = self._chain.get(qc.block)
        if certified is None:
            return
        try:
            committed = self._chain.commit(certified)
        except Fork as fork:
            self._effects.notices.append(SafetyBroken(str(fork)))
            return
        if committed:
            self._effects.committed.extend(committed)
            self._effects.blocks.extend(self._chain.not_yet_durable(certified))
            self._safety.learn_commit(qc)
            self._pace.committed()
            self._state_changed()
        if self._chain.move_snapshot(certified, qc):
            self._work = None
            self._effects.snapshot = self._chain.snapshot
        self._chain.drop_forks(certified)

    # --- Transactions ----------------------------------------------------------------------

    def _learn_transactions(self, transactions: tuple[Transaction, ...]) -> None:
        for transaction in transactions:
            if self._application.wanted(self.state, transaction):
                self._work = None
                evidence = self._mempool.add(transaction)
                if evidence is not None:
                    self._report(evidence)

    def _state_changed(self) -> None:
        self._work = None
        self._mempool.keep_only(lambda tx: self._application.wanted(self.state, tx))

    def _is_live(self, transaction: Transaction) -> bool:
        return self._application.live(self.state, transaction)

    def _has_work(self) -> bool:
        """A live transaction, or a committed one whose state no certified header shows yet."""
        if self._work is None:
            self._work = not self._chain.shows_all or self._mempool.any_live(self._is_live)
        return self._work

    # --- Recovery --------------------------------------------------------------------------

    def _recover(self, durable: Durable) -> None:
        # A snapshot may be written without the record; a block never is, so the record's QC is at
        # least as new as those in stored blocks.
        if durable.snapshot is not None:
            self._check_own_vote(durable.snapshot.proof_qc)
            self._safety.learn_qc(durable.snapshot.proof_qc)
        last = self.record.last_proposal
        if last is not None:
            self._tally.add_proposal(last)
            self._chain.add(last.block)
        self._pace.view = self._safety.next_view
        commit_qc = self.record.commit_qc
        certified = self._chain.get(commit_qc.block) if commit_qc is not None else None
        if certified is not None:
            self._chain.commit(certified)
        self._commit()
        for block in durable.blocks:
            self._learn_transactions(block.transactions)
        self._want_what_is_missing()
        # What was committed before the restart was announced before the restart.
        self._effects.committed.clear()

    # --- Questions and answers -------------------------------------------------------------

    def _on_status(self, peer: NodeId, status: Status) -> None:
        knows_more = (status.view, status.high_qc_view) > (self.view, self.record.high_qc.view)
        if knows_more and self._answers.may_send(Status, peer, self._now):
            self._send(peer, self.status)  # it will answer with what is missing here
        self._answer_if_behind(peer, status.view, status.high_qc_view)

    def _on_block_request(self, peer: NodeId, request: BlockRequest) -> None:
        if not self._answers.may_send(Blocks, peer, self._now):
            return
        answer = self._chain.answer(request)
        if isinstance(answer, Snapshot) and not self._answers.may_send(Snapshot, peer, self._now):
            return
        if answer is not None:
            self._send(peer, answer)

    def _answer_if_behind(self, peer: NodeId, view: View, high_qc_view: View) -> None:
        answer = self._answers.to(
            peer, shows=(high_qc_view, view), mine=self.record, view=self.view, now=self._now
        )
        if answer is not None:
            self._send(peer, answer)

    def _ask(self) -> None:
        question = self._sync.due(self._now)
        if question is not None:
            source, block_id = question
            self._send(source, BlockRequest(block_id, self.head.height))

    @property
    def status(self) -> Status:
        return Status(self.view, self.record.high_qc.view)

    def _report(self, evidence: Evidence) -> None:
        self._effects.notices.append(EvidenceFound(evidence))

    def _send(self, peer: NodeId, message: Message) -> None:
        self._effects.send.append(Envelope((peer,), message))

    def _broadcast(self, message: Message) -> None:
        self._effects.send.append(Envelope(None, message))
