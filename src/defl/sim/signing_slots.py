"""What each honest machine has signed: one statement for each slot, whatever happens to its disk.

A slot is an epoch followed by a view or a round.
"""

from collections import defaultdict
from collections.abc import Callable

from defl.ids import NodeId
from defl.messages import Message, Offer, Proposal, Timeout, Vote
from defl.sim.epoch_facts import EpochFacts
from defl.sim.recount import REMEMBERED, forget_oldest
from defl.sim.verdicts import NOTHING_SIGNED_TWICE

Slot = tuple[int, ...]


class SigningSlots:
    def __init__(
        self,
        facts: EpochFacts,
        honest: Callable[[NodeId], bool],
        violate: Callable[[str, str], None],
    ) -> None:
        self._facts = facts
        self._honest = honest
        self._violate = violate
        self._signed: dict[tuple[NodeId, str], dict[Slot, object]] = defaultdict(dict)
        # Honest machines whose disk is rolled back: they may contradict what too few others know.
        self.rolled_back: set[NodeId] = set()
        self._took_in: dict[tuple[NodeId, str, Slot], set[NodeId]] = {}

    def sign(self, node: NodeId, kind: str, slot: Slot, value: object) -> None:
        """`slot` grows over time, so one older than all that are kept cannot be honest."""
        signed = self._signed[node, kind]
        if slot not in signed and len(signed) == REMEMBERED and slot < next(iter(signed)):
            self._violate(NOTHING_SIGNED_TWICE, f"node {node} signs the long past {kind} {slot}")
        elif signed.setdefault(slot, value) != value and not self._may_forget(node, kind, slot):
            self._violate(NOTHING_SIGNED_TWICE, f"node {node} contradicts its own {kind} {slot}")
        forget_oldest(signed)

    def took_in(self, node: NodeId, message: Message, epoch: int) -> None:
        """Record which honest nodes know a statement of a rolled-back machine."""
        match message:
            case Vote(author=author, view=view):
                kind, slot = "vote", (epoch, int(view))
            case Timeout(author=author, view=view):
                kind, slot = "timeout", (epoch, int(view))
            case Proposal(block=block):
                author = block.header.author
                kind, slot = "proposal", (epoch, int(block.view))
            case Offer(author=author, round=round_):
                kind, slot = "offer", (epoch, int(round_))
            case _:
                return
        machine = self._facts.machine_of(author, epoch)
        if machine is not None and machine in self.rolled_back and self._honest(node):
            self._took_in.setdefault((machine, kind, slot), set()).add(node)
            forget_oldest(self._took_in)

    def forgot(self, node: NodeId) -> None:
        """The process died, and with it its memory of what others signed."""
        for machines in self._took_in.values():
            machines.discard(node)

    def _may_forget(self, node: NodeId, kind: str, slot: Slot) -> bool:
        """A rolled-back node may contradict what fewer than q others know, and nothing else."""
        known_to = self._took_in.get((node, kind, slot), set())
        quorum = self._facts.federation(slot[0]).committee.quorum
        return node in self.rolled_back and len(known_to) < quorum
