"""One replica of the log: messages and time in, effects out.

Each entry point first applies certificates, then judges, then settles what follows (commit, vote,
propose, ask, timer). What may be signed is in safety.py, what the rules are in rules.py; here is
only the order in which things happen. That order is the subject, and it is read best in one place:
hence a file longer than others.
"""

from collections.abc import Callable
from functools import partial
from typing import Generic

from defl.committee import Federation
from defl.consensus.answers import Answers
from defl.consensus.chain import Chain, Fork, genesis_of
from defl.consensus.effects import ConsensusEffects
from defl.consensus.history import Application, S
from defl.consensus.leaders import leader_of
from defl.consensus.mempool import Mempool
from defl.consensus.pacemaker import Pacemaker
from defl.consensus.rules import RULES, admissible
from defl.consensus.safety import Safety, first_record
from defl.consensus.sync import Sync
from defl.consensus.tally import Tally
from defl.consensus.wanted import Wanted
from defl.crypto import Signer
from defl.ids import NodeId, View
from defl.messages import (
    QC,
    TC,
    Block,
    BlockRequest,
    Blocks,
    Certificates,
    Evidence,
    Gossip,
    Message,
    Proposal,
    Snapshot,
    Status,
    Timeout,
    Transaction,
    Vote,
    genesis_qc,
    is_in,
    members_in,
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
from defl.verifier import IsProven

# A vote is often overtaken by the QC that it helps to form; only a sender further behind than
# this is answered for its vote's hints. Timeouts and statuses are answered exactly.
VOTE_HINT_SLACK = 1


class Replica(Generic[S]):
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
        self._leader = leader or partial(leader_of, federation.chain, self._committee.size)
        self._now = 0.0
        self._effects = ConsensusEffects()
        self.muted = False  # signs nothing for now; an observer never does again
        self._mempool = Mempool()
        self._work: bool | None = None  # forgotten whenever the mempool or the state changes
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

    # --- Entry points ----------------------------------------------------------------------

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
    def observing(self) -> str | None:
        """Why this node signs nothing any more, if so."""
        return self._safety.record.observing

    @property
    def _is_silent(self) -> bool:
        return self.muted or self.observing is not None

    @property
    def record(self) -> SafetyRecord:
        return self._safety.record

    @property
    def stored(self) -> dict[str, int]:
        """How much each bounded buffer holds."""
        return {
            "blocks": len(self._chain),
            "transactions": len(self._mempool),
            "statements": len(self._tally),
        }

    @property
    def wake_at(self) -> float | None:
        times = [at for at in (self._pace.deadline, self._sync.next_at) if at is not None]
        return min(times, default=None)

    @property
    def idle(self) -> bool:
        """Did nothing follow from what was handled since the last `take`?"""
        return self._effects.none and not self._safety.changed

    def take(self) -> ConsensusEffects:
        """All effects since the last call. A changed record comes with them, to go first."""
        effects = self._effects
        if self._safety.changed:
            effects.record = self._safety.record
            self._safety.changed = False
        self._effects = ConsensusEffects()
        return effects

    def resume(self, now: float) -> None:
        """After a (re)start: send the last statements again, byte for byte, and count them.

        The others count them, so this node must too: with exactly q members alive, all of them
        restarted, nobody else's statement completes a certificate.
        """
        self._now = now
        if self.observing is None:
            for statement in self._safety.last_statements():
                self._broadcast(statement)
                if isinstance(statement, Vote) and self.wanted.in_window(statement.view):
                    self._count_vote(statement)
                elif isinstance(statement, Timeout) and self.wanted.in_window(statement.view):
                    self._count_timeout(statement)
        self._broadcast(self._status())
        self._settle()

    def unmute(self, now: float) -> None:
        """What could not be signed until now is signed."""
        self._now = now
        self.muted = False
        self._settle()

    def connected(self, peer: NodeId, now: float) -> None:
        self._now = now
        self._send(peer, self._status())

    def submit(self, transaction: Transaction, now: float) -> None:
        """A transaction of this node's own client."""
        self._now = now
        self._learn_transactions((transaction,))
        self._broadcast(Gossip((transaction,)))
        self._settle()

    def tick(self, now: float) -> None:
        self._now = now
        if self._pace.expired(now):
            self._time_out()
            live = self._mempool.live(self._is_live)
            if live:
                self._broadcast(Gossip(live))
            self._pace.again(self._leader(self.view), now)
        self._settle()

    def wants(self, transaction: Transaction, is_proven: IsProven) -> bool:
        """Is it worth verifying? Beside `wanted`, which judges everything else."""
        return self._application.wanted(self.state, transaction) and self._mempool.wants(
            transaction, is_proven
        )

    def asked(self, message: Vote | Timeout, now: float) -> None:
        """A statement that adds nothing, not verified: its author may lag, and is answered."""
        self._now = now
        self._pace.heard(message.author)
        match message:
            case Vote():
                self._answer_vote(message)
            case Timeout():
                self._answer_if_behind(message.author, message.view, message.high_qc.view)
                self._echo()
        self._settle()

    def receive(self, peer: NodeId, message: Message, now: float) -> None:
        self._now = now
        self._pace.heard(peer)
        match message:
            case Vote():
                self._on_vote(message)
            case Proposal():
                self._on_proposal(message)
            case Timeout():
                self._on_timeout(message)
            case Certificates(qc=qc, tc=tc):
                self._apply(qc, tc)
            case Status():
                self._on_status(peer, message)
            case Gossip(transactions=transactions):
                self._learn_transactions(transactions)
            case BlockRequest():
                self._on_block_request(peer, message)
            case Blocks(blocks=blocks):
                self._on_blocks(blocks)
            case Snapshot():
                self._on_snapshot(message)
        self._settle()

    # --- Messages --------------------------------------------------------------------------

    def _on_status(self, peer: NodeId, status: Status) -> None:
        if (status.view, status.high_qc_view) > (self.view, self.record.high_qc.view):
            self._send(peer, self._status())  # it will answer with what is missing here
        self._answer_if_behind(peer, status.view, status.high_qc_view)

    def _on_proposal(self, proposal: Proposal) -> None:
        block = proposal.block
        self._apply(block.qc, block.header.tc)
        if not admissible(block.header, self._leader(block.view)):
            return
        # Certificates came first, so an admissible proposal is never ahead of this view.
        if not self._tally.keeps_proposals_of(block.view, now_in=self.view):
            return
        if block.height <= self._chain.root.height:
            return
        evidence = self._tally.add_proposal(proposal)
        if evidence is not None:
            self._report(evidence)
            if block.id != self._sync.wanted:
                return
        self._add_block(block)

    def _on_vote(self, vote: Vote) -> None:
        self._answer_vote(vote)
        if self.wanted.in_window(vote.view):
            self._count_vote(vote)

    def _answer_vote(self, vote: Vote) -> None:
        view = View(max(vote.high_qc_view, vote.high_tc_view) + 1 + VOTE_HINT_SLACK)
        self._answer_if_behind(vote.author, view, View(vote.high_qc_view + VOTE_HINT_SLACK))

    def _count_vote(self, vote: Vote) -> None:
        result = self._tally.add_vote(vote)
        if isinstance(result, Evidence):
            self._report(result)
        elif result is not None:
            self._apply(result, None)

    def _on_timeout(self, timeout: Timeout) -> None:
        self._apply(timeout.high_qc, timeout.tc)
        self._answer_if_behind(timeout.author, timeout.view, timeout.high_qc.view)
        if self.wanted.in_window(timeout.view):
            self._count_timeout(timeout)
        self._echo()

    def _echo(self) -> None:
        """With f + 1 giving the view up at least one honest node is among them."""
        enough = self._tally.timeouts_for(self.view) > self._committee.faults
        if enough and not self._is_silent and self._safety.may_time_out(self.view):
            self._time_out()

    def _count_timeout(self, timeout: Timeout) -> None:
        result = self._tally.add_timeout(timeout)
        if isinstance(result, Evidence):
            self._report(result)
        elif result is not None and result.view >= self.view:
            self._apply(result.qc, result)
            self._broadcast(Certificates(self.record.high_qc, result))

    def _on_block_request(self, peer: NodeId, request: BlockRequest) -> None:
        if self._answers.may_send_blocks(peer, self._now):
            answer = self._chain.answer(request)
            if answer is not None:
                self._send(peer, answer)

    def _on_blocks(self, blocks: tuple[Block, ...]) -> None:
        for block in blocks:
            # Wanted by its hash, from a verified QC downward: nothing else is taken.
            if block.id != self._sync.wanted:
                return
            self._add_block(block)

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        if self._chain.install(snapshot):
            self._effects.snapshot = snapshot
            self._state_changed()
            self._apply_qc(snapshot.proof_qc)
            self._sync.want(None)  # whoever is asked next, is asked at once
            self._want_what_is_missing()

    def _learn_transactions(self, transactions: tuple[Transaction, ...]) -> None:
        for transaction in transactions:
            if self._application.wanted(self.state, transaction):
                self._work = None
                evidence = self._mempool.add(transaction)
                if evidence is not None:
                    self._report(evidence)

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
        """Sign nothing any more in this epoch."""
        if self.observing is None:
            self._safety.observe(reason)
            self._effects.notices.append(Observing(reason))

    def _enter(self, view: View) -> None:
        if view <= self.view:
            return
        self._pace.enter(view)
        self._pace.heard(self._me)
        self._tally.entered(view)

    def _time_out(self) -> None:
        """Give the view up: sign once, then repeat the same bytes."""
        if self._is_silent:
            self._broadcast(self._status())
            return
        if self._safety.may_time_out(self.view):
            timeout = self._safety.sign_timeout(self.view)
            self._broadcast(timeout)
            self._count_timeout(timeout)
        elif (last := self.record.last_timeout) is not None and last.view == self.view:
            self._broadcast(last)

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
        """Whatever the highest QC commits is executed, and the snapshot moves along."""
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

    def _state_changed(self) -> None:
        self._work = None
        self._mempool.keep_only(lambda tx: self._application.wanted(self.state, tx))

    # --- Voting and proposing --------------------------------------------------------------

    def _settle(self) -> None:
        """Vote and propose while that leads to something new, then ask and set the timer."""
        pace = self._pace
        view = None
        while view != pace.view:
            view = pace.view
            if self._safety.may_vote(view):
                self._vote()
            if self._leader(view) == self._me:
                self._propose()
        if self._sync.wanted is not None:
            self._ask()
        pace.run_while(self._has_work(), self._leader(pace.view), self._now)

    def _ask(self) -> None:
        question = self._sync.due(self._now)
        if question is not None:
            source, block_id = question
            self._send(source, BlockRequest(block_id, self.head.height))

    def _has_work(self) -> bool:
        """A live transaction, or a committed one whose state no certified header shows yet."""
        if self._work is None:
            self._work = not self._chain.shows_all or self._mempool.any_live(self._is_live)
        return self._work

    def _is_live(self, transaction: Transaction) -> bool:
        return self._application.live(self.state, transaction)

    def _vote(self) -> None:
        proposal = self._tally.proposal(self.view)
        if proposal is None or self._is_silent:
            return
        block = proposal.block
        parent = self._chain.get(block.parent)
        if not self._safety.may_vote(self.view) or parent is None:
            return
        if block.height != parent.height + 1 or not self._chain.extends_committed(block):
            return
        if not self._chain.commitment_right(block.header, parent):
            return
        lock = self.record.lock
        extends_lock = self._chain.extends(block, lock.block)
        if not self._rules.safe_to_vote(block, lock, extends_lock=extends_lock):
            return
        vote = self._safety.sign_vote(block, self._rules.lock_after_vote(block, parent))
        self._effects.blocks.extend(self._chain.not_yet_durable(block))
        self._broadcast(vote)
        self._count_vote(vote)

    def _propose(self) -> None:
        view, record = self.view, self.record
        if self._leader(view) != self._me or self._is_silent:
            return
        if not self._safety.may_propose(view) or not self._has_work():
            return
        parent = self._chain.get(record.high_qc.block)
        if parent is None or not self._chain.extends_committed(parent):
            return
        block = self._chain.new_block(
            parent,
            view=view,
            qc=record.high_qc,
            tc=record.high_tc if record.high_qc.view != view - 1 else None,
            transactions=self._mempool.without(self._chain.uncommitted(parent), self._is_live),
            author=self._me,
        )
        if block is None:
            return
        proposal = self._safety.sign_proposal(block)
        self._tally.add_proposal(proposal)
        self._chain.add(block)
        self._broadcast(proposal)
        self._vote()

    # --- Recovery and sending --------------------------------------------------------------

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

    def _status(self) -> Status:
        return Status(self.view, self.record.high_qc.view)

    def _answer_if_behind(self, peer: NodeId, view: View, high_qc_view: View) -> None:
        answer = self._answers.to(
            peer, shows=(high_qc_view, view), mine=self.record, view=self.view, now=self._now
        )
        if answer is not None:
            self._send(peer, answer)

    def _report(self, evidence: Evidence) -> None:
        self._effects.notices.append(EvidenceFound(evidence))

    def _send(self, peer: NodeId, message: Message) -> None:
        self._effects.send.append(Envelope((peer,), message))

    def _broadcast(self, message: Message) -> None:
        self._effects.send.append(Envelope(None, message))
