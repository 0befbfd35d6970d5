"""What must hold in every run, whatever the seed, the faults and up to f liars.

The checker watches honest nodes from outside: what they send, commit and store. It shares no
decision with the code that it judges.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable

from defl.committee import Federation
from defl.crypto import Scheme
from defl.ids import Digest, NodeId, Round, View, digest_of
from defl.ledger import LedgerState
from defl.messages import (
    Attestation,
    Blocks,
    Certificates,
    Evidence,
    Gossip,
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
    Committed,
    EvidenceFound,
    ModelReady,
    Notice,
    Observing,
    RoundClosed,
    SafetyBroken,
)
from defl.participant import Participant
from defl.sim.disk import Disk
from defl.sim.presence import Presence
from defl.sim.recount import REMEMBERED, Recount, forget_oldest
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
    WITHIN_BOUNDS,
    CheckVerdicts,
)

# In addition to one block per view: the snapshot's, and a second block of a view if that one turned
# out to be certified.
BLOCKS_SLACK = 8


def _blocks_max(participant: Participant) -> int:
    """One for each view since the snapshot's: more would be growth that nothing removes."""
    replica = participant.replica
    return max(0, replica.view - replica.root.view) + BLOCKS_SLACK


def views_to_close_max(members: int) -> int:
    """In a calm network: each round's n UPDs may arrive one by one, each needs a chain of four
    certified blocks, every (n/f)-th leader may be a liar that breaks the chain, and the AGG timer
    may expire in a failed view."""
    return 16 * members + 64


class Checker:
    def __init__(
        self, federation: Federation, scheme: Scheme, honest: Callable[[NodeId], bool]
    ) -> None:
        self._federation = federation
        self._committee = federation.committee
        self._honest = honest
        self._verdicts = CheckVerdicts()
        self._recount = Recount(federation, scheme, self.violate)
        self._log: dict[int, Digest] = {}  # height -> the first committed block
        self._heights: dict[NodeId, dict[int, Digest]] = defaultdict(dict)
        self._newest: dict[NodeId, int] = {}  # committed height
        self._signed: dict[tuple[NodeId, str], dict[tuple[int, ...], object]] = defaultdict(dict)
        self._models: dict[Round, Digest] = {}
        self._updates: dict[tuple[Round, NodeId], Digest] = {}
        self._submitted: set[Transaction] = set()
        self._progress: tuple[Round, View] = (Round(0), View(0))  # newest round, view of its close
        self.closed_at: dict[Round, float] = {}
        self.views_per_round_max = 0
        self.quiet = True  # only liars hinder progress now, so views per round are judged
        self.largest: dict[str, int] = {}
        # Honest members whose disk is rolled back: they may contradict what too few others know.
        self.rolled_back: set[NodeId] = set()
        self._took_in: dict[tuple[NodeId, str, tuple[int, ...]], set[NodeId]] = {}
        self._down: set[NodeId] = set()
        self._presence = {
            member: Presence() for member in self._committee.members if honest(member)
        }

    def violate(self, check: str, sentence: str) -> None:
        self._verdicts.violate(check, sentence)

    @property
    def violations(self) -> list[str]:
        return self._verdicts.violations

    @property
    def verdicts(self) -> dict[str, bool]:
        return self._verdicts.by_check()

    # --- While it runs ---------------------------------------------------------------------

    def disturbed(self, view: View) -> None:
        """A disturbance ends (a heal, a restart): views until the next close count from here."""
        self._progress = (self._progress[0], view)

    def restarted(self, node: NodeId, height: int) -> None:
        """A restarted node must still have its newest committed block."""
        newest = self._newest.get(node, 0)
        if self._honest(node) and node not in self.rolled_back and height < newest:
            self.violate(SAME_LOG, f"node {node} restarted at height {height}, it was at {newest}")
        self._newest[node] = height

    def away(self, *members: NodeId) -> None:
        """These members cannot take part in the open round normally."""
        for member in members:
            if member in self._presence:
                self._presence[member].away(self._progress[0])

    def down(self, member: NodeId) -> None:
        """The process is dead or its disk is full, until `up` is called."""
        self._down.add(member)

    def up(self, member: NodeId) -> None:
        self._down.discard(member)
        self.away(member)

    def committed(self, node: NodeId, committed: Iterable[Committed]) -> None:
        if not self._honest(node):
            return
        for item in committed:
            height, block_id = item.block.height, item.block.id
            first = self._log.setdefault(height, block_id)
            if first != block_id:
                violation = f"node {node}'s block differs from the first block at height {height}"
                self.violate(NO_CONFLICTING_COMMITS, violation)
            mine = self._heights[node]
            if mine.setdefault(height, block_id) != block_id:
                self.violate(SAME_LOG, f"node {node} replaced what it committed at height {height}")
            if height <= self._newest.get(node, -1):
                self.violate(SAME_LOG, f"node {node} went back to height {height}")
            self._newest[node] = height
            below = self._log.get(height - 1)
            if below is not None and first == block_id and below != item.block.parent:
                self.violate(SAME_LOG, f"height {height} is not linked to height {height - 1}")
            mine.pop(height - REMEMBERED, None)
            self._log.pop(height - REMEMBERED, None)

    def sent(self, node: NodeId, message: Message) -> None:
        """An honest node sends this."""
        match message:
            case Vote():
                self._once(node, "vote", (message.epoch, message.view), message.block)
            case Timeout():
                key = (message.epoch, message.view)
                self._once(node, "timeout", key, message.high_qc.view)
                self._recount.certificate(message.high_qc)
                self._recount.certificate(message.tc)
            case Proposal(block=block):
                self._once(node, "proposal", (block.header.epoch, block.view), block.id)
                self._recount.block(block)
            case Certificates(qc=qc, tc=tc):
                self._recount.certificate(qc)
                self._recount.certificate(tc)
            case Blocks(blocks=blocks):
                for block in blocks:
                    self._recount.block(block)
            case Snapshot(proof=proof, proof_qc=qc):
                self._recount.certificate(proof.qc)
                self._recount.certificate(qc)
            case Offer(author=author) if author == node:
                self._once(node, "offer", (message.round,), message.manifest.digest)
            case StoreAck():
                self._once(node, "ack", (message.round, message.author), message.digest)
            case Attestation(author=author) if author == node:
                self._once(node, "attestation", (message.round,), message.digest)
            case Gossip(transactions=transactions):
                for tx in transactions:
                    self._transaction(node, tx)
            case Evidence(first=first, second=second):
                for statement in (first, second):
                    if isinstance(statement, Upd):
                        self._recount.certificate(statement)
            case _:
                pass

    def _transaction(self, node: NodeId, tx: Transaction) -> None:
        if isinstance(tx, Upd):
            self._recount.certificate(tx)
        if tx.author == node:
            self._submitted.add(tx)
            if isinstance(tx, Upd):
                self._once(node, "update", (tx.round,), tx.digest)

    def _once(self, node: NodeId, kind: str, key: tuple[int, ...], value: object) -> None:
        """`key` grows over time, so a key older than all that are kept cannot be honest."""
        signed = self._signed[node, kind]
        if key not in signed and len(signed) == REMEMBERED and key < next(iter(signed)):
            self.violate(NOTHING_SIGNED_TWICE, f"node {node} signs the long past {kind} {key}")
        elif signed.setdefault(key, value) != value and not self._may_forget(node, kind, key):
            self.violate(NOTHING_SIGNED_TWICE, f"node {node} contradicts its own {kind} {key}")
        forget_oldest(signed)

    def took_in(self, node: NodeId, message: Message) -> None:
        """Record which honest nodes know a statement of a rolled-back member."""
        slot: tuple[NodeId, str, tuple[int, ...]]
        match message:
            case Vote(author=author, epoch=epoch, view=view):
                slot = (author, "vote", (epoch, view))
            case Timeout(author=author, epoch=epoch, view=view):
                slot = (author, "timeout", (epoch, view))
            case Proposal(block=block):
                slot = (block.header.author, "proposal", (block.header.epoch, block.view))
            case Offer(author=author, round=round_):
                slot = (author, "offer", (round_,))
            case _:
                return
        if slot[0] in self.rolled_back and self._honest(node):
            self._took_in.setdefault(slot, set()).add(node)
            forget_oldest(self._took_in)

    def forgot(self, node: NodeId) -> None:
        """The process died, and with it its memory of what others signed."""
        for members in self._took_in.values():
            members.discard(node)

    def _may_forget(self, node: NodeId, kind: str, key: tuple[int, ...]) -> bool:
        """A rolled-back node may contradict what fewer than q others know, and nothing else."""
        known_to = self._took_in.get((node, kind, key), set())
        return node in self.rolled_back and len(known_to) < self._committee.quorum

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
            case EvidenceFound(evidence=evidence) if self._honest(evidence.first.author):
                accused = evidence.first.author
                if accused in self.rolled_back:
                    return  # judged by what it sends, in `_may_forget`
                self.violate(NOTHING_SIGNED_TWICE, f"there is evidence against honest {accused}")
            case Observing(reason=reason) if node not in self.rolled_back:
                self.violate(NO_MEMBER_LEFT_BEHIND, f"honest node {node} fell silent: {reason}")
            case RoundClosed(round=round_, updates=authors):
                self._round_closed(round_, now, participant, authors)
            case _:
                pass

    def _round_closed(
        self, round_: Round, now: float, participant: Participant, authors: tuple[NodeId, ...]
    ) -> None:
        self._updates_of(participant.state)
        self._bounds(participant)
        if round_ <= self._progress[0]:
            return
        self.closed_at[round_] = now
        self._judge_presence(round_, authors)
        view = participant.replica.view
        if self.quiet:
            since = self._progress[1]
            self.views_per_round_max = max(self.views_per_round_max, view - since)
        self._progress = (round_, view)
        self._submitted = {tx for tx in self._submitted if tx.round > round_}
        forget_oldest(self._updates)
        forget_oldest(self._models)

    def _judge_presence(self, round_: Round, authors: tuple[NodeId, ...]) -> None:
        self.away(*(self._down if self.quiet else self._committee.members))
        for member, presence in self._presence.items():
            if member in self.rolled_back:
                continue  # it stops signing once it learns of the rollback
            fault = presence.closed(round_, present=member in authors)
            if fault is not None:
                violation = f"honest member {member} was left out of {fault} up to round {round_}"
                self.violate(NO_MEMBER_LEFT_BEHIND, violation)

    def _updates_of(self, state: LedgerState) -> None:
        for closed in state.closed:
            authors = [ref.author for ref in closed.updates]
            if len(set(authors)) != len(authors):
                self.violate(ONE_UPDATE, f"round {closed.round} has two updates of one author")
            if len(authors) < self._committee.quorum:
                self.violate(ONE_UPDATE, f"round {closed.round} closed on {len(authors)} updates")
            if len({ref.base for ref in closed.updates}) > 1:
                self.violate(ONE_UPDATE, f"round {closed.round} mixes bases")
            for ref in closed.updates:
                first = self._updates.setdefault((closed.round, ref.author), ref.digest)
                if first != ref.digest:
                    self.violate(
                        ONE_UPDATE, f"round {closed.round}: two committed updates of {ref.author}"
                    )

    # --- Bounds ----------------------------------------------------------------------------

    def _bounds(self, participant: Participant) -> None:
        n, tau = self._committee.size, self._federation.tau
        limits = {
            "blocks": _blocks_max(participant),
            "transactions": 4 * n,
            "statements": 2 * n * 66 + 66,
            "blobs": (tau + 3) * n + tau + 3,
            "offers": (tau + 2) * n,
            "acks": (tau + 2) * n,
            "fetches": (tau + 3) * n + tau + 3,
            "evidence": 6 * n,
        }
        for name, amount in participant.stored.items():
            self.largest[name] = max(self.largest.get(name, 0), amount)
            if amount > limits[name]:
                self.violate(WITHIN_BOUNDS, f"node {participant.me} holds {amount} {name}")

    # --- At the end ------------------------------------------------------------------------

    def conclude(self, honest: list[tuple[Participant, Disk]], *, rounds_due: bool) -> None:
        for participant, disk in honest:
            self._bounds(participant)
            blobs_max = (self._federation.tau + 4) * (self._committee.size + 1)
            if len(disk.blocks) > _blocks_max(participant) or len(disk.blobs) > blobs_max:
                self.violate(WITHIN_BOUNDS, f"node {participant.me}'s disk holds too much")
            self._updates_of(participant.state)
        self._same_ledger([participant for participant, _ in honest])
        self._retrievable(honest)
        newest = max((participant.state for participant, _ in honest), key=lambda s: s.round)
        slowest = min(participant.state.round for participant, _ in honest)
        if rounds_due and slowest < self._federation.rounds:
            self.violate(ROUNDS_CLOSE, f"{slowest} of {self._federation.rounds} rounds closed")
        if self.views_per_round_max > views_to_close_max(self._committee.size):
            self.violate(ROUNDS_CLOSE, f"a round took {self.views_per_round_max} views")
        if rounds_due:
            for tx in self._submitted:
                if tx.round > newest.round and not self._recorded(newest, tx):
                    self.violate(TRANSACTIONS, f"{type(tx).__name__} of {tx.author} was lost")

    @staticmethod
    def _recorded(state: LedgerState, tx: Transaction) -> bool:
        if isinstance(tx, Upd):
            return state.update_of(tx.author) is not None
        return tx.author in state.voters

    def _same_ledger(self, participants: list[Participant]) -> None:
        by_height: dict[int, LedgerState] = {}
        for participant in participants:
            height = participant.replica.head.height
            first = by_height.setdefault(height, participant.state)
            if first != participant.state:
                self.violate(SAME_LEDGER, f"two states at height {height}")
        closed: dict[Round, object] = {}
        for participant in participants:
            for round_ in participant.state.closed:
                if closed.setdefault(round_.round, round_) != round_:
                    self.violate(SAME_LEDGER, f"round {round_.round} was closed differently")

    def _retrievable(self, honest: list[tuple[Participant, Disk]]) -> None:
        newest = max((participant.state for participant, _ in honest), key=lambda s: s.round)
        for closed in newest.closed:
            for ref in closed.updates:
                if not any(self._has(disk, ref.digest) for _, disk in honest):
                    self.violate(
                        RETRIEVABLE, f"round {closed.round}: update of {ref.author} is lost"
                    )

    @staticmethod
    def _has(disk: Disk, digest: Digest) -> bool:
        blob = disk.blobs.get(digest)
        if blob is None or blob.manifest.digest != digest:
            return False
        return all(
            index in blob.chunks and digest_of(blob.chunks[index]) == chunk
            for index, chunk in enumerate(blob.manifest.chunks)
        )
