"""Certificates, counted again from their signatures.

The checker trusts no certificate that an honest node uses: it verifies each signature itself and
counts distinct members. Nothing is shared with verify.py, which it judges.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from defl.committee import Federation
from defl.crypto import Scheme
from defl.fields import members_in
from defl.ids import Digest, NodeId, Round
from defl.messages import (
    QC,
    TC,
    Block,
    Snapshot,
    Upd,
    ack_statement,
    timeout_statement,
    vote_statement,
)
from defl.sim.verdicts import CERTIFICATES, MEMBERS_ONLY, ONE_UPDATE

# The checker's own memory is bounded, so that a long run shows whether the nodes' memory is.
REMEMBERED = 512

K = TypeVar("K")


def forget_oldest(remembered: dict[K, Any]) -> None:
    while len(remembered) > REMEMBERED:
        del remembered[next(iter(remembered))]


class Recount:
    """The certificates of one epoch."""

    def __init__(
        self, federation: Federation, scheme: Scheme, violate: Callable[[str, str], None]
    ) -> None:
        self._federation = federation
        self._committee = federation.committee
        self._scheme = scheme
        self._violate = violate
        self._counted: dict[QC | TC | Upd, None] = {}
        self._certified: dict[tuple[Round, NodeId], Digest] = {}

    def block(self, block: Block) -> None:
        self.certificate(block.qc)
        self.certificate(block.header.tc)
        for tx in block.transactions:
            if isinstance(tx, Upd):
                self.certificate(tx)

    def snapshot(self, snapshot: Snapshot) -> None:
        self.certificate(snapshot.proof.qc)
        self.certificate(snapshot.proof_qc)

    def certificate(self, certificate: QC | TC | Upd | None) -> None:
        if certificate is None or certificate in self._counted:
            return
        self._counted[certificate] = None
        forget_oldest(self._counted)
        chain, epoch = self._federation.chain, self._federation.epoch
        match certificate:
            case QC(view=0):
                return
            case QC(view=view, block=block):
                message = vote_statement(chain, epoch, view, block)
                signed = [(message, s) for s in certificate.signatures]
                bitmap = certificate.signers
            case TC(view=view):
                bitmap = certificate.signers
                signed = [
                    (timeout_statement(chain, epoch, view, high), s)
                    for high, s in zip(certificate.high_views, certificate.signatures, strict=False)
                ]
                if certificate.qc.view != max(certificate.high_views):
                    self._violate(CERTIFICATES, f"TC {view} does not carry its maximum QC")
                self.certificate(certificate.qc)
            case Upd():
                bitmap = certificate.ackers
                message = ack_statement(
                    chain,
                    epoch,
                    certificate.round,
                    certificate.author,
                    certificate.digest,
                    certificate.base,
                    certificate.size,
                )
                signed = [(message, s) for s in certificate.acks]
        members = members_in(bitmap)
        keys = self._committee.keys
        if not all(map(self._committee.has, members)):
            kind = type(certificate).__name__
            self._violate(MEMBERS_ONLY, f"epoch {epoch}: a {kind} names somebody who is no member")
        valid = {
            member
            for member, (message, signature) in zip(members, signed, strict=False)
            if self._committee.has(member) and self._scheme.verify(keys[member], message, signature)
        }
        if len(valid) < self._committee.quorum:
            kind = type(certificate).__name__
            self._violate(
                CERTIFICATES, f"a {kind} with {len(valid)} valid distinct members was used"
            )
        elif isinstance(certificate, Upd):
            slot = (certificate.round, certificate.author)
            if self._certified.setdefault(slot, certificate.digest) != certificate.digest:
                sentence = f"round {slot[0]}: two certified updates of {slot[1]}"
                self._violate(ONE_UPDATE, sentence)
            forget_oldest(self._certified)
