"""Is this signature, certificate or block what it claims to be? Decided by real code, once.

Everything here is a function of the federation's facts and the message; a bounded cache remembers
certificates that were already found valid, since each travels in many messages.
"""

from collections import OrderedDict

from defl.committee import Federation
from defl.crypto import Scheme, Tag, statement
from defl.errors import BadBlob, BadBlock, BadCertificate, BadSignature, WrongEpoch
from defl.ids import NO_DIGEST, Digest, NodeId
from defl.messages import (
    QC,
    TC,
    Agg,
    Attestation,
    Block,
    Evidence,
    Header,
    Offer,
    Pace,
    Proposal,
    SignedHeader,
    Snapshot,
    Statement,
    StoreAck,
    Timeout,
    Transaction,
    Upd,
    Vote,
    ack_statement,
    attestation_statement,
    genesis_qc,
    members_in,
    timeout_statement,
    transactions_root,
    vote_statement,
)

# Each view brings one QC and perhaps one TC, each round n certified UPDs: this remembers the last
# few rounds of the largest federation.
VERIFIED_MAX = 1024


class Verifier:
    def __init__(self, federation: Federation, scheme: Scheme, genesis: Digest) -> None:
        self._chain = federation.chain
        self._epoch = federation.epoch
        self._committee = federation.committee
        self._scheme = scheme
        self._genesis_qc = genesis_qc(genesis)
        self._verified: OrderedDict[QC | TC | Upd, None] = OrderedDict()

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
        """A block's parts fit together and its certificates hold; who may propose is not asked."""
        self._header(block.header)
        if transactions_root(block.transactions) != block.header.transactions_root:
            raise BadBlock("the transactions are not those that the header names")
        seen = {(type(tx), tx.round, tx.author) for tx in block.transactions}
        if len(seen) != len(block.transactions):
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

    def upd(self, upd: Upd) -> None:
        if upd in self._verified:
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
        if qc == self._genesis_qc or qc in self._verified:
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
        if tc in self._verified:
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

    def attestation(self, said: Attestation) -> None:
        message = attestation_statement(self._chain, self._epoch, said.round, said.digest)
        self._signed(said.author, message, said.signature, "attestation")

    def pace(self, pace: Pace) -> None:
        message = pace.statement(self._chain, self._epoch)
        self._signed(pace.author, message, pace.signature, "pace")

    def evidence(self, evidence: Evidence) -> None:
        for said in (evidence.first, evidence.second):
            self.statement(said)
        if not contradict(evidence.first, evidence.second):
            raise BadSignature("evidence of two statements that an honest node may both sign")

    def statement(self, said: Statement) -> None:
        match said:
            case SignedHeader(header=header, signature=signature):
                self._current(header.epoch)
                message = statement(Tag.PROPOSAL, self._chain, header.epoch, header.view, header.id)
                self._signed(header.author, message, signature, "proposal")
            case Vote():
                self.vote(said)
            case Timeout():
                self.timeout(said)
            case Offer():
                self.offer(said)
            case Upd():
                self.upd(said)
            case Attestation():
                self.attestation(said)

    def _quorum(self, bitmap: bytes, signatures: int, what: str) -> tuple[NodeId, ...]:
        members = members_in(bitmap)
        length = (self._committee.size + 7) // 8
        if len(bitmap) != length or (members and members[-1] >= self._committee.size):
            raise BadCertificate(f"{what} names members that do not exist")
        if len(members) != signatures:
            raise BadCertificate(f"{what} of {len(members)} members with {signatures} signatures")
        if len(members) < self._committee.quorum:
            raise BadCertificate(
                f"{what} of {len(members)} distinct members, {self._committee.quorum} are needed"
            )
        return members

    def _current(self, epoch: int) -> None:
        if epoch != self._epoch:
            raise WrongEpoch(f"epoch {epoch}, the federation is in epoch {self._epoch}")

    def _signed(self, author: NodeId, message: Digest, signature: bytes, what: str) -> None:
        if author >= self._committee.size:
            raise BadSignature(f"a {what} of member {author}, who does not exist")
        if not self._scheme.verify(self._committee.keys[author], message, signature):
            raise BadSignature(f"a {what} that member {author} did not sign")

    def _remember(self, certificate: QC | TC | Upd) -> None:
        self._verified[certificate] = None
        if len(self._verified) > VERIFIED_MAX:
            self._verified.popitem(last=False)


def contradict(first: Statement, second: Statement) -> bool:
    """Do these two statements of one author break a rule that every honest node keeps?"""
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
