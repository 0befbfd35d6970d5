"""What all liars share: the participant that they wrap, their key, and what they sign with it.

A liar overrides `instead` (what it sends in place of an honest message) or `besides` (what it sends
in addition). The lies themselves are in the other modules of this package.
"""

import random
from collections.abc import Iterable

from msgspec.structs import replace

from defl.committee import Committee, Federation
from defl.crypto import Signer, Tag, statement
from defl.ids import OUTSIDER, Digest, NodeId, Round, View
from defl.messages import (
    QC,
    Agg,
    Block,
    Proposal,
    Timeout,
    Transaction,
    Vote,
    timeout_statement,
    transactions_root,
    vote_statement,
)
from defl.output import Envelope, Event, Output, ServeChunk, ServeHandover
from defl.participant import Participant

Item = Envelope | ServeChunk | ServeHandover
# A flood lasts this long after a round opens: a round that waits minutes for a member would only
# make the same flood longer to simulate.
FLOOD_S = 30.0


class Liar:
    def __init__(self, participant: Participant, signer: Signer, rng: random.Random) -> None:
        self.participant = participant
        self._signer = signer
        self._rng = rng
        self._flood_began: tuple[Round, float] = (Round(-1), 0.0)

    # The facts are those of the epoch that it is in.

    @property
    def _federation(self) -> Federation:
        return self.participant.federation

    @property
    def _committee(self) -> Committee:
        return self.participant.federation.committee

    @property
    def _chain(self) -> Digest:
        return self.participant.federation.chain

    @property
    def _epoch(self) -> int:
        return self.participant.epoch

    @property
    def _me(self) -> NodeId:
        return self.participant.me

    @property
    def _peers(self) -> tuple[NodeId, ...]:
        return tuple(m for m in self._committee.members if m != self._me)

    def handle(self, event: Event, now: float) -> Output:
        output = self.participant.handle(event, now)
        if self._me == OUTSIDER:
            return output  # nobody listens to the lies of a member that is gone
        self._keep_talking()
        sent = [lie for item in output.send for lie in self.instead(item)]
        sent.extend(self.besides(event, now))
        return replace(output, send=tuple(map(self._in_epoch, sent)))

    def _in_epoch(self, item: Item) -> Item:
        """Its lies are about the present epoch, unless they state another."""
        epoch = self._epoch
        if epoch and isinstance(item, Envelope) and not item.epoch:
            return replace(item, epoch=epoch)
        return item

    def _keep_talking(self) -> None:
        """An honest node asks the others before it signs, and falls silent when they show it
        signatures beyond its record. A liar does neither: those signatures are its lies."""
        self.participant.replica.muted = False
        self.participant.pool.muted = self.participant.client.muted = False
        self.participant.client.observing = False

    def instead(self, item: Item) -> Iterable[Item]:
        """What is sent in place of an honest participant's message."""
        return (item,)

    def besides(self, event: Event, now: float) -> Iterable[Item]:  # noqa: ARG002
        """What is sent in addition."""
        return ()

    def _may_flood(self, now: float) -> bool:
        if self._flood_began[0] != self._round:
            self._flood_began = (self._round, now)
        return now < self._flood_began[1] + FLOOD_S

    @property
    def _halves(self) -> tuple[tuple[NodeId, ...], tuple[NodeId, ...]]:
        """The peers in two halves; if their number is odd, the middle one is in both."""
        size = (len(self._peers) + 1) // 2
        return self._peers[:size], self._peers[-size:]

    @property
    def _view(self) -> View:
        return self.participant.replica.view

    @property
    def _round(self) -> Round:
        """The newest closed round."""
        return self.participant.state.round

    # --- Statements that are validly signed, true or not -----------------------------------

    def _vote(self, view: View, block: Digest, epoch: int | None = None) -> Vote:
        epoch = self._epoch if epoch is None else epoch
        signature = self._signer.sign(vote_statement(self._chain, epoch, view, block))
        high = self.participant.replica.record.high_qc.view
        return Vote(epoch, view, block, self._me, signature, high, View(0))

    def _timeout(self, view: View, high_qc: QC, epoch: int | None = None) -> Timeout:
        epoch = self._epoch if epoch is None else epoch
        message = timeout_statement(self._chain, epoch, view, high_qc.view)
        return Timeout(epoch, view, high_qc, None, self._me, self._signer.sign(message))

    def _agg(self, round_: Round) -> Agg:
        unsigned = Agg(round_, self._me, b"")
        return replace(
            unsigned, signature=self._signer.sign(unsigned.statement(self._chain, self._epoch))
        )

    def _proposal(self, block: Block) -> Proposal:
        header = block.header
        message = statement(Tag.PROPOSAL, self._chain, header.epoch, header.view, header.id)
        return Proposal(block, self._signer.sign(message))

    def _with_transactions(
        self, proposal: Proposal, transactions: tuple[Transaction, ...]
    ) -> Proposal:
        """A proposal for the same place in the chain with other transactions."""
        header = replace(proposal.block.header, transactions_root=transactions_root(transactions))
        return self._proposal(Block(header, transactions))

    def _noise(self) -> Digest:
        return Digest(self._rng.randbytes(32))
