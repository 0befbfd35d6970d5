"""One replica of the log: messages and time in, effects out.

Each entry point first applies certificates, then judges, then settles what follows (vote, propose,
ask, timer). What may be signed is in safety.py, the rules are in rules.py, and all that needs no
signature is in follower.py. Only the order in which statements are signed and counted is here.
"""

from defl.consensus.follower import Follower
from defl.consensus.rules import admissible
from defl.consensus.states import S
from defl.ids import NodeId, View
from defl.messages import (
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
)
from defl.verifier import IsProven

# What `receive` takes; most messages are votes.
REPLICA_MESSAGES = (
    Vote,
    Proposal,
    Timeout,
    Certificates,
    Status,
    Gossip,
    BlockRequest,
    Blocks,
    Snapshot,
)
# A vote is often overtaken by the QC that it helps to form; only a sender further behind than
# this is answered for its vote's hints. Timeouts and statuses are answered exactly.
VOTE_HINT_SLACK = 1


class Replica(Follower[S]):
    muted = False  # signs nothing for now; an observer never signs again

    @property
    def _is_silent(self) -> bool:
        return self.muted or self.observing is not None

    @property
    def wake_at(self) -> float | None:
        deadline, asks_at = self._pace.deadline, self._sync.next_at
        if deadline is None or asks_at is None:
            return asks_at if deadline is None else deadline
        return min(deadline, asks_at)

    # --- Entry points ----------------------------------------------------------------------

    def resume(self, now: float) -> None:
        """After a (re)start: send the last statements again, byte for byte, and count them.

        The others count them, so this node must too: if exactly q members are alive and all of
        them restarted, no other statement completes a certificate.
        """
        self._now = now
        if self.observing is None:
            for statement in self._safety.last_statements():
                self._broadcast(statement)
                if isinstance(statement, Vote) and self.wanted.in_window(statement.view):
                    self._count_vote(statement)
                elif isinstance(statement, Timeout) and self.wanted.in_window(statement.view):
                    self._count_timeout(statement)
        self._broadcast(self.status)
        self._settle()

    def unmute(self, now: float) -> None:
        """Sign what had to wait."""
        self._now = now
        self.muted = False
        self._settle()

    def connected(self, peer: NodeId, now: float) -> None:
        self._now = now
        self._send(peer, self.status)

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
        """Is a transaction worth verifying? `wanted` judges everything else."""
        return self._application.wanted(self.state, transaction) and self._mempool.wants(
            transaction, is_proven
        )

    def answer(self, message: Vote | Timeout, now: float) -> None:
        """Answer the author of an unverified statement that adds nothing: it may lag."""
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

    # --- Proposals, votes and timeouts -----------------------------------------------------

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
        """Join f + 1 members that gave up the view: at least one of them is honest."""
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

    # --- Signing ---------------------------------------------------------------------------

    def _settle(self) -> None:
        """Vote and propose until nothing new follows, then ask and set the timer."""
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

    def _time_out(self) -> None:
        """Give up the view: sign once, then repeat the same bytes."""
        if self._is_silent:
            self._broadcast(self.status)
            return
        if self._safety.may_time_out(self.view):
            timeout = self._safety.sign_timeout(self.view)
            self._broadcast(timeout)
            self._count_timeout(timeout)
        elif (last := self.record.last_timeout) is not None and last.view == self.view:
            self._broadcast(last)
