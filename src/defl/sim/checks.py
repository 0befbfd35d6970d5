"""What must hold in every run, whatever the seed, the faults and up to f liars.

The checker watches honest nodes from outside: what they send, commit and store. It shares no
decision with the code that it judges. Nodes are numbered as machines; `EpochFacts` says which
member of an epoch each one is.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from defl.changes import Approve, Change, Ready
from defl.committee import Federation
from defl.crypto import Scheme
from defl.ids import Digest, NodeId, Round, View
from defl.ledger import LedgerState
from defl.messages import (
    Agg,
    Attestation,
    Blocks,
    Certificates,
    Evidence,
    Gossip,
    Handover,
    Message,
    Offer,
    Proposal,
    Snapshot,
    StoreAck,
    Timeout,
    Transaction,
    Upd,
    Vote,
)
from defl.output import (
    Attested,
    Committed,
    EvidenceFound,
    ModelReady,
    Notice,
    Observing,
    RoundClosed,
    SafetyBroken,
)
from defl.participant import Participant
from defl.sim.bounds import Bounds
from defl.sim.disk import Disk
from defl.sim.durability import AckedValues, PowerCutCheck
from defl.sim.epoch_checks import EpochChecks
from defl.sim.epoch_facts import EpochFacts
from defl.sim.presence import MemberPresence
from defl.sim.recount import Recount, forget_oldest
from defl.sim.signing_slots import SigningSlots
from defl.sim.verdicts import (
    NO_CONFLICTING_COMMITS,
    NO_MEMBER_LEFT_BEHIND,
    NOTHING_SIGNED_TWICE,
    ONE_UPDATE,
    RETRIEVABLE,
    ROUNDS_CLOSE,
    SAME_LEDGER,
    SAME_LOG,
    SAME_MODEL,
    TRANSACTIONS,
    CheckVerdicts,
)

Place = tuple[int, int]  # in the log: epoch and height


@dataclass(frozen=True, slots=True)
class HonestNode:
    """An honest machine at the end of a run."""

    machine: NodeId
    participant: Participant
    disk: Disk


def views_to_close_max(members: int) -> int:
    """In a calm network: each round's n UPDs may arrive one by one, each needs a chain of four
    certified blocks, every (n/f)-th leader may be a liar that breaks the chain, and the AGG timer
    may expire in a failed view."""
    return 16 * members + 64


class Checker:
    def __init__(
        self, federation: Federation, scheme: Scheme, honest: Callable[[NodeId], bool]
    ) -> None:
        """`federation`: the facts of epoch 0; `honest` is asked about machines."""
        self.facts = EpochFacts(federation)
        self._scheme = scheme
        self._honest = honest
        self._verdicts = CheckVerdicts()
        self._epochs = EpochChecks(self.facts, scheme, honest, self.violate)
        self._slots = SigningSlots(self.facts, honest, self.violate)
        self._acked_values = AckedValues(federation, self.violate)
        self._member_presence = MemberPresence(self.violate)
        self._power_cuts = PowerCutCheck(self.violate)
        self._recounts: dict[int, Recount] = {}  # by epoch
        self._log: dict[Place, Digest] = {}  # the first committed block
        self._heights: dict[NodeId, dict[Place, Digest]] = defaultdict(dict)
        self._newest: dict[NodeId, Place] = {}  # committed
        self._models: dict[Round, Digest] = {}
        self._updates: dict[tuple[Round, NodeId], Digest] = {}
        self._submitted: set[tuple[int, Transaction]] = set()  # with their epochs
        self._attested: dict[NodeId, Round] = {}  # the last model of which a node has proof
        self._round = Round(0)  # the newest closed one
        self._since: tuple[int, View] = (0, View(0))  # from this epoch and view on it is open
        self.closed_at: dict[Round, float] = {}
        self.last_committed: dict[int, tuple[int, View]] = {}  # by epoch: height and view
        self.views_per_round_max = 0
        self.power_was_lost = False  # by some machine, with all that it had not synced
        self.quiet = True  # only liars hinder progress now, so views per round are judged
        self._bounds = Bounds(self.violate)
        self.largest = self._bounds.largest
        # Honest machines whose disk is rolled back: they may contradict what too few others know.
        self.rolled_back = self._slots.rolled_back
        self.away = self._member_presence.away
        self.down = self._member_presence.down
        self.up = self._member_presence.up
        self.took_in = self._slots.took_in
        self.forgot = self._slots.forgot
        self._watch(federation)

    def violate(self, check: str, sentence: str) -> None:
        self._verdicts.violate(check, sentence)

    @property
    def violations(self) -> list[str]:
        return self._verdicts.violations

    @property
    def verdicts(self) -> dict[str, bool]:
        return self._verdicts.by_check()

    # --- While it runs ---------------------------------------------------------------------

    def disturbed(self, epoch: int, view: View) -> None:
        """A disturbance ends (a heal, a restart): views until the next close count from here."""
        self._since = (epoch, view)

    def entered(
        self, node: NodeId, participant: Participant, disks: Callable[[], dict[NodeId, Disk]]
    ) -> None:
        """A node is in another epoch from now on; `disks`: of the honest machines."""
        if not self._honest(node):
            return
        is_first = self._epochs.entered(node, participant.federation)
        if is_first:
            self._watch(participant.federation)
            leavers = self.power_was_lost
            self._epochs.survives(participant.state, participant.epoch, disks(), leavers=leavers)

    def _watch(self, federation: Federation) -> None:
        """The members of this epoch take part from now on."""
        self._recounts[federation.epoch] = Recount(federation, self._scheme, self.violate)
        for machine in self.facts.members(federation.epoch):
            if self._honest(machine):
                self._member_presence.join(machine)

    def restarted(self, node: NodeId, place: Place) -> None:
        """A restarted node must still have its newest committed block."""
        newest = self._newest.get(node, (0, 0))
        if self._honest(node) and node not in self.rolled_back and place < newest:
            self.violate(SAME_LOG, f"node {node} restarted at {place}, it was at {newest}")
        self._newest[node] = place

    def committed(self, node: NodeId, committed: Iterable[Committed]) -> None:
        if not self._honest(node):
            return
        for item in committed:
            block = item.block
            epoch, height = place = block.header.epoch, int(block.height)
            first = self._log.setdefault(place, block.id)
            if first != block.id:
                violation = f"node {node}'s block differs from the first block at {place}"
                self.violate(NO_CONFLICTING_COMMITS, violation)
            mine = self._heights[node]
            if mine.setdefault(place, block.id) != block.id:
                self.violate(SAME_LOG, f"node {node} replaced what it committed at {place}")
            if place <= self._newest.get(node, (0, -1)):
                self.violate(SAME_LOG, f"node {node} went back to {place}")
            self._newest[node] = place
            below = self._log.get((epoch, height - 1))
            if below is not None and first == block.id and below != block.parent:
                self.violate(SAME_LOG, f"{place} is not linked to the block below")
            self._epochs.block(block)
            newest = self.last_committed.get(epoch, (0, View(0)))
            self.last_committed[epoch] = max(newest, (height, block.view))
            forget_oldest(mine)
            forget_oldest(self._log)

    def needs(self, participant: Participant, disks: Callable[[], dict[NodeId, Disk]]) -> None:
        """An honest node has committed something; `disks`: of the honest machines."""
        if self._power_cuts.committed(participant.state, participant.epoch):
            self._power_cuts.check(disks().values(), self._models)

    def lost_power(self, disks: dict[NodeId, Disk]) -> None:
        self.power_was_lost = True
        self._power_cuts.check(disks.values(), self._models)

    def sent(
        self, node: NodeId, message: Message, epoch: int = 0, disk: Disk | None = None
    ) -> None:
        """An honest node, which has this disk, sends a message in a frame of this epoch."""
        sign = self._slots.sign
        match message:
            case Vote():
                sign(node, "vote", (message.epoch, message.view), message.block)
            case Timeout():
                sign(node, "timeout", (message.epoch, message.view), message.high_qc.view)
                self._recounts[epoch].certificate(message.high_qc)
                self._recounts[epoch].certificate(message.tc)
            case Proposal(block=block):
                sign(node, "proposal", (block.header.epoch, block.view), block.id)
                self._recounts[epoch].block(block)
            case Certificates(qc=qc, tc=tc):
                self._recounts[epoch].certificate(qc)
                self._recounts[epoch].certificate(tc)
            case Blocks(blocks=blocks):
                for block in blocks:
                    self._recounts[epoch].block(block)
            case Snapshot():
                self._recounts[message.block.epoch].snapshot(message)
            case Handover():
                self._recounts[message.epoch].snapshot(message.snapshot)
            case Offer(round=round_, author=author) if self._is(node, author, epoch):
                sign(node, "offer", (epoch, round_), message.manifest.digest)
                self._epochs.signed((node, "offer", round_, author), epoch)
            case StoreAck(round=round_, author=author):
                sign(node, "ack", (epoch, round_, author), message.digest)
                if disk is not None:
                    self._acked_values.acknowledged(node, message, disk)
                if self._honest_member(author, epoch):  # a liar may offer too early
                    self._epochs.signed((node, "ack", round_, author), epoch)
            case Attestation(round=round_, author=author) if self._is(node, author, epoch):
                sign(node, "attestation", (epoch, round_), message.digest)
                self._epochs.signed((node, "attestation", round_, author), epoch)
            case Gossip(transactions=transactions):
                for tx in transactions:
                    self._transaction(node, tx, epoch)
            case Evidence(first=first, second=second):
                for statement in (first, second):
                    if isinstance(statement, Upd):
                        self._recounts[epoch].certificate(statement)
            case _:
                pass

    def _is(self, node: NodeId, member: NodeId, epoch: int) -> bool:
        return self.facts.member_of(node, epoch) == member

    def _honest_member(self, member: NodeId, epoch: int) -> bool:
        machine = self.facts.machine_of(member, epoch)
        return machine is not None and self._honest(machine)

    def _transaction(self, node: NodeId, tx: Transaction, epoch: int) -> None:
        if isinstance(tx, Upd):
            self._recounts[epoch].certificate(tx)
        if not self._is(node, tx.author, epoch):
            return
        self._submitted.add((epoch, tx))
        if isinstance(tx, Upd):
            self._slots.sign(node, "update", (epoch, tx.round), tx.digest)
        if isinstance(tx, Upd | Agg):
            self._epochs.signed((node, type(tx).__name__, tx.round, tx.author), epoch)

    def notice(self, node: NodeId, notice: Notice, now: float, participant: Participant) -> None:
        if not self._honest(node):
            return
        match notice:
            case SafetyBroken(reason=reason):
                self.violate(NO_CONFLICTING_COMMITS, f"node {node}: {reason}")
            case ModelReady(round=round_, digest=digest):
                first = self._models.setdefault(round_, digest)
                if first != digest:
                    self.violate(SAME_MODEL, f"round {round_}: node {node} computed another model")
            case EvidenceFound(evidence=evidence):
                accused = self.facts.machine_of(evidence.first.author, evidence.epoch)
                if accused is None or not self._honest(accused) or accused in self.rolled_back:
                    return  # the last are judged by what they send
                self.violate(NOTHING_SIGNED_TWICE, f"there is evidence against honest {accused}")
            case Observing(reason=reason) if node not in self.rolled_back:
                self.violate(NO_MEMBER_LEFT_BEHIND, f"honest node {node} fell silent: {reason}")
            case Attested(round=round_):
                self._attested[node] = round_
            case RoundClosed(round=round_, updates=authors):
                self._round_closed(round_, now, participant, authors)
            case _:
                pass

    def _round_closed(
        self, round_: Round, now: float, participant: Participant, authors: tuple[NodeId, ...]
    ) -> None:
        self._state(participant)
        self._bounds.memory(participant)
        if round_ <= self._round:
            return
        self.closed_at[round_] = now
        epochs = {closed.round: closed.epoch for closed in participant.state.closed}
        members = self.facts.members(epochs.get(round_, participant.epoch))
        excused = self.rolled_back if self.quiet else members
        self._member_presence.closed(round_, authors, members, excused)
        epoch, view = participant.epoch, participant.replica.view
        if self.quiet:
            views = view - self._since[1] if epoch == self._since[0] else view
            self.views_per_round_max = max(self.views_per_round_max, views)
        self._round, self._since = round_, (epoch, view)
        self._submitted = {(e, tx) for e, tx in self._submitted if tx.round > round_}
        forget_oldest(self._updates)
        forget_oldest(self._models)

    def _state(self, participant: Participant) -> None:
        state = participant.state
        self._epochs.state(state, participant.epoch)
        for closed in state.closed:
            self._epochs.goes_on(closed, self._models)
            authors = [ref.author for ref in closed.updates]
            if len(set(authors)) != len(authors):
                self.violate(ONE_UPDATE, f"round {closed.round} has two updates of one author")
            if len(authors) < self.facts.federation(closed.epoch).committee.quorum:
                self.violate(ONE_UPDATE, f"round {closed.round} closed on {len(authors)} updates")
            if len({ref.base for ref in closed.updates}) > 1:
                self.violate(ONE_UPDATE, f"round {closed.round} mixes bases")
            for ref in closed.updates:
                first = self._updates.setdefault((closed.round, ref.author), ref.digest)
                if first != ref.digest:
                    self.violate(
                        ONE_UPDATE, f"round {closed.round}: two committed updates of {ref.author}"
                    )

    # --- At the end ------------------------------------------------------------------------

    def conclude(self, honest: list[HonestNode], *, rounds_due: bool) -> None:
        for node in honest:
            participant = node.participant
            self._bounds.memory(participant)
            self._bounds.disk(participant, node.disk)
            self._state(participant)
            if rounds_due:
                self._epochs.arrived(node.machine, participant)
        self._same_ledger([node.participant for node in honest])
        members = self.facts.members(self.facts.newest.epoch)
        self._judge_progress([n for n in honest if n.machine in members], rounds_due=rounds_due)

    def _judge_progress(self, members: list[HonestNode], *, rounds_due: bool) -> None:
        """`members`: the honest ones of the newest epoch."""
        facts = self.facts.newest
        newest = max(members, key=lambda n: (n.participant.epoch, n.participant.state.round))
        state = newest.participant.state
        self._retrievable(state, facts.epoch, [node.disk for node in members])
        slowest = min(node.participant.state.round for node in members)
        for node in members if rounds_due else ():
            proven = self._attested.get(node.machine) == node.participant.federation.rounds
            if node.participant.finished and not proven and node.machine not in self.rolled_back:
                sentence = f"honest member {node.machine} ended without proof of the last model"
                self.violate(NO_MEMBER_LEFT_BEHIND, sentence)
        if rounds_due and slowest < facts.rounds:
            self.violate(ROUNDS_CLOSE, f"{slowest} of {facts.rounds} rounds closed")
        largest = max(epoch.committee.size for epoch in self.facts.all)
        if self.views_per_round_max > views_to_close_max(largest):
            self.violate(ROUNDS_CLOSE, f"a round took {self.views_per_round_max} views")
        if rounds_due:
            for epoch, tx in self._submitted:
                lost = epoch == facts.epoch and not self._recorded(state, tx)
                if tx.round > state.round and lost:
                    self.violate(TRANSACTIONS, f"{type(tx).__name__} of {tx.author} was lost")

    @staticmethod
    def _recorded(state: LedgerState, tx: Transaction) -> bool:
        match tx:
            case Upd(author=author):
                return state.update_of(author) is not None
            case Agg(author=author):
                return author in state.voters
            case Change(author=author):
                return state.change_of(author) is not None
            case Approve(author=author, change=digest, agrees=agrees):
                change = state.change(digest)
                if change is None or author in change.withdrawn:
                    return True
                return agrees == (author in change.approvals)
            case Ready():
                return True

    def _same_ledger(self, participants: list[Participant]) -> None:
        by_place: dict[Place, LedgerState] = {}
        for participant in participants:
            place = participant.epoch, int(participant.replica.head.height)
            if by_place.setdefault(place, participant.state) != participant.state:
                self.violate(SAME_LEDGER, f"two states at {place}")
        closed: dict[Round, object] = {}
        for participant in participants:
            for round_ in participant.state.closed:
                if closed.setdefault(round_.round, round_) != round_:
                    self.violate(SAME_LEDGER, f"round {round_.round} was closed differently")

    def _retrievable(self, state: LedgerState, epoch: int, disks: list[Disk]) -> None:
        """Those that this epoch closed. What it needs of earlier ones is judged at the boundary."""
        for closed in state.closed:
            for ref in closed.updates:
                if closed.epoch == epoch and not any(disk.holds(ref.digest) for disk in disks):
                    self.violate(
                        RETRIEVABLE, f"round {closed.round}: update of {ref.author} is lost"
                    )
