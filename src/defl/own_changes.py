"""What this node says about the membership: its operator's proposals and approvals, and, while it
is a guest, that it is ready.

A transaction counts in the round that it names. Until the ledger has recorded it, this node signs
it again in each round.
"""

from msgspec.structs import replace

from defl.changes import Approve, Change, Operation, Ready
from defl.committee import Federation
from defl.crypto import Signer
from defl.ids import OUTSIDER, Digest, NodeId, Round
from defl.ledger import LedgerState
from defl.messages import Transaction
from defl.succession import PendingChange

# Approvals that wait for the ledger; the operator gives them one by one.
APPROVALS_MAX = 100


class OwnChanges:
    def __init__(self, federation: Federation, me: NodeId, signer: Signer) -> None:
        self._federation = federation
        self._me = me
        self._signer = signer
        self._proposed: tuple[Operation, ...] | None = None
        self._answers: dict[Digest, bool] = {}  # does the operator agree to this change?
        self._signed_in: dict[object, Round] = {}  # the newest round of each transaction

    @property
    def pending(self) -> bool:
        return self._proposed is not None or bool(self._answers)

    def propose(self, operations: tuple[Operation, ...]) -> None:
        self._proposed = operations

    def approve(self, change: Digest, *, agrees: bool = True) -> None:
        """Agree to a change, or withdraw this node's approval; the newest answer counts."""
        if change in self._answers or len(self._answers) < APPROVALS_MAX:
            self._answers[change] = agrees

    def due(self, state: LedgerState) -> list[Transaction]:
        """The transactions to submit now, each once per round."""
        round_ = Round(state.round + 1)
        if self._me == OUTSIDER or state.ended or round_ > self._federation.rounds:
            return []
        self._forget_recorded(state)
        due: list[Transaction] = []
        own = state.change_of(self._me)
        may_change = own is None or own.round < round_
        if self._proposed is not None and may_change and self._first(Change, round_):
            due.append(self._sign(Change(round_, self._me, self._proposed, b"")))
        for digest, agrees in self._answers.items():
            change = state.change(digest)
            if change is None or self._me in change.withdrawn:  # then it may agree in the next
                continue
            if agrees and self._me in change.approvals:
                continue
            if self._first((digest, agrees), round_):
                due.append(self._sign(Approve(round_, self._me, digest, agrees, b"")))
        return due

    def ready(self, state: LedgerState, has: set[Digest], *, again: bool) -> Transaction | None:
        """A guest's READY for the open round, once and whenever it is `again` due, until the
        ledger has recorded it; `has`: the models that it holds."""
        key, round_ = self._signer.public_key, Round(state.round + 1)
        if self._me != OUTSIDER or state.ended or key not in state.wanted_keys:
            return None
        bases = [closed.base for closed in state.closed if closed.base in has]
        recorded = state.ready_in.get(key, 0) >= round_
        if not bases or recorded or not (self._first(Ready, round_) or again):
            return None
        return self._sign(Ready(round_, key, bases[-1], b""))

    def _forget_recorded(self, state: LedgerState) -> None:
        own = state.change_of(self._me)
        recorded = own.operations if own is not None else ()
        if self._proposed is not None and self._proposed == recorded:
            self._proposed = None
        for digest, agrees in list(self._answers.items()):
            change = state.change(digest)
            if self._is_answered(change, digest, agrees, Round(state.round + 1)):
                del self._answers[digest]

    def _is_answered(
        self, change: PendingChange | None, digest: Digest, agrees: bool, open_round: Round
    ) -> bool:
        """Whether the ledger has recorded this answer, and no transaction of this node's that is
        still on its way can undo it."""
        if change is None:
            return not agrees
        withdrew_in = self._signed_in.get((digest, False), Round(0))
        if agrees:
            return self._me in change.approvals and withdrew_in < open_round
        if self._me in change.approvals:
            return False
        return self._me in change.withdrawn or 0 < withdrew_in < open_round

    def _first(self, what: object, round_: Round) -> bool:
        if self._signed_in.get(what, Round(0)) >= round_:
            return False
        self._signed_in[what] = round_
        return True

    def _sign(self, unsigned: Change | Approve | Ready) -> Transaction:
        message = unsigned.statement(self._federation.chain, self._federation.epoch)
        return replace(unsigned, signature=self._signer.sign(message))
