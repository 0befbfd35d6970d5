"""Transactions on their way into a block, kept and gossiped until committed or obsolete.

Bounded by what they are: one UPD and one AGG per author for each of the next two rounds.
"""

from collections.abc import Callable, Iterable

from defl.ids import NodeId, Round
from defl.messages import Evidence, Transaction, Upd
from defl.verifier import IsProven, contradict

Slot = tuple[type[Transaction], Round, NodeId]


def slot_of(transaction: Transaction) -> Slot:
    return type(transaction), transaction.round, transaction.author


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
        return tuple(tx for tx in self._slots.values() if is_live(tx))

    def any_live(self, is_live: Callable[[Transaction], bool]) -> bool:
        return any(is_live(tx) for tx in self._slots.values())

    def without(
        self, transactions: Iterable[Transaction], is_live: Callable[[Transaction], bool]
    ) -> tuple[Transaction, ...]:
        """Live transactions that are not yet in these, the uncommitted ones of a chain."""
        taken = {slot_of(tx) for tx in transactions}
        return tuple(tx for slot, tx in self._slots.items() if slot not in taken and is_live(tx))
