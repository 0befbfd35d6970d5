"""The one door: bytes of an authenticated peer in, a checked event out, or a PeerFault.

The order is that of cost: length, canonical form, who may say this, epoch (`read`); whether it is
wanted (`Participant.wanted`, asked by the driver in between); what fits together (`examine`);
signatures, in slices and paid for by the peer (`check`). Both drivers go this way. `read`,
`examine` and `check` change nothing here, so they may run in threads.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from defl.committee import Committee, Federation
from defl.consensus.chain import genesis_of
from defl.crypto import Scheme
from defl.errors import Malformed, WrongAuthor, WrongEpoch
from defl.ids import Digest, NodeId, digest_of
from defl.ledger import Ledger
from defl.messages import Chunk, Gossip, Message, Proposal, Snapshot, StoreAck, Timeout, Vote
from defl.output import Received, ReceivedChunk
from defl.verifier import Claim, Examination, Verifier
from defl.wire import chunk_frame_bytes_max, control_frame_bytes_max, decode, says_chunk

# One UPD and one AGG of each member, for the round that is open and for the next.
TRANSACTIONS_PER_MEMBER = 4
# Checked in one turn, about 2 ms; then the other peers have theirs.
SLICE_SIGNATURES = 16


@dataclass(frozen=True, slots=True)
class Examined:
    """A message that is good if its signatures are."""

    peer: NodeId
    message: Message
    chunk_digest: Digest | None  # of a chunk, which has no signatures
    examination: Examination

    @property
    def signatures(self) -> int:
        return len(self.examination.claims)

    def slices(self) -> Iterator[tuple[Claim, ...]]:
        claims = self.examination.claims
        for start in range(0, len(claims), SLICE_SIGNATURES):
            yield claims[start : start + SLICE_SIGNATURES]


class Ingress:
    def __init__(self, federation: Federation, scheme: Scheme) -> None:
        self._epoch = federation.epoch
        self._committee: Committee = federation.committee
        self._control_bytes_max = control_frame_bytes_max(self._committee.size)
        self._chunk_bytes_max = chunk_frame_bytes_max(federation.chunk_bytes)
        genesis = genesis_of(federation, Ledger(federation))
        self._verifier = Verifier(federation, scheme, genesis.id)

    def read(self, peer: NodeId, frame: bytes | memoryview) -> Message:
        """All that can be judged without a signature or the node's state; or a PeerFault."""
        if not 0 <= peer < self._committee.size:
            raise WrongAuthor(f"member {peer} does not exist")
        chunk = says_chunk(frame)
        message = decode(frame, self._chunk_bytes_max if chunk else self._control_bytes_max)
        self._check_author(peer, message)
        self._check_epoch(message)
        if isinstance(message, Gossip):
            most = TRANSACTIONS_PER_MEMBER * self._committee.size
            if len(message.transactions) > most:
                raise Malformed(
                    f"{len(message.transactions)} transactions in a Gossip, at most {most} are "
                    "allowed"
                )
        return message

    def examine(self, peer: NodeId, message: Message) -> Examined:
        """What fits together; its signatures are still to be checked. Or a PeerFault."""
        chunk_digest = digest_of(message.data) if isinstance(message, Chunk) else None
        return Examined(peer, message, chunk_digest, self._verifier.examine(message))

    def check(self, claims: Iterable[Claim]) -> None:
        self._verifier.check(claims)

    def accept(self, examined: Examined) -> Received | ReceivedChunk:
        """All slices were checked. Until now nothing of it was believed or remembered."""
        self._verifier.accept(examined.examination)
        peer, message = examined.peer, examined.message
        if isinstance(message, Chunk) and examined.chunk_digest is not None:
            return ReceivedChunk(
                peer, message.digest, message.index, message.data, examined.chunk_digest
            )
        return Received(peer, message)

    def admit(self, peer: NodeId, frame: bytes | memoryview) -> Received | ReceivedChunk:
        """The whole way at once, for whoever wants everything and has time."""
        examined = self.examine(peer, self.read(peer, frame))
        for claims in examined.slices():
            self.check(claims)
        return self.accept(examined)

    def _check_author(self, peer: NodeId, message: Message) -> None:
        """Live statements come from their author; what is relayed carries its own signature."""
        match message:
            case Vote(author=author) | Timeout(author=author) | StoreAck(acker=author):
                claimed = author
            case Proposal(block=block):
                claimed = block.header.author
            case _:
                return
        if claimed != peer:
            kind = type(message).__name__
            raise WrongAuthor(f"member {peer} sent a {kind} in the name of member {claimed}")

    def _check_epoch(self, message: Message) -> None:
        match message:
            case Vote(epoch=epoch) | Timeout(epoch=epoch):
                pass
            case Proposal(block=block):
                epoch = block.header.epoch
            case Snapshot(block=header):
                epoch = header.epoch
            case _:
                return
        if epoch != self._epoch:
            raise WrongEpoch(f"epoch {epoch}, the federation is in epoch {self._epoch}")
