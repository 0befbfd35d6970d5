"""Attacks on consensus: two proposals, two votes, votes for anything, forged certificates."""

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle

from msgspec.structs import replace

from defl.crypto import SIGNATURE_BYTES, Signer
from defl.fields import bitmap_of
from defl.ids import Digest, Height, NodeId, Round, View
from defl.messages import (
    QC,
    TC,
    Block,
    Blocks,
    Certificates,
    Gossip,
    Header,
    Message,
    Proposal,
    Snapshot,
    Timeout,
    Upd,
    Vote,
    ack_statement,
    timeout_statement,
    vote_statement,
)
from defl.output import Envelope, Event, Received, Tick
from defl.participant import Participant
from defl.sim.byzantine.liar import Item, Liar


class Equivocator(Liar):
    """As leader: one proposal for half of the peers, another for the rest, and a vote for each."""

    def __init__(self, participant: Participant, signer: Signer, rng: random.Random) -> None:
        super().__init__(participant, signer, rng)
        self._twin: tuple[View, Digest] | None = None

    def instead(self, item: Item) -> Iterable[Item]:
        first, second = self._halves
        match item:
            case Envelope(to=None, message=Proposal() as proposal):
                mine = proposal.block.transactions
                # An AGG is valid at any time, so both contents are.
                other = mine[:-1] if mine else (self._agg(Round(self._round + 1)),)
                twin = self._with_transactions(proposal, other)
                self._twin = (twin.block.view, twin.block.id)
                return Envelope(first, proposal), Envelope(second, twin)
            case Envelope(to=None, message=Vote() as vote):
                if self._twin is not None and self._twin[0] == vote.view:
                    return Envelope(first, vote), Envelope(second, self._vote(*self._twin))
        return (item,)


class DoubleVoter(Liar):
    """Votes for the proposal and for an unknown block, in a different order to each half."""

    def instead(self, item: Item) -> Iterable[Item]:
        match item:
            case Envelope(to=None, message=Vote() as vote):
                first, second = self._halves
                other = self._vote(vote.view, self._noise())
                return (
                    Envelope(first, vote),
                    Envelope(second, other),
                    Envelope(first, other),
                    Envelope(second, vote),
                )
        return (item,)


# How far above its parent a block claims to be: beyond any height that a run reaches.
HEIGHT_LIE_MAX = 2**40


class HeightLiar(Liar):
    """As leader: blocks that are valid except for an absurd height."""

    def instead(self, item: Item) -> Iterable[Item]:
        match item:
            case Envelope(to=None, message=Proposal(block=block)):
                above = int(HEIGHT_LIE_MAX ** self._rng.random())  # near ones and far ones
                header = replace(block.header, height=Height(block.height + above))
                return (Envelope(None, self._proposal(Block(header, block.transactions))),)
        return (item,)


# Votes remembered, only to avoid repeating them.
VOTED_MAX = 256


class YesVoter(Liar):
    """Votes for every block it hears of, even from others' votes, late, or after a timeout."""

    def __init__(self, participant: Participant, signer: Signer, rng: random.Random) -> None:
        super().__init__(participant, signer, rng)
        self._voted: dict[tuple[View, Digest], None] = {}

    def instead(self, item: Item) -> Iterable[Item]:
        if isinstance(item, Envelope) and isinstance(item.message, Vote):
            self._remember((item.message.view, item.message.block))
        return (item,)

    def besides(self, event: Event, now: float) -> Iterator[Item]:  # noqa: ARG002
        if not isinstance(event, Received):
            return
        for block in _blocks_named_by(event.message):
            if block not in self._voted and block[0] > 0:
                self._remember(block)
                yield Envelope(None, self._vote(*block))

    def _remember(self, block: tuple[View, Digest]) -> None:
        self._voted[block] = None
        if len(self._voted) > VOTED_MAX:
            del self._voted[next(iter(self._voted))]


def _blocks_named_by(message: Message) -> Iterable[tuple[View, Digest]]:
    match message:
        case Proposal(block=block):
            return ((block.view, block.id),)
        case Vote(view=view, block=block_id):
            return ((view, block_id),)
        case Blocks(blocks=blocks):
            return [(block.view, block.id) for block in blocks]
        case Timeout(high_qc=qc) | Certificates(qc=qc):
            return ((qc.view, qc.block),)
        case _:
            return ()


class Forger(Liar):
    """Forged certificates, one kind after another, in every message that can carry one."""

    def __init__(self, participant: Participant, signer: Signer, rng: random.Random) -> None:
        super().__init__(participant, signer, rng)
        self._stale: QC | None = None  # genuine, of the first certified block
        self._header: Header | None = None  # another member's, to tamper with
        self._forgeries: Iterator[Callable[[], Iterable[Message]]] = cycle(
            (
                self._loose_qcs,
                self._loose_tcs,
                self._availability,
                self._timeouts,
                self._proposals,
                self._snapshots,
                self._stale_ones,
            )
        )
        self._tamper = cycle((self._unchanged, self._on_a_stale_qc, self._with_a_false_state))

    def instead(self, item: Item) -> Iterable[Item]:
        match item:
            case Envelope(to=None, message=Proposal(block=block)):
                return (Envelope(None, self._proposal(next(self._tamper)(block))),)
        return (item,)

    def besides(self, event: Event, now: float) -> Iterator[Item]:  # noqa: ARG002
        match event:
            case Received(message=Proposal(block=block)):
                self._header = block.header
                if self._stale is None and block.qc.view > 0:
                    self._stale = block.qc
            case Tick() | Received(message=Timeout()):
                pass
            case _:
                return
        for message in next(self._forgeries)():
            yield Envelope(None, message)

    # --- As leader -------------------------------------------------------------------------

    def _unchanged(self, block: Block) -> Block:
        return block

    def _on_a_stale_qc(self, block: Block) -> Block:
        if self._stale is None:
            return block
        header = replace(block.header, qc=self._stale, parent=self._stale.block, tc=None)
        return Block(header, block.transactions)

    def _with_a_false_state(self, block: Block) -> Block:
        return Block(replace(block.header, state_root=self._noise()), block.transactions)

    # --- Forged certificates ---------------------------------------------------------------

    def _signatures(self, statement: Digest) -> Iterator[tuple[bytes, tuple[bytes, ...]]]:
        """Signers and signatures that look like a quorum's for this statement, and are not."""
        q, n = self._committee.quorum, self._committee.slots
        mine = self._signer.sign(statement)
        quorum = (self._me, *self._peers[: q - 1])
        noise = tuple(self._rng.randbytes(SIGNATURE_BYTES) for _ in range(q - 1))
        yield bitmap_of(quorum[:-1], n), (mine,) * (q - 1)  # too few
        yield bitmap_of((self._me,), n), (mine,) * q  # one member, repeated
        yield bitmap_of(quorum, n), (mine,) * q  # one signature for a whole quorum
        yield bitmap_of(quorum, n), tuple(sorted((mine, *noise)))  # invented
        strangers = tuple(NodeId(n + i) for i in range(q))
        yield bitmap_of(strangers, 2 * n), (mine,) * q  # members that do not exist

    def _qcs(self, view: View) -> Iterator[QC]:
        block = self._noise()
        for signers, signatures in self._signatures(
            vote_statement(self._chain, self._epoch, view, block)
        ):
            yield QC(view, block, signers, signatures)

    def _tcs(self, view: View) -> Iterator[TC]:
        high_qc = self.participant.replica.record.high_qc
        statement = timeout_statement(self._chain, self._epoch, view, high_qc.view)
        for signers, signatures in self._signatures(statement):
            yield TC(view, signers, (high_qc.view,) * len(signatures), signatures, high_qc)
        # Claims that a quorum reported a newer QC than the one it carries.
        q, n = self._committee.quorum, self._committee.slots
        quorum = bitmap_of(self._committee.members[:q], n)
        yield TC(view, quorum, (View(view - 1),) * q, (self._signer.sign(statement),) * q, high_qc)

    def _loose_qcs(self) -> Iterator[Message]:
        for qc in self._qcs(View(self._view + 3)):
            yield Certificates(qc, None)
        yield Certificates(QC(View(0), self._noise(), b"", ()), None)

    def _loose_tcs(self) -> Iterator[Message]:
        for tc in self._tcs(View(self._view + 3)):
            yield Certificates(tc.qc, tc)

    def _availability(self) -> Iterator[Message]:
        """UPDs for a blob that no member has."""
        round_, digest = Round(self._round + 1), self._noise()
        size = 4 * self._federation.schema.values
        base = self._federation.initial
        statement = ack_statement(self._chain, self._epoch, round_, self._me, digest, base, size)
        for ackers, acks in self._signatures(statement):
            upd = Upd(round_, self._me, digest, size, base, ackers, acks, b"")
            signature = self._signer.sign(upd.statement(self._chain, self._epoch))
            yield Gossip((replace(upd, signature=signature),))

    def _timeouts(self) -> Iterator[Message]:
        for qc in self._qcs(self._view):
            yield self._timeout(View(self._view + 1), qc)

    def _proposals(self) -> Iterator[Message]:
        """Out of turn, on certificates that do not exist."""
        if self._header is None:
            return
        for qc in self._qcs(View(self._view + 3)):
            header = replace(self._header, view=View(qc.view + 1), parent=qc.block, qc=qc, tc=None)
            yield self._proposal(Block(replace(header, author=self._me), ()))

    def _snapshots(self) -> Iterator[Message]:
        if self._header is None:
            return
        proof = replace(self._header, committed=self._header.id, state_root=self._noise())
        for qc in self._qcs(View(self._view + 3)):
            yield Snapshot(self._header, b"", proof, replace(qc, block=proof.id))

    def _stale_ones(self) -> Iterator[Message]:
        if self._stale is not None:
            yield Certificates(self._stale, None)
            yield self._timeout(self._view, self._stale)
