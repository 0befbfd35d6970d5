"""Transactions on their way into a block, kept and gossiped until committed or obsolete.

Bounded by what they are: one UPD, AGG and CHANGE per author for each of the next two rounds, and
two APPROVEs per author and one READY per key for each change that the ledger has recorded.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from defl.changes import Approve
from defl.ids import NodeId
from defl.messages import Evidence, Slot, Transaction, Upd, slot_of
from defl.verifier import IsProven, contradict

# An author's approvals in one block. There may be as many as changes are pending.
APPROVALS_AT_ONCE = 4


class Mempool:
    def __init__(self) -> None:
        self._slots: dict[Slot, Transaction] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, transaction: Transaction) -> Evidence | None:
        """Keep the first transaction of a slot; a contradicting one is evidence."""
        earlier = self._slots.setdefault(slot_of(transaction), transaction)
        if (
            isinstance(earlier, Upd)
            and isinstance(transaction, Upd)
            and contradict(earlier, transaction)
        ):
            return Evidence(earlier, transaction)
        return None

    def wants(self, transaction: Transaction, is_proven: IsProven) -> bool:
        """Its slot is free, or it is the first contradiction of its author, which is evidence."""
        earlier = self._slots.get(slot_of(transaction))
        if earlier is None:
            return True
        if not isinstance(earlier, Upd) or not isinstance(transaction, Upd):
            return False
        return contradict(earlier, transaction) and not is_proven(transaction.author, Upd)

    def keep_only(self, wanted: Callable[[Transaction], bool]) -> None:
        self._slots = {slot: tx for slot, tx in self._slots.items() if wanted(tx)}

    def live(self, is_live: Callable[[Transaction], bool]) -> tuple[Transaction, ...]:
        return _at_once(tx for tx in self._slots.values() if is_live(tx))

    def any_live(self, is_live: Callable[[Transaction], bool]) -> bool:
        return any(is_live(tx) for tx in self._slots.values())

    def without(
        self, transactions: Iterable[Transaction], is_live: Callable[[Transaction], bool]
    ) -> tuple[Transaction, ...]:
        """Live transactions that are not yet in these, the uncommitted ones of a chain."""
        taken = {slot_of(tx) for tx in transactions}
        return _at_once(tx for slot, tx in self._slots.items() if slot not in taken and is_live(tx))


def _at_once(transactions: Iterable[Transaction]) -> tuple[Transaction, ...]:
    """As many as one block or frame takes; the rest follows in the next."""
    approvals: Counter[NodeId] = Counter()
    chosen = []
    for transaction in transactions:
        if isinstance(transaction, Approve):
            approvals[transaction.author] += 1
            if approvals[transaction.author] > APPROVALS_AT_ONCE:
                continue
        chosen.append(transaction)
    return tuple(chosen)
