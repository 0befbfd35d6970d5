"""The only place that signs for consensus, with the record that prevents contradictions.

Every signature changes the record first; `changed` tells the replica that the record must be
durable before the signature leaves. After a restart the same bytes are sent again, and nothing is
ever signed twice for one (kind, epoch, view). The signer does not rely on its callers: each
`sign_*` repeats the check of its `may_*`, and refuses with the record untouched.
"""

from msgspec.structs import replace

from defl.crypto import Signer, Tag, statement
from defl.errors import SigningRefused
from defl.ids import Digest, NodeId, View
from defl.messages import (
    QC,
    TC,
    Block,
    Proposal,
    Timeout,
    Vote,
    timeout_statement,
    vote_statement,
)
from defl.output import SafetyRecord


def first_record(epoch: int, genesis_qc: QC) -> SafetyRecord:
    """The record that `node init` writes: nothing was ever signed."""
    return SafetyRecord(epoch, View(0), View(0), genesis_qc, genesis_qc, None, None, None, None)


class Safety:
    def __init__(self, record: SafetyRecord, chain: Digest, me: NodeId, signer: Signer) -> None:
        self.record = record
        self.changed = False
        self._chain = chain
        self._me = me
        self._signer = signer

    @property
    def next_view(self) -> View:
        """The view after the higher of high QC and high TC: where a restarted node continues."""
        high_tc = self.record.high_tc
        high_tc_view = high_tc.view if high_tc is not None else View(0)
        return View(max(self.record.high_qc.view, high_tc_view) + 1)

    def last_statements(self) -> list[Proposal | Vote | Timeout]:
        """The newest of each kind, in the order in which they were signed.

        Views only rise, and within one view a node proposes, then votes, then times out.
        """
        record = self.record
        by_view: list[tuple[View, Proposal | Vote | Timeout]] = []
        if record.last_proposal is not None:
            by_view.append((record.last_proposal.block.view, record.last_proposal))
        if record.last_vote is not None:
            by_view.append((record.last_vote.view, record.last_vote))
        if record.last_timeout is not None:
            by_view.append((record.last_timeout.view, record.last_timeout))
        return [statement for _, statement in sorted(by_view, key=lambda entry: entry[0])]

    def learn_qc(self, qc: QC) -> bool:
        if qc.view <= self.record.high_qc.view:
            return False
        self.record = replace(self.record, high_qc=qc)
        return True

    def learn_tc(self, tc: TC) -> bool:
        if self.record.high_tc is not None and tc.view <= self.record.high_tc.view:
            return False
        self.record = replace(self.record, high_tc=tc)
        return True

    def learn_commit(self, qc: QC) -> None:
        """Remember the QC that committed a block: the highest QC may be on a block missing here."""
        self.record = replace(self.record, commit_qc=qc)
        self.changed = True

    def observe(self, reason: str) -> None:
        """Sign nothing more in this epoch, even after a restart."""
        self.record = replace(self.record, observing=reason)
        self.changed = True

    def may_vote(self, view: View) -> bool:
        if self.record.observing is not None:
            return False
        return view > self.record.last_voted_view and view > self.record.last_timeout_view

    def sign_vote(self, block: Block, lock: QC) -> Vote:
        """`lock` is the QC that a vote for this block locks on, by the rule set."""
        if not self.may_vote(block.view):
            raise self._refusal("vote", block.view)
        record = self.record
        high_tc_view = record.high_tc.view if record.high_tc is not None else View(0)
        message = vote_statement(self._chain, record.epoch, block.view, block.id)
        vote = Vote(
            epoch=record.epoch,
            view=block.view,
            block=block.id,
            author=self._me,
            signature=self._signer.sign(message),
            high_qc_view=record.high_qc.view,
            high_tc_view=high_tc_view,
        )
        self.record = replace(
            record,
            last_voted_view=block.view,
            last_vote=vote,
            lock=lock if lock.view > record.lock.view else record.lock,
        )
        self.changed = True
        return vote

    def may_time_out(self, view: View) -> bool:
        return self.record.observing is None and view > self.record.last_timeout_view

    def sign_timeout(self, view: View) -> Timeout:
        if not self.may_time_out(view):
            raise self._refusal("timeout", view)
        record = self.record
        high_qc = record.high_qc
        tc = (
            record.high_tc
            if record.high_tc is not None and record.high_tc.view == view - 1
            else None
        )
        message = timeout_statement(self._chain, record.epoch, view, high_qc.view)
        timeout = Timeout(record.epoch, view, high_qc, tc, self._me, self._signer.sign(message))
        self.record = replace(record, last_timeout_view=view, last_timeout=timeout)
        self.changed = True
        return timeout

    def may_propose(self, view: View) -> bool:
        if self.record.observing is not None:
            return False
        last = self.record.last_proposal
        return last is None or view > last.block.view

    def sign_proposal(self, block: Block) -> Proposal:
        if not self.may_propose(block.view):
            raise self._refusal("proposal", block.view)
        message = statement(Tag.PROPOSAL, self._chain, self.record.epoch, block.view, block.id)
        proposal = Proposal(block, self._signer.sign(message))
        self.record = replace(self.record, last_proposal=proposal)
        self.changed = True
        return proposal

    def _refusal(self, kind: str, view: View) -> SigningRefused:
        record = self.record
        proposed = View(0) if record.last_proposal is None else record.last_proposal.block.view
        return SigningRefused(
            f"no {kind} is signed for view {view}: this node has voted up to view "
            f"{record.last_voted_view}, timed out up to {record.last_timeout_view}, proposed up to "
            f"{proposed}" + (f", and observes: {record.observing}" if record.observing else "")
        )
