"""Round state as a function of committed transactions alone (paper, Algorithm 2, made safe).

Nothing here may read a clock, a file or a peer: every honest node must reach the same state from
the same log. The client waits and fetches.
"""

from collections import Counter

import msgspec
from msgspec import Struct

from defl.committee import AggQuorum, Federation
from defl.ids import Digest, NodeId, Round, digest_of
from defl.messages import Agg, Block, Transaction, Upd
from defl.output import Reference, Response


class ClosedRound(Struct, frozen=True, array_like=True):
    """A round that is over: its updates all share one base."""

    round: Round
    block: Digest  # id of the block that closed it
    base: Digest  # proven by these updates as the model of the previous round
    updates: tuple[Reference, ...]  # in member order


class LedgerState(Struct, frozen=True, array_like=True):
    round: Round  # the newest closed round; 0 at the start
    current: tuple[Reference, ...]  # updates for round + 1, in member order
    voters: tuple[NodeId, ...]  # whose AGG for round + 1 is recorded, sorted
    closed: tuple[ClosedRound, ...]  # the last tau rounds, oldest first

    @property
    def last(self) -> ClosedRound | None:
        return self.closed[-1] if self.closed else None

    def update_of(self, author: NodeId) -> Reference | None:
        return next((ref for ref in self.current if ref.author == author), None)


_decoder = msgspec.msgpack.Decoder(LedgerState)


class Ledger:
    """The rules of one federation; it holds no state itself."""

    def __init__(self, federation: Federation) -> None:
        committee = federation.committee
        self._members = committee.size
        self._updates_min = committee.quorum  # n - f
        self._agg_quorum = (
            committee.quorum if federation.agg_quorum is AggQuorum.QUORUM else committee.faults + 1
        )
        self._tau = federation.tau
        self._rounds = federation.rounds

    def genesis(self) -> LedgerState:
        return LedgerState(Round(0), (), (), ())

    def encode(self, state: LedgerState) -> bytes:
        return msgspec.msgpack.encode(state)

    def decode(self, data: bytes) -> LedgerState:
        """Decode bytes whose hash is certified: a quorum has computed this state."""
        return _decoder.decode(data)

    def root_of(self, encoded: bytes) -> Digest:
        return digest_of(b"defl/state" + encoded)

    def live(self, state: LedgerState, transaction: Transaction) -> bool:
        """Would executing this transaction now change the state?"""
        if transaction.round != state.round + 1 or transaction.round > self._rounds:
            return False
        if isinstance(transaction, Agg):
            return transaction.author not in state.voters
        return state.update_of(transaction.author) is None

    def wanted(self, state: LedgerState, transaction: Transaction) -> bool:
        """Is it live, or may it become live when the open round closes?"""
        if transaction.round == state.round + 2:
            return transaction.round <= self._rounds
        return self.live(state, transaction)

    def execute(self, state: LedgerState, block: Block) -> tuple[LedgerState, tuple[Response, ...]]:
        responses = []
        for transaction in block.transactions:
            if isinstance(transaction, Upd):
                state, response = self._upd(state, transaction, block.id)
            else:
                state, response = self._agg(state, transaction, block.id)
            responses.append(response)
        return state, tuple(responses)

    def _upd(self, state: LedgerState, upd: Upd, block: Digest) -> tuple[LedgerState, Response]:
        if not self.live(state, upd):
            return state, Response.ALREADY_UPD  # the first committed update of an author wins
        reference = Reference(upd.author, upd.digest, upd.size, upd.base, upd.ackers, upd.signature)
        current = (*state.current, reference)
        state = msgspec.structs.replace(
            state, current=tuple(sorted(current, key=lambda ref: ref.author))
        )
        return self._close_if_due(state, block), Response.OK

    def _agg(self, state: LedgerState, agg: Agg, block: Digest) -> tuple[LedgerState, Response]:
        if agg.round != state.round + 1 or agg.round > self._rounds:
            return state, Response.ALREADY_AGG
        if agg.author not in state.voters:
            voters = tuple(sorted((*state.voters, agg.author)))
            state = msgspec.structs.replace(state, voters=voters)
        closed = self._close_if_due(state, block)
        if closed.round > state.round:
            return closed, Response.OK
        if len(state.voters) < self._agg_quorum:
            return state, Response.NOT_MEET_QUORUM
        return state, Response.NOT_ENOUGH_UPDATES

    def _close_if_due(self, state: LedgerState, block: Digest) -> LedgerState:
        if not state.current:
            return state
        base, sharing = Counter(ref.base for ref in state.current).most_common(1)[0]
        # n - f updates with one base: 2(n - f) > n, so no second base can ever reach it.
        if sharing < self._updates_min:
            return state
        if len(state.current) < self._members and len(state.voters) < self._agg_quorum:
            return state
        round_ = Round(state.round + 1)
        updates = tuple(ref for ref in state.current if ref.base == base)
        closed = (*state.closed, ClosedRound(round_, block, base, updates))
        return LedgerState(round_, (), (), closed[-self._tau :])
