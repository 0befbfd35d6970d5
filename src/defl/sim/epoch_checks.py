"""What must hold when members come and go: across boundaries, and about who has a say.

Like the other checks, these look at honest nodes from outside. `Honest` is asked about machines.
"""

from collections.abc import Callable, Iterable

from defl.changes import Ready
from defl.committee import Federation
from defl.crypto import Scheme
from defl.ids import Digest, NodeId, Round
from defl.ledger import LedgerState
from defl.messages import Block
from defl.output import ClosedRound
from defl.participant import Participant
from defl.sim.disk import Disk
from defl.sim.epoch_facts import EpochFacts
from defl.sim.recount import forget_oldest
from defl.sim.verdicts import (
    MEMBERS_ONLY,
    MODEL_GOES_ON,
    NEWEST_EPOCH,
    ONE_EPOCH_PER_ROUND,
    ONE_HANDOVER,
    SURVIVES_BOUNDARY,
)

Honest = Callable[[NodeId], bool]
Violate = Callable[[str, str], None]
# A statement about a round: who signs it, of which kind, the round, and about whose update.
RoundSlot = tuple[NodeId, str, Round, NodeId]


class EpochChecks:
    def __init__(self, facts: EpochFacts, scheme: Scheme, honest: Honest, violate: Violate) -> None:
        self._facts = facts
        self._scheme = scheme
        self._honest = honest
        self._violate = violate
        self._signed_in: dict[RoundSlot, int] = {}
        self._checked: dict[Digest, None] = {}  # blocks

    def entered(self, node: NodeId, federation: Federation) -> bool:
        """An honest node has decided that this epoch begins; True if it is the first one."""
        is_first = federation.epoch > self._facts.newest.epoch
        known = self._facts.add(federation)
        if known != federation:
            sentence = f"node {node} begins epoch {federation.epoch} with other members"
            self._violate(ONE_HANDOVER, sentence)
        return is_first

    def signed(self, slot: RoundSlot, epoch: int) -> None:
        """An honest node signed a statement about a round."""
        first = self._signed_in.setdefault(slot, epoch)
        if first != epoch:
            node, kind, round_, _ = slot
            sentence = f"node {node} signs its {kind} of round {round_} in {first} and {epoch}"
            self._violate(ONE_EPOCH_PER_ROUND, sentence)
        forget_oldest(self._signed_in)

    # --- Who has a say ---------------------------------------------------------------------

    def block(self, block: Block) -> None:
        """A committed block is its leader's, and each transaction its author's, by the keys of
        its epoch. READY alone is signed by a key that is no member's yet."""
        if block.id in self._checked:
            return
        self._checked[block.id] = None
        forget_oldest(self._checked)
        federation = self._facts.federation(block.header.epoch)
        committee, epoch = federation.committee, federation.epoch
        self._only_members(epoch, "proposes a block", (block.header.author,))
        for tx in block.transactions:
            if isinstance(tx, Ready):
                key = tx.key
            elif committee.has(tx.author):
                key = committee.keys[tx.author]
            else:
                key = b""
            message = tx.statement(federation.chain, epoch)
            if not self._scheme.verify(key, message, tx.signature):
                name = type(tx).__name__
                self._violate(MEMBERS_ONLY, f"epoch {epoch}: nobody signed {name} of {tx.author}")

    def state(self, state: LedgerState, epoch: int) -> None:
        """Whoever is named in a ledger is a member."""
        self._only_members(epoch, "has an update", (ref.author for ref in state.current))
        self._only_members(epoch, "closes a round", state.voters)
        for change in state.changes:
            self._only_members(epoch, "proposes a change", (change.author,))
            self._only_members(epoch, "approves a change", change.approvals)
        for closed in state.closed:
            authors = (ref.author for ref in closed.updates)
            self._only_members(closed.epoch, f"is in round {closed.round}", authors)

    def _only_members(self, epoch: int, what: str, members: Iterable[NodeId]) -> None:
        committee = self._facts.federation(epoch).committee
        for member in members:
            if not committee.has(member):
                self._violate(MEMBERS_ONLY, f"epoch {epoch}: {member} is no member and {what}")

    # --- What stays ------------------------------------------------------------------------

    def goes_on(self, closed: ClosedRound, models: dict[Round, Digest]) -> None:
        """A round is trained from the model that honest nodes computed for the round before."""
        model = models.get(Round(closed.round - 1))
        if model is not None and model != closed.base:
            sentence = f"round {closed.round} is trained from another model than the last one's"
            self._violate(MODEL_GOES_ON, sentence)

    def survives(
        self, state: LedgerState, epoch: int, disks: dict[NodeId, Disk], *, leavers: bool
    ) -> None:
        """What the members of this epoch need of the one before is held by honest ones of them.
        `disks`: of honest machines; `leavers`: those count too, since the members lost power, and
        leavers serve until the members can do without them."""
        newest = state.last
        if newest is None:
            return
        members = {*self._facts.members(epoch)}
        if leavers and epoch > 0:
            members.update(self._facts.members(epoch - 1))
        held = [disk for machine, disk in disks.items() if machine in members]
        needed = {ref.digest: f"the update of {ref.author}" for ref in newest.updates}
        needed |= {ref.digest: f"the open update of {ref.author}" for ref in state.current}
        for digest, what in {newest.base: "the base", **needed}.items():
            if not any(disk.holds(digest) for disk in held):
                where = f"round {newest.round}, epoch {epoch}"
                self._violate(SURVIVES_BOUNDARY, f"{where}: no member holds {what}")

    def arrived(self, machine: NodeId, participant: Participant) -> None:
        """At the end: is an honest machine where it belongs?"""
        newest = self._facts.newest.epoch
        if machine in self._facts.members(newest):
            if participant.epoch != newest:
                sentence = f"node {machine} is in epoch {participant.epoch} of {newest}"
                self._violate(NEWEST_EPOCH, sentence)
        elif self._facts.was_member(machine) and not participant.departed:
            self._violate(NEWEST_EPOCH, f"node {machine} does not know that it has left")
