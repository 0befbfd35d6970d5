"""Round state as a function of committed transactions alone (paper, Algorithm 2, made safe).

Nothing here may read a clock, a file or a peer: every honest node must reach the same state from
the same log. The client waits and fetches.
"""

from collections import Counter
from functools import cached_property

import msgspec
from msgspec import Struct

from defl.changes import Approve, Change, Ready
from defl.committee import AggQuorum, Federation
from defl.ids import Digest, NodeId, Round, digest_of
from defl.messages import Agg, Block, Transaction, Upd
from defl.output import ClosedRound, Reference, Response
from defl.succession import PendingChange, ReadyKey, next_membership, wanted_keys


class LedgerState(Struct, frozen=True, array_like=True, dict=True):
    round: Round  # the newest closed round; 0 at the start
    current: tuple[Reference, ...]  # updates for round + 1, in member order
    voters: tuple[NodeId, ...]  # whose AGG for round + 1 is recorded, sorted
    closed: tuple[ClosedRound, ...]  # the last tau rounds, oldest first
    changes: tuple[PendingChange, ...] = ()  # proposed in this epoch, in the log's order
    ready: tuple[ReadyKey, ...] = ()  # the newest READY of each key that a change wants
    ended: bool = False  # the last round of this epoch is closed, and another epoch follows

    @property
    def last(self) -> ClosedRound | None:
        return self.closed[-1] if self.closed else None

    @cached_property
    def wanted_keys(self) -> frozenset[bytes]:
        """The keys that pending changes would make members'. Each READY of a peer asks for them,
        before its signature is checked."""
        return wanted_keys(self.changes)

    @cached_property
    def ready_in(self) -> dict[bytes, Round]:
        """The newest round in which each key said that it is ready."""
        return {known.key: known.round for known in self.ready}

    def change(self, digest: Digest) -> PendingChange | None:
        return next((pending for pending in self.changes if pending.digest == digest), None)

    def change_of(self, author: NodeId) -> PendingChange | None:
        return next((pending for pending in self.changes if pending.author == author), None)

    def update_of(self, author: NodeId) -> Reference | None:
        return next((ref for ref in self.current if ref.author == author), None)


_decoder = msgspec.msgpack.Decoder(LedgerState)


def decode_state(data: bytes) -> LedgerState:
    """Decode bytes whose hash is certified: a quorum has computed this state."""
    return _decoder.decode(data)


class Ledger:
    """The rules of one epoch; it holds no state itself."""

    def __init__(self, federation: Federation, closed: tuple[ClosedRound, ...] = ()) -> None:
        """`closed`: the rounds that earlier epochs closed and that are still kept."""
        committee = federation.committee
        self._federation = federation
        self._closed = closed
        self._members = committee.size
        self._updates_min = committee.quorum  # n - f
        self._agg_quorum = (
            committee.quorum if federation.agg_quorum is AggQuorum.QUORUM else committee.faults + 1
        )
        self._tau = federation.tau
        self._rounds = federation.rounds

    def genesis(self) -> LedgerState:
        return LedgerState(Round(self._federation.first_round - 1), (), (), self._closed)

    def encode(self, state: LedgerState) -> bytes:
        return msgspec.msgpack.encode(state)

    def decode(self, data: bytes) -> LedgerState:
        """Decode bytes whose hash is certified: a quorum has computed this state."""
        return decode_state(data)

    def root_of(self, encoded: bytes) -> Digest:
        return digest_of(b"defl/state" + encoded)

    def live(self, state: LedgerState, transaction: Transaction) -> bool:
        """Would executing this transaction now change the state?"""
        open_round = state.round + 1
        if state.ended or transaction.round > self._rounds:
            return False
        if isinstance(transaction, Ready):
            return _counts(state, transaction)
        if transaction.round != open_round:
            return False
        match transaction:
            case Upd(author=author):
                return state.update_of(author) is None
            case Agg(author=author):
                return author not in state.voters
            case Change(author=author):
                pending = state.change_of(author)
                return pending is None or pending.round < open_round
            case Approve(author=author, change=digest, agrees=agrees):
                change = state.change(digest)
                if change is None or author in change.withdrawn:
                    return False  # a withdrawal is final for its round: no old APPROVE undoes it
                return not agrees or author not in change.approvals

    def wanted(self, state: LedgerState, transaction: Transaction) -> bool:
        """Is it live, or may it become live when the open round closes?"""
        if isinstance(transaction, Upd | Agg | Change) and transaction.round == state.round + 2:
            return transaction.round <= self._rounds and not state.ended
        return self.live(state, transaction)

    def execute(self, state: LedgerState, block: Block) -> tuple[LedgerState, tuple[Response, ...]]:
        responses = []
        for transaction in block.transactions:
            if state.ended:  # also inside the block that ended the epoch
                responses.append(Response.EPOCH_ENDED)
                continue
            match transaction:
                case Upd():
                    state, response = self._upd(state, transaction, block.id)
                case Agg():
                    state, response = self._agg(state, transaction, block.id)
                case Change() | Approve() | Ready():
                    state, response = self._member_change(state, transaction)
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

    def _member_change(
        self, state: LedgerState, transaction: Change | Approve | Ready
    ) -> tuple[LedgerState, Response]:
        if not self.live(state, transaction):
            return state, Response.NOT_PENDING
        match transaction:
            case Change(author=author):
                digest, same = transaction.digest, state.change(transaction.digest)
                withdrawn = same.withdrawn if same is not None else ()
                approvals = (author,) if author not in withdrawn else ()  # who proposes it approves
                pending = PendingChange(
                    transaction.round, author, digest, transaction.operations, approvals, withdrawn
                )
                others = tuple(change for change in state.changes if change.author != author)
                state = msgspec.structs.replace(state, changes=(*others, pending))
            case Approve(author=author, change=digest, agrees=agrees):
                answered = PendingChange.approved_by if agrees else PendingChange.withdrawn_by
                changes = tuple(
                    answered(change, author) if change.digest == digest else change
                    for change in state.changes
                )
                state = msgspec.structs.replace(state, changes=changes)
            case Ready(key=key, round=round_):
                others_ready = tuple(ready for ready in state.ready if ready.key != key)
                state = msgspec.structs.replace(state, ready=(*others_ready, ReadyKey(key, round_)))
        keys = wanted_keys(state.changes)
        ready = tuple(ready for ready in state.ready if ready.key in keys)
        return msgspec.structs.replace(state, ready=ready), Response.OK

    def _close_if_due(self, state: LedgerState, block: Digest) -> LedgerState:
        if not state.current:
            return state
        base, sharing = Counter(ref.base for ref in state.current).most_common(1)[0]
        # n - f updates with one base: 2(n - f) > n, so no second base can ever reach it.
        if sharing < self._updates_min:
            return state
        if len(state.current) < self._members and len(state.voters) < self._agg_quorum:
            return state
        facts = self._federation
        round_ = Round(state.round + 1)
        updates = tuple(ref for ref in state.current if ref.base == base)
        newest = ClosedRound(round_, block, base, updates, facts.epoch, facts.updates_faults_max)
        closed = (*state.closed, newest)[-self._tau :]
        changes = tuple(
            msgspec.structs.replace(change, withdrawn=())
            for change in state.changes
            if change.operations
        )
        following = next_membership(facts, round_, changes, state.ready)
        return LedgerState(
            round_, (), (), closed, changes, state.ready, ended=following is not None
        )


def _counts(state: LedgerState, ready: Ready) -> bool:
    """Is this READY news, of a key that a change wants, and of a machine that is up to date?"""
    if not state.round <= ready.round <= state.round + 1 or ready.round < 1:
        return False
    if ready.key not in state.wanted_keys or state.ready_in.get(ready.key, 0) >= ready.round:
        return False
    return any(closed.base == ready.model for closed in state.closed)
