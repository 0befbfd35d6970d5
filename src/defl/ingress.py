"""The single entrance: bytes of an authenticated peer in, a checked event or a PeerFault out.

`POLICIES` states, once for each message type, who may send it and what makes it believable; a type
without a policy is refused.

Checks run in order of cost: length, canonical form, sender, epoch (`read`); whether the message is
wanted (`Participant.wanted`, which the driver asks in between); internal consistency (`examine`);
signatures, in slices and charged to the peer (`check`). Both drivers follow this order. `read`,
`examine` and `check` change no state here, so they may run in threads.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any

from defl.committee import Committee, Federation
from defl.consensus.chain import genesis_of
from defl.contacts import PeerRole
from defl.crypto import Scheme
from defl.errors import Malformed, WrongAuthor, WrongEpoch
from defl.ids import Digest, NodeId, digest_of
from defl.ledger import Ledger
from defl.messages import (
    TRANSACTIONS_PER_MEMBER,
    Attestation,
    BlockRequest,
    Blocks,
    Certificates,
    Chunk,
    ChunkRequest,
    Evidence,
    Gossip,
    Handover,
    Have,
    ManifestAnswer,
    ManifestRequest,
    Message,
    NotHeld,
    Offer,
    Pace,
    Proposal,
    Snapshot,
    Statements,
    StatementsRequest,
    Status,
    StoreAck,
    Timeout,
    Vote,
)
from defl.output import ClosedRound, OtherEpoch, Received, ReceivedChunk
from defl.verifier import Claim, Examination, Verifier
from defl.wire import (
    chunk_frame_bytes_max,
    control_frame_bytes_max,
    decode,
    epoch_of,
    says_chunk,
)

# Checked in one turn, about 2 ms; then the next peer gets its turn.
SLICE_SIGNATURES = 16


Decode = Callable[[bytes | memoryview, int], Message]


class Proof(Enum):
    """Why a message may be believed, and what that costs."""

    SIGNATURES = auto()  # in the message; each one not seen before is charged to the peer's budget
    HASH = auto()  # the digest that this node requested; the pool compares the two
    NONE = auto()  # a question or a hint; the code that answers it limits its answers


@dataclass(frozen=True, slots=True)
class Policy:
    """What a message of one type must satisfy. The functions read a message of that type."""

    proof: Proof
    sender: Callable[[Any], NodeId] | None = None  # the only allowed sender; None: any relay
    epoch: Callable[[Any], int] | None = None  # must be the frame's
    transactions: Callable[[Any], int] | None = None  # at most TRANSACTIONS_PER_MEMBER * n
    outsiders: tuple[PeerRole, ...] = ()  # who else may send it than members


POLICIES: dict[type[Message], Policy] = {
    # Statements about the present view or round: only their authors may send them.
    Proposal: Policy(
        Proof.SIGNATURES,
        sender=lambda proposal: proposal.block.header.author,
        epoch=lambda proposal: proposal.block.header.epoch,
    ),
    Vote: Policy(Proof.SIGNATURES, sender=lambda vote: vote.author, epoch=lambda vote: vote.epoch),
    Timeout: Policy(
        Proof.SIGNATURES, sender=lambda timeout: timeout.author, epoch=lambda timeout: timeout.epoch
    ),
    StoreAck: Policy(Proof.SIGNATURES, sender=lambda ack: ack.acker),
    # Relayed: each carries its authors' signatures.
    Certificates: Policy(Proof.SIGNATURES),
    Gossip: Policy(
        Proof.SIGNATURES,
        transactions=lambda gossip: len(gossip.transactions),
        outsiders=(PeerRole.GUEST,),  # its READY, which it signs
    ),
    Blocks: Policy(Proof.SIGNATURES),
    Snapshot: Policy(Proof.SIGNATURES, epoch=lambda snapshot: snapshot.block.epoch),
    Handover: Policy(
        Proof.SIGNATURES, outsiders=(PeerRole.GUEST, PeerRole.FORMER, PeerRole.STRANGER)
    ),
    Offer: Policy(Proof.SIGNATURES),
    Attestation: Policy(Proof.SIGNATURES),
    Pace: Policy(Proof.SIGNATURES),
    Evidence: Policy(Proof.SIGNATURES),
    Statements: Policy(Proof.SIGNATURES),
    # Parts of a blob. A former member may have been asked while it was one.
    ManifestAnswer: Policy(Proof.HASH, outsiders=(PeerRole.FORMER,)),
    Chunk: Policy(Proof.HASH, outsiders=(PeerRole.FORMER,)),
    # Questions and hints.
    Status: Policy(Proof.NONE, outsiders=(PeerRole.GUEST, PeerRole.FORMER)),
    BlockRequest: Policy(Proof.NONE, outsiders=(PeerRole.GUEST,)),
    ManifestRequest: Policy(Proof.NONE, outsiders=(PeerRole.GUEST, PeerRole.FORMER)),
    ChunkRequest: Policy(Proof.NONE, outsiders=(PeerRole.GUEST, PeerRole.FORMER)),
    NotHeld: Policy(Proof.NONE, outsiders=(PeerRole.FORMER,)),
    Have: Policy(Proof.NONE),
    StatementsRequest: Policy(Proof.NONE),
}


def policy_of(message: Message) -> Policy:
    policy = POLICIES.get(type(message))
    if policy is None:
        raise Malformed(f"no policy states how a {type(message).__name__} is admitted")
    return policy


@dataclass(frozen=True, slots=True)
class Examined:
    """A message that may be believed if its signatures are valid."""

    peer: NodeId
    message: Message
    chunk_digest: Digest | None  # of a chunk, which has no signatures
    examination: Examination | None  # of a message that carries signatures

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The signatures that this node has not checked yet."""
        return () if self.examination is None else self.examination.claims

    @property
    def signatures(self) -> int:
        return len(self.claims)

    def slices(self) -> Iterator[tuple[Claim, ...]]:
        claims = self.claims
        for start in range(0, len(claims), SLICE_SIGNATURES):
            yield claims[start : start + SLICE_SIGNATURES]


class Ingress:
    """The entrance of one epoch."""

    def __init__(
        self,
        federation: Federation,
        scheme: Scheme,
        closed: tuple[ClosedRound, ...] = (),
        role_of: Callable[[NodeId], PeerRole] | None = None,
    ) -> None:
        self.epoch = federation.epoch
        self._role_of = role_of or partial(_member_or_stranger, federation.committee)
        self._committee: Committee = federation.committee
        # By slots: the rounds that are kept may be of an epoch with more members.
        self._control_bytes_max = control_frame_bytes_max(self._committee.slots)
        self._chunk_bytes_max = chunk_frame_bytes_max(federation.chunk_bytes)
        genesis = genesis_of(federation, Ledger(federation, closed))
        self._verifier = Verifier(federation, scheme, genesis.id)

    def read(
        self, peer: NodeId, frame: bytes | memoryview, decode: Decode = decode
    ) -> Message | OtherEpoch:
        """Run every check that needs neither a signature nor the node's state.

        A frame of another epoch is no fault: one of the two has not heard of a boundary yet.
        """
        chunk = says_chunk(frame)
        message = decode(frame, self._chunk_bytes_max if chunk else self._control_bytes_max)
        policy = policy_of(message)
        role = self._role_of(peer)
        epoch = epoch_of(frame, message)
        if epoch is not None and epoch != self.epoch and role is not PeerRole.STRANGER:
            return OtherEpoch(peer, epoch)
        if role is not PeerRole.MEMBER and role not in policy.outsiders:
            raise WrongAuthor(f"a {type(message).__name__} of a {role}")
        if policy.sender is not None:
            self._check_sender(peer, message, policy.sender(message))
        if policy.epoch is not None and policy.epoch(message) != epoch:
            raise WrongEpoch(f"a {type(message).__name__} of another epoch than its frame's")
        if policy.transactions is not None:
            self._check_length(policy.transactions(message))
        return message

    def examine(self, peer: NodeId, message: Message) -> Examined:
        """Check internal consistency; the signatures remain to be checked."""
        signed = policy_of(message).proof is Proof.SIGNATURES
        chunk_digest = digest_of(message.data) if isinstance(message, Chunk) else None
        examination = self._verifier.examine(message) if signed else None
        return Examined(peer, message, chunk_digest, examination)

    def check(self, claims: Iterable[Claim]) -> None:
        self._verifier.check(claims)

    def accept(self, examined: Examined) -> Received | ReceivedChunk:
        """Turn a message into an event once all its slices are checked; only now are its
        signatures remembered as valid."""
        if examined.examination is not None:
            self._verifier.accept(examined.examination)
        peer, message = examined.peer, examined.message
        if isinstance(message, Chunk) and examined.chunk_digest is not None:
            return ReceivedChunk(
                peer, message.digest, message.index, message.data, examined.chunk_digest
            )
        return Received(peer, message, self.epoch)

    def remember_own(self, me: NodeId, message: Digest, signature: bytes) -> None:
        """This node's votes and acks come back in certificates and need no check."""
        self._verifier.remember(me, message, signature)

    def admit(
        self, peer: NodeId, frame: bytes | memoryview
    ) -> Received | ReceivedChunk | OtherEpoch:
        """All steps at once, for a caller that wants every message and charges no budget."""
        message = self.read(peer, frame)
        if isinstance(message, OtherEpoch):
            return message
        examined = self.examine(peer, message)
        for claims in examined.slices():
            self.check(claims)
        return self.accept(examined)

    def _check_sender(self, peer: NodeId, message: Message, author: NodeId) -> None:
        if author != peer:
            kind = type(message).__name__
            raise WrongAuthor(f"member {peer} sent a {kind} in the name of member {author}")

    def _check_length(self, transactions: int) -> None:
        transactions_max = TRANSACTIONS_PER_MEMBER * self._committee.slots
        if transactions > transactions_max:
            raise Malformed(
                f"{transactions} transactions in a Gossip, at most {transactions_max} are allowed"
            )


def _member_or_stranger(committee: Committee, peer: NodeId) -> PeerRole:
    return PeerRole.MEMBER if committee.has(peer) else PeerRole.STRANGER
