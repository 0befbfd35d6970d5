"""Verification: is a signature, certificate or block what it claims to be?

Everything here is a function of the federation's facts and the message. Bounded caches remember
valid certificates and valid single signatures, since each travels in many messages: a QC whose
votes were counted one by one costs nothing more.

The file is long because it is a list: one rule for each thing that is signed.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from defl.changes import CHANGE_BYTES_MAX, Approve, Change, Ready
from defl.committee import Federation
from defl.crypto import Scheme, Tag, statement
from defl.errors import (
    BadBlob,
    BadBlock,
    BadCertificate,
    BadSignature,
    Malformed,
    WrongEpoch,
)
from defl.fields import members_in
from defl.ids import NO_DIGEST, OUTSIDER, Digest, NodeId
from defl.messages import (
    QC,
    TC,
    Agg,
    Attestation,
    Block,
    BlockRequest,
    Blocks,
    Certificates,
    Chunk,
    ChunkRequest,
    Evidence,
    Gossip,
    Handover,
    Have,
    Header,
    ManifestAnswer,
    ManifestRequest,
    Message,
    NotHeld,
    Offer,
    Pace,
    Proposal,
    SignedHeader,
    Snapshot,
    Statement,
    Statements,
    StatementsRequest,
    Status,
    StoreAck,
    Timeout,
    Transaction,
    Upd,
    Vote,
    ack_statement,
    attestation_statement,
    genesis_qc,
    slot_of,
    timeout_statement,
    transactions_root,
    vote_statement,
)
from defl.succession import card_in

# Each view brings one QC and perhaps one TC, each round n certified UPDs: this remembers the last
# few rounds of the largest federation.
VERIFIED_MAX = 1024
# Per signer, so that a liar can evict only its own: acks for all members' updates of the last few
# rounds of the largest federation, and as many votes again.
SIGNATURES_KEPT = 512

Certificate = QC | TC | Upd
Verifiable = Message | Block | Transaction | Certificate
# Is there evidence already that this member contradicted itself in this kind of statement?
IsProven = Callable[[NodeId, type[Statement]], bool]


class Claim(NamedTuple):
    """A signature that this node has not checked yet."""

    author: NodeId
    statement: Digest
    signature: bytes
    kind: str  # of statement, for the fault's text
    key: bytes | None = None  # of an author that is no member yet


class Verifier:
    """Verifies in three steps, so that a driver can budget the costly one and run it elsewhere:
    `examine` (structure), `check` (signatures: pure, in any thread), `accept`."""

    def __init__(self, federation: Federation, scheme: Scheme, genesis: Digest) -> None:
        self.federation = federation
        self.genesis_qc = genesis_qc(genesis)
        self._scheme = scheme
        self._certificates: OrderedDict[Certificate, None] = OrderedDict()
        self._signatures: tuple[OrderedDict[bytes, None], ...] = tuple(
            OrderedDict() for _ in federation.members
        )

    def verify(self, thing: Verifiable) -> None:
        """All three steps at once; raises a PeerFault that names the violated rule."""
        examination = self.examine(thing)
        self.check(examination.claims)
        self.accept(examination)

    def examine(self, thing: Verifiable) -> "Examination":
        """Check everything but the signatures; new signatures become claims."""
        examination = Examination(self)
        examination.add(thing)
        return examination

    def check(self, claims: Iterable[Claim]) -> None:
        keys = self.federation.committee.keys
        for claim in claims:
            key = keys[claim.author] if claim.key is None else claim.key
            if not self._scheme.verify(key, claim.statement, claim.signature):
                who = "its key" if claim.key is not None else f"member {claim.author}"
                raise BadSignature(f"a {claim.kind} that {who} did not sign")

    def accept(self, examination: "Examination") -> None:
        """Remember checked claims and their certificates, so that neither is checked again."""
        for claim in examination.claims:
            if claim.key is None:
                self.remember(claim.author, claim.statement, claim.signature)
        for certificate in examination.certificates:
            self._certificates[certificate] = None
            if len(self._certificates) > VERIFIED_MAX:
                self._certificates.popitem(last=False)

    def remember(self, author: NodeId, message: Digest, signature: bytes) -> None:
        """The signature is valid: it was checked, or made here."""
        signatures = self._signatures[author]
        signatures[message + signature] = None
        if len(signatures) > SIGNATURES_KEPT:
            signatures.popitem(last=False)

    def knows(self, certificate: Certificate) -> bool:
        return certificate == self.genesis_qc or certificate in self._certificates

    def knows_signature(self, author: NodeId, message: Digest, signature: bytes) -> bool:
        return message + signature in self._signatures[author]


class Examination:
    """One message under verification: its parts fit together, its new signatures are unchecked."""

    def __init__(self, verifier: Verifier) -> None:
        federation = verifier.federation
        self._verifier = verifier
        self._chain = federation.chain
        self._origin = federation.origin
        self._epoch = federation.epoch
        self._committee = federation.committee
        self._claims: dict[tuple[NodeId, Digest, bytes], Claim] = {}
        self.certificates: dict[Certificate, None] = {}  # valid if all claims are

    @property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(self._claims.values())

    def add(self, thing: Verifiable) -> None:
        """Exactly one rule for each type; a type without one is refused."""
        match thing:
            case Proposal():
                self.proposal(thing)
            case Vote():
                self.vote(thing)
            case Timeout():
                self.timeout(thing)
            case Certificates(qc=qc, tc=tc):
                self.qc(qc)
                if tc is not None:
                    self.tc(tc)
            case Gossip(transactions=transactions):
                for transaction in transactions:
                    self.transaction(transaction)
            case Blocks(blocks=blocks):
                for block in blocks:
                    self.block(block)
            case Snapshot():
                self.snapshot(thing)
            case Handover(snapshot=snapshot):
                self.snapshot(snapshot)
            case Offer():
                self.offer(thing)
            case StoreAck():
                self.ack(thing)
            case Attestation():
                self.attestation(thing)
            case Pace():
                self.pace(thing)
            case Evidence():
                self.evidence(thing)
            case Block():
                self.block(thing)
            case Upd() | Agg() | Change() | Approve() | Ready():
                self.transaction(thing)
            case QC():
                self.qc(thing)
            case TC():
                self.tc(thing)
            case Statements():
                self.statements(thing)
            case Status() | BlockRequest() | ManifestRequest() | ChunkRequest() | NotHeld():
                pass  # questions and hints carry no signature
            case StatementsRequest() | Have():
                pass  # likewise
            case ManifestAnswer() | Chunk():
                pass  # named by hash: the pool compares it with its request
            case _:
                raise Malformed(f"no rule says how a {type(thing).__name__} is verified")

    def proposal(self, proposal: Proposal) -> None:
        self.block(proposal.block)
        author = proposal.block.header.author
        self._signed(author, proposal.statement(self._chain), proposal.signature, "proposal")

    def vote(self, vote: Vote) -> None:
        self._current(vote.epoch)
        message = vote_statement(self._chain, vote.epoch, vote.view, vote.block)
        self._signed(vote.author, message, vote.signature, "vote")

    def timeout(self, timeout: Timeout) -> None:
        self._current(timeout.epoch)
        if timeout.high_qc.view >= timeout.view:
            raise BadCertificate("a timeout reports a QC that is not older than its view")
        message = timeout_statement(self._chain, timeout.epoch, timeout.view, timeout.high_qc.view)
        self._signed(timeout.author, message, timeout.signature, "timeout")
        self.qc(timeout.high_qc)
        if timeout.tc is not None:
            self.tc(timeout.tc)

    def block(self, block: Block) -> None:
        """The block's parts fit together and its certificates are valid; any author is accepted."""
        self._header(block.header)
        if transactions_root(block.transactions) != block.header.transactions_root:
            raise BadBlock("the transactions are not those that the header names")
        slots = {slot_of(tx) for tx in block.transactions}
        if len(slots) != len(block.transactions):
            raise BadBlock("two transactions of one kind, author and round")
        for transaction in block.transactions:
            self.transaction(transaction)

    def _header(self, header: Header) -> None:
        self._current(header.epoch)
        if header.qc.block != header.parent:
            raise BadBlock("the QC does not certify the parent")
        if header.qc.view >= header.view:
            raise BadBlock("the QC is not older than the block")
        self.qc(header.qc)
        if header.tc is not None:
            self.tc(header.tc)

    def transaction(self, transaction: Transaction) -> None:
        match transaction:
            case Upd():
                self.upd(transaction)
            case Agg(author=author, signature=signature):
                message = transaction.statement(self._chain, self._epoch)
                self._signed(author, message, signature, "AGG")
            case Change():
                self.change(transaction)
            case Approve(author=author, signature=signature):
                message = transaction.statement(self._chain, self._epoch)
                self._signed(author, message, signature, "APPROVE")
            case Ready(key=key, signature=signature):
                message = transaction.statement(self._chain, self._epoch)
                self._signed_by(key, message, signature, "READY")

    def change(self, change: Change) -> None:
        if len(msgspec.msgpack.encode(change)) > CHANGE_BYTES_MAX:
            raise Malformed(f"a CHANGE of more than {CHANGE_BYTES_MAX} bytes")
        message = change.statement(self._chain, self._epoch)
        self._signed(change.author, message, change.signature, "CHANGE")
        for operation in change.operations:
            card = card_in(operation)
            if card is not None:
                self._signed_by(card.key, card.statement(self._origin), card.signature, "card")

    def upd(self, upd: Upd) -> None:
        if self._knows(upd):
            return
        self._signed(upd.author, upd.statement(self._chain, self._epoch), upd.signature, "UPD")
        message = ack_statement(
            self._chain, self._epoch, upd.round, upd.author, upd.digest, upd.base, upd.size
        )
        signers = self._quorum(upd.ackers, len(upd.acks), "an availability certificate")
        for acker, signature in zip(signers, upd.acks, strict=True):
            self._signed(acker, message, signature, "store-ack")
        self._remember(upd)

    def qc(self, qc: QC) -> None:
        if self._knows(qc):
            return
        if qc.view == 0:
            raise BadCertificate("a QC of view 0 that is not the genesis QC")
        message = vote_statement(self._chain, self._epoch, qc.view, qc.block)
        for member, signature in zip(
            self._quorum(qc.signers, len(qc.signatures), "a QC"), qc.signatures, strict=True
        ):
            self._signed(member, message, signature, "vote in a QC")
        self._remember(qc)

    def tc(self, tc: TC) -> None:
        if self._knows(tc):
            return
        signers = self._quorum(tc.signers, len(tc.signatures), "a TC")
        if len(tc.high_views) != len(signers):
            raise BadCertificate("a TC needs one QC view for each signer")
        if max(tc.high_views) >= tc.view:
            raise BadCertificate("a TC reports a QC that is not older than its view")
        if tc.qc.view != max(tc.high_views):
            raise BadCertificate("a TC must carry the QC of its signers' maximum view")
        for member, view, signature in zip(signers, tc.high_views, tc.signatures, strict=True):
            message = timeout_statement(self._chain, self._epoch, tc.view, view)
            self._signed(member, message, signature, "timeout in a TC")
        self.qc(tc.qc)
        self._remember(tc)

    def snapshot(self, snapshot: Snapshot) -> None:
        self._current(snapshot.block.epoch)
        self._header(snapshot.proof)
        if snapshot.proof_qc.block != snapshot.proof.id:
            raise BadCertificate("a snapshot whose QC does not certify its proof")
        self.qc(snapshot.proof_qc)
        if snapshot.proof.committed != snapshot.block.id:
            raise BadBlock("a snapshot of a block that its proof does not name")

    def offer(self, offer: Offer) -> None:
        if offer.manifest.base == NO_DIGEST:
            raise BadBlob("an offer must say what its update was trained from")
        message = offer.statement(self._chain, self._epoch)
        self._signed(offer.author, message, offer.signature, "offer")

    def ack(self, ack: StoreAck) -> None:
        message = ack_statement(
            self._chain, self._epoch, ack.round, ack.author, ack.digest, ack.base, ack.size
        )
        self._signed(ack.acker, message, ack.signature, "store-ack")

    def attestation(self, attestation: Attestation) -> None:
        message = attestation_statement(
            self._chain, self._epoch, attestation.round, attestation.digest
        )
        self._signed(attestation.author, message, attestation.signature, "attestation")

    def pace(self, pace: Pace) -> None:
        message = pace.statement(self._chain, self._epoch)
        self._signed(pace.author, message, pace.signature, "pace")

    def evidence(self, evidence: Evidence) -> None:
        self._current(evidence.epoch)
        self.statement(evidence.first)
        self.statement(evidence.second)
        if not contradict(evidence.first, evidence.second):
            raise BadSignature("evidence of two statements that an honest node may both sign")

    def statements(self, statements: Statements) -> None:
        newest = (statements.vote, statements.timeout, statements.proposal, statements.offer)
        for signed in newest:
            if signed is not None:
                self.statement(signed)
        for ack in statements.acks:
            self.ack(ack)

    def statement(self, signed: Statement) -> None:
        match signed:
            case SignedHeader(header=header, signature=signature):
                self._current(header.epoch)
                message = statement(Tag.PROPOSAL, self._chain, header.epoch, header.view, header.id)
                self._signed(header.author, message, signature, "proposal")
            case Vote():
                self.vote(signed)
            case Timeout():
                self.timeout(signed)
            case Offer():
                self.offer(signed)
            case Upd():
                self.upd(signed)
            case Attestation():
                self.attestation(signed)

    def _quorum(self, bitmap: bytes, signatures: int, certificate: str) -> tuple[NodeId, ...]:
        members = members_in(bitmap)
        length = (self._committee.slots + 7) // 8
        if len(bitmap) != length or not all(map(self._committee.has, members)):
            raise BadCertificate(f"{certificate} names members that do not exist")
        if len(members) != signatures:
            raise BadCertificate(
                f"{certificate} of {len(members)} members with {signatures} signatures"
            )
        if len(members) < self._committee.quorum:
            raise BadCertificate(
                f"{certificate} of {len(members)} distinct members, "
                f"{self._committee.quorum} are needed"
            )
        return members

    def _current(self, epoch: int) -> None:
        if epoch != self._epoch:
            raise WrongEpoch(f"epoch {epoch}, the federation is in epoch {self._epoch}")

    def _signed(self, author: NodeId, message: Digest, signature: bytes, kind: str) -> None:
        if not self._committee.has(author):
            raise BadSignature(f"a {kind} of member {author}, which does not exist")
        if not self._verifier.knows_signature(author, message, signature):
            claim = Claim(author, message, signature, kind)
            self._claims.setdefault(claim[:3], claim)

    def _signed_by(self, key: bytes, message: Digest, signature: bytes, kind: str) -> None:
        """By a key that is no member's, and that the message names."""
        claim = Claim(OUTSIDER, message, signature, kind, key)
        self._claims.setdefault(claim[:3], claim)

    def _knows(self, certificate: Certificate) -> bool:
        return certificate in self.certificates or self._verifier.knows(certificate)

    def _remember(self, certificate: Certificate) -> None:
        self.certificates[certificate] = None


def contradict(first: Statement, second: Statement) -> bool:
    """Is this a pair of statements of one author that no honest node signs both?"""
    if first.author != second.author:
        return False
    match first, second:
        case SignedHeader(header=one), SignedHeader(header=two):
            return (one.epoch, one.view) == (two.epoch, two.view) and one.id != two.id
        case Vote(), Vote():
            return (first.epoch, first.view) == (second.epoch, second.view) and (
                first.block != second.block
            )
        case Timeout(), Timeout():
            return (first.epoch, first.view) == (second.epoch, second.view) and (
                first.high_qc.view != second.high_qc.view
            )
        case Offer(), Offer():
            return first.round == second.round and first.manifest != second.manifest
        case Upd(), Upd():
            return first.round == second.round and (
                (first.digest, first.base) != (second.digest, second.base)
            )
        case Attestation(), Attestation():
            return first.round == second.round and first.digest != second.digest
        case _:
            return False
