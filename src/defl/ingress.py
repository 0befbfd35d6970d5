"""The one door: bytes of an authenticated peer in, a checked event out, or a PeerFault.

The order is that of cost: length, canonical form, who may say this, epoch, signature,
certificates. Both drivers call `Ingress.admit`, from threads if need be; it shares no state with
the participant.
"""

from collections import OrderedDict

from defl.committee import Federation
from defl.consensus.chain import genesis_of
from defl.crypto import Scheme
from defl.errors import WrongAuthor
from defl.ids import Digest, NodeId, digest_of
from defl.ledger import Ledger
from defl.messages import (
    Attestation,
    Blocks,
    Certificates,
    Chunk,
    Evidence,
    Gossip,
    Message,
    Offer,
    Pace,
    Proposal,
    Snapshot,
    StoreAck,
    Timeout,
    Vote,
)
from defl.output import Received, ReceivedChunk
from defl.verify import Verifier
from defl.wire import chunk_frame_bytes_max, control_frame_bytes_max, decode, says_chunk

# Honest nodes repeat the same bytes; the last few thousand need no second signature check.
SEEN_MAX = 4096


class Ingress:
    def __init__(self, federation: Federation, scheme: Scheme) -> None:
        self._members = federation.committee.size
        self._control_bytes_max = control_frame_bytes_max(self._members)
        self._chunk_bytes_max = chunk_frame_bytes_max(federation.chunk_bytes)
        genesis = genesis_of(federation, Ledger(federation))
        self._verifier = Verifier(federation, scheme, genesis.id)
        self._seen: OrderedDict[Digest, None] = OrderedDict()

    def admit(self, peer: NodeId, frame: bytes | memoryview) -> Received | ReceivedChunk:
        """Raises a PeerFault that says what is wrong with the frame."""
        if not 0 <= peer < self._members:
            raise WrongAuthor(f"member {peer} does not exist")
        chunk = says_chunk(frame)
        message = decode(frame, self._chunk_bytes_max if chunk else self._control_bytes_max)
        if isinstance(message, Chunk):
            chunk_digest = digest_of(message.data)
            return ReceivedChunk(peer, message.digest, message.index, message.data, chunk_digest)
        self._check_author(peer, message)
        # The same bytes were found good before: handled again (a repetition is a question), but
        # not verified again.
        name = digest_of(frame)
        if name not in self._seen:
            self._verify(message)
            self._seen[name] = None
            if len(self._seen) > SEEN_MAX:
                self._seen.popitem(last=False)
        return Received(peer, message)

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

    def _verify(self, message: Message) -> None:
        verifier = self._verifier
        match message:
            case Vote():
                verifier.vote(message)
            case Proposal():
                verifier.proposal(message)
            case Timeout():
                verifier.timeout(message)
            case Certificates(qc=qc, tc=tc):
                verifier.qc(qc)
                if tc is not None:
                    verifier.tc(tc)
            case Gossip(transactions=transactions):
                for transaction in transactions:
                    verifier.transaction(transaction)
            case Blocks(blocks=blocks):
                for block in blocks:
                    verifier.block(block)
            case Snapshot():
                verifier.snapshot(message)
            case Offer():
                verifier.offer(message)
            case StoreAck():
                verifier.ack(message)
            case Attestation():
                verifier.attestation(message)
            case Pace():
                verifier.pace(message)
            case Evidence():
                verifier.evidence(message)
            case _:
                pass  # requests, hints and manifests carry no signature; their bounds are checked
