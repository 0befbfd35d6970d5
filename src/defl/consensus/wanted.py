"""Which part of a peer's message is worth verifying, given what is known already.

Read-only: the answer depends on verified statements alone, so an unverified claim cannot keep a
true statement out. A message that is not worth verifying may still be a question from a peer that
lags; the connection identifies the peer.
"""

from collections.abc import Callable
from typing import Any

from defl.consensus.chain import Chain
from defl.consensus.pacemaker import Pacemaker
from defl.consensus.rules import admissible
from defl.consensus.safety import Safety
from defl.consensus.sync import Sync
from defl.consensus.tally import VIEWS_AHEAD_MAX, Tally
from defl.fields import is_in
from defl.ids import NodeId, View
from defl.messages import (
    QC,
    TC,
    Block,
    Blocks,
    Certificates,
    Proposal,
    SignedHeader,
    Snapshot,
    Timeout,
    Vote,
)
from defl.verifier import IsProven, contradict


class Wanted:
    def __init__(
        self,
        me: NodeId,
        leader: Callable[[View], NodeId],
        safety: Safety,
        chain: Chain[Any],
        pace: Pacemaker,
        tally: Tally,
        sync: Sync,
    ) -> None:
        self._me = me
        self._leader = leader
        self._safety = safety
        self._chain = chain
        self._pace = pace
        self._tally = tally
        self._sync = sync

    def in_window(self, view: View) -> bool:
        return self._pace.view - 1 <= view <= self._pace.view + VIEWS_AHEAD_MAX

    def vote(self, vote: Vote, is_proven: IsProven) -> bool:
        if not self.in_window(vote.view):
            return False
        counted = self._tally.vote(vote.view, vote.author)
        return counted is None or (contradict(counted, vote) and not is_proven(vote.author, Vote))

    def timeout(self, timeout: Timeout, is_proven: IsProven) -> bool:
        if self.certificates(timeout.high_qc, timeout.tc) is not None:
            return True
        if not self.in_window(timeout.view):
            return False
        counted = self._tally.timeout(timeout.view, timeout.author)
        return counted is None or (
            contradict(counted, timeout) and not is_proven(timeout.author, Timeout)
        )

    def certificates(self, qc: QC, tc: TC | None) -> Certificates | None:
        """The certificates that bring something new."""
        if tc is not None and self._is_news_tc(tc):
            return Certificates(qc if self._is_news(qc) else tc.qc, tc)
        return Certificates(qc, None) if self._is_news(qc) else None

    def _is_news(self, qc: QC) -> bool:
        record = self._safety.record
        return qc.view > record.high_qc.view or (
            qc.view > record.last_voted_view and self._shows_own_signature(qc.signers)
        )

    def _is_news_tc(self, tc: TC) -> bool:
        return (
            tc.view >= self._pace.view
            or self._is_news(tc.qc)
            or (
                tc.view > self._safety.record.last_timeout_view
                and self._shows_own_signature(tc.signers)
            )
        )

    def _shows_own_signature(self, signers: bytes) -> bool:
        """Even an old certificate makes this node an observer, if it signed beyond its record."""
        return self._safety.record.observing is None and is_in(signers, self._me)

    def proposal(self, proposal: Proposal, is_proven: IsProven) -> Proposal | Certificates | None:
        """The proposal, or only the certificates that it carries, or None."""
        block = proposal.block
        if self._wants_proposed(block, is_proven):
            return proposal
        return self.certificates(block.qc, block.header.tc)

    def _wants_proposed(self, block: Block, is_proven: IsProven) -> bool:
        if not admissible(block.header, self._leader(block.view)):
            return False
        if not self._tally.keeps_proposals_of(block.view, now_in=self._pace.view):
            return False
        if block.height <= self._chain.root.height:
            return False
        first = self._tally.proposal(block.view)
        if first is None:
            return True
        if first.block.id == block.id:
            return self._chain.get(block.id) is None
        return block.id == self._sync.wanted or not is_proven(block.header.author, SignedHeader)

    def blocks(self, blocks: tuple[Block, ...]) -> Blocks | None:
        """The requested blocks: hash-linked from the wanted one down to those that are here."""
        kept: list[Block] = []
        wanted = self._sync.wanted
        for block in blocks:
            if block.id != wanted or block.height <= self._chain.head.height:
                break
            kept.append(block)
            wanted = block.parent if self._chain.get(block.parent) is None else None
        return Blocks(tuple(kept)) if kept else None

    def snapshot(self, snapshot: Snapshot) -> bool:
        """Only a node that misses blocks needs one, and it never returns to an older state."""
        return self._sync.wanted is not None and snapshot.block.height > self._chain.head.height
