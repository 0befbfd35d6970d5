"""Checks of honest nodes' disks: of each when it sends and while it works, of all at any time.

These checks look at the simulated disk alone; they share nothing with duty.py and the pool, which
they judge.
"""

from collections.abc import Callable, Collection, Mapping

import numpy as np

from defl.committee import Federation
from defl.ids import Digest, NodeId, Round
from defl.ledger import LedgerState
from defl.messages import Gossip, Message, Offer, Proposal, StoreAck, Timeout, Upd, Vote
from defl.output import Work
from defl.pool.mask import sent_values
from defl.schema import VALUE_MAX, Codec
from defl.sim.disk import Disk
from defl.sim.recount import forget_oldest
from defl.sim.verdicts import ACKS_OBEY, INPUTS_IN_PLACE, NOTHING_BEFORE_ITS_RECORD, RETRIEVABLE
from defl.work import inputs_of

# Older offers are not repeated any more.
ROUNDS_REMEMBERED = 8

Violate = Callable[[str, str], None]


class RecordCheck:
    """A statement leaves after the record that remembers it, and after what it promises. What the
    record of an earlier epoch remembered is gone; nothing of that epoch counts any more."""

    def __init__(self, node: NodeId, violate: Violate) -> None:
        self._node = node
        self._violate = violate
        # What was durable when it was sent first: the disk may lose it later.
        self._offered: set[tuple[Round, Digest]] = set()
        self._certified: set[tuple[Round, Digest]] = set()

    def sent(self, message: Message, disk: Disk, me: NodeId, epoch: int) -> None:
        """`me`: what the node calls itself in the epoch of the message."""
        record = disk.record
        if record is None or record.epoch > epoch:
            return  # an observer signs nothing; what it sends are others' statements
        match message:
            case Vote(author=author, view=view) if author == me:
                done = record.epoch == epoch and record.last_voted_view >= view
                self._require(done, f"its vote in view {view}")
            case Timeout(author=author, view=view) if author == me:
                done = record.epoch == epoch and record.last_timeout_view >= view
                self._require(done, f"its timeout of view {view}")
            case Proposal(block=block) if block.header.author == me:
                last = record.last_proposal
                done = last is not None and last.block.view >= block.view
                self._require(done and record.epoch == epoch, f"its proposal in view {block.view}")
            case StoreAck(acker=acker) if acker == me:
                self._ack(message.round, message.author, message.digest, disk)
                update = f"the update of member {message.author} that it acknowledges"
                self._require(disk.is_synced(message.digest), update)
            case Offer(author=author) if author == me:
                self._offer(message, disk)
            case Gossip(transactions=transactions):
                own = [tx for tx in transactions if isinstance(tx, Upd) and tx.author == me]
                for tx in own:
                    if _is_first(self._certified, tx.round, tx.digest):
                        self._ack(tx.round, tx.author, tx.digest, disk)
            case _:
                pass

    def _ack(self, round_: Round, author: NodeId, digest: Digest, disk: Disk) -> None:
        known = (round_, author) in disk.acks
        self._require(known, f"the ack of member {author}'s update for round {round_}")
        update = f"the acknowledged update of member {author} for round {round_}"
        self._require(disk.is_whole(digest), update)

    def _offer(self, offer: Offer, disk: Disk) -> None:
        manifest = offer.manifest
        if not _is_first(self._offered, offer.round, manifest.digest):
            return
        self._require(offer.round in disk.offers, f"its offer for round {offer.round}")
        for digest, name in ((manifest.digest, "update"), (manifest.base, "base")):
            what = f"the {name} of its offer for round {offer.round}"
            self._require(disk.is_synced(digest), what)

    def _require(self, durable: bool, what: str) -> None:
        if not durable:
            self._violate(
                NOTHING_BEFORE_ITS_RECORD, f"node {self._node} sent before it was durable: {what}"
            )


def _is_first(sent: set[tuple[Round, Digest]], round_: Round, digest: Digest) -> bool:
    if (round_, digest) in sent:
        return False
    sent.difference_update([old for old in sent if old[0] < round_ - ROUNDS_REMEMBERED])
    sent.add((round_, digest))
    return True


class PowerCutCheck:
    """Check that no power cut, even of all honest members, loses an update that they still need:
    one of their disks has it synced."""

    def __init__(self, violate: Violate) -> None:
        self._violate = violate
        self._epoch = 0
        self._newest: LedgerState | None = None

    def committed(self, state: LedgerState, epoch: int) -> bool:
        """Note an honest node's state; True if it is the newest one."""
        newest = self._newest
        if newest is not None:
            known = self._epoch, newest.round, len(newest.current)
            if (epoch, state.round, len(state.current)) <= known:
                return False
        self._epoch, self._newest = epoch, state
        return True

    def check(self, disks: Collection[Disk], models: Mapping[Round, Digest]) -> None:
        """Check the newest state. `models`: those of closed rounds, as honest nodes computed them.
        Once a model is synced, the updates that it is made of are no longer needed."""
        state = self._newest
        if state is None:
            return
        needed = state.current
        model = models.get(state.round)
        if state.last is not None and not (model and any(d.survives(model) for d in disks)):
            needed += state.last.updates
        for ref in needed:
            if not any(disk.survives(ref.digest) for disk in disks):
                sentence = f"after round {state.round} a power cut loses the update of {ref.author}"
                self._violate(RETRIEVABLE, sentence)


class InputsCheck:
    """Work finds the blobs that it reads, from its start to its end."""

    def __init__(self, node: NodeId, violate: Violate) -> None:
        self._node = node
        self._violate = violate

    def present(self, work: Work, disk: Disk) -> None:
        for digest in inputs_of(work):
            if not disk.is_whole(digest):
                name = type(work).__name__
                self._violate(
                    INPUTS_IN_PLACE, f"node {self._node}: {name} lacks blob {digest.hex()[:16]}"
                )


class AckedValues:
    """An honest member acknowledges only updates whose bytes obey the rules of their codec."""

    def __init__(self, federation: Federation, violate: Violate) -> None:
        self._schema, self._codec = federation.schema, federation.codec
        self._violate = violate
        self._obeys: dict[Digest, bool] = {}

    def acknowledged(self, node: NodeId, ack: StoreAck, disk: Disk) -> None:
        """Judge an ack that leaves; `disk` is the one of its sender."""
        digest = ack.digest
        if digest not in self._obeys:
            if not disk.holds(digest):
                return  # RecordCheck judges missing bytes
            self._obeys[digest] = self._obey(disk.read(digest))
            forget_oldest(self._obeys)
        if not self._obeys[digest]:
            update = f"update of member {ack.author} for round {ack.round}"
            self._violate(ACKS_OBEY, f"node {node} acknowledged a malformed {update}")

    def _obey(self, payload: bytes) -> bool:
        if self._codec is Codec.FP32:
            values = np.frombuffer(payload, "<f4")
        elif self._codec is Codec.BF16:
            values = np.frombuffer(np.frombuffer(payload, "<u2").astype("<u4") << 16, "<f4")
        else:
            return self._int8_obey(np.frombuffer(payload, np.int8))
        whole = values.size == sum(entry.size for entry in self._schema.shared)
        return whole and bool((np.abs(values) <= np.float32(VALUE_MAX)).all())

    def _int8_obey(self, codes: "np.ndarray[tuple[int], np.dtype[np.int8]]") -> bool:
        """For each entry there is a scale from -126 to 33, then codes from -127 to 127."""
        masked = self._codec is Codec.INT8_MASKED
        for entry in self._schema.shared:
            end = 1 + (sent_values(entry) if masked else entry.size)
            part, codes = codes[:end], codes[end:]
            if part.size != end or not -126 <= part[0] <= 33 or (part[1:] == -128).any():
                return False
        return codes.size == 0
