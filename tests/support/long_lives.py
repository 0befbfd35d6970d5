"""A lineage of many epochs, signed directly instead of lived through.

Each epoch has one round, and ends with the replacement of one member's key.

    python tests/support/long_lives.py FOLDER MEMBERS EPOCHS
    defl verify FOLDER/federation.toml --lineage FOLDER/lineage.json --json
"""

import sys
from hashlib import sha256
from pathlib import Path

import msgspec
import numpy as np

from defl.changes import ReplaceKey
from defl.committee import DEFAULTS, Federation
from defl.crypto import Ed25519Signer, Signer
from defl.fields import bitmap_of
from defl.founding import found
from defl.ids import Digest, Height, NodeId, Round, View, digest_of
from defl.ledger import Ledger, LedgerState
from defl.lineage import Epoch
from defl.messages import QC, Handover, Header, Snapshot, Upd, vote_statement
from defl.node.report.certificate import RoundCertificate, certificate_of
from defl.node.report.lineage_file import LINEAGE_FORMAT, Lineage, lineage_bytes
from defl.node.setup.agreement import federation_text, membership_of, read_federation
from defl.node.setup.identity import Identity, make_card, make_identity
from defl.output import ClosedRound, Reference, RoundProven
from defl.schema import Entry, Schema
from defl.succession import PendingChange, ReadyKey

VALUES = 64


def identity_of(member: int, epoch: int = 0) -> Identity:
    key = sha256(f"long life, {member}, {epoch}".encode()).digest()
    return make_identity(f"member-{member}", key=key)


def address_of(member: int) -> str:
    return f"member-{member}.example.org:7400"


def write_long_life(folder: Path, members: int, epochs: int) -> None:
    """federation.toml and lineage.json."""
    identities = [identity_of(member) for member in range(members)]
    cards = [make_card(identity, address_of(i)) for i, identity in enumerate(identities)]
    schema = Schema((Entry("point", (VALUES,)),))
    draft = msgspec.structs.replace(DEFAULTS, schema=schema)
    membership = membership_of(cards, rounds=epochs + 1)
    founding = found(draft, membership, np.zeros(VALUES, dtype=np.float32))
    path = folder / "federation.toml"
    path.write_text(federation_text(founding.federation, cards), encoding="utf-8")
    agreement = read_federation(path)
    signers: list[Signer] = [Ed25519Signer(identity.key) for identity in identities]
    epoch = Epoch(agreement.federation)
    handovers, certificates = [], []
    base = agreement.federation.initial
    for number in range(epochs):
        closed = _closed(epoch.federation, signers, Round(number + 1), base)
        certificates.append(_certificate(epoch.federation, closed))
        joiner = identity_of(number % members, number + 1)
        end = _end(epoch, closed, number % members, joiner)
        handovers.append(_handover(epoch.federation, signers, end))
        epoch = epoch.after(end)
        signers[number % members] = Ed25519Signer(joiner.key)
        base = digest_of(b"model" + closed.base)
    lineage = Lineage(
        LINEAGE_FORMAT, agreement.text.decode(), tuple(handovers), tuple(certificates)
    )
    (folder / "lineage.json").write_bytes(lineage_bytes(lineage))


def _closed(facts: Federation, signers: list[Signer], round_: Round, base: Digest) -> ClosedRound:
    committee = facts.committee
    ackers = bitmap_of(committee.members[: committee.quorum], committee.slots)
    references = []
    for member, signer in enumerate(signers):
        digest = digest_of(f"{round_} {member}".encode())
        upd = Upd(round_, NodeId(member), digest, 4 * VALUES, base, ackers, (), b"")
        signature = signer.sign(upd.statement(facts.chain, facts.epoch))
        references.append(Reference(upd.author, digest, upd.size, base, ackers, signature))
    return ClosedRound(round_, base, base, tuple(references), facts.epoch, committee.faults)


def _certificate(facts: Federation, closed: ClosedRound) -> RoundCertificate:
    before = Round(closed.round - 1)
    return certificate_of(facts, RoundProven(before, closed.base, closed.updates, closed.epoch))


def _end(epoch: Epoch, closed: ClosedRound, member: int, joiner: Identity) -> LedgerState:
    facts = epoch.federation
    card = make_card(joiner, address_of(member), origin=facts.origin)
    approvals = facts.committee.members[: facts.committee.quorum]
    operations = (ReplaceKey(NodeId(member), card),)
    change = PendingChange(closed.round, NodeId(0), digest_of(card.key), operations, approvals)
    kept = (*epoch.closed, closed)[-facts.tau :]
    ready = (ReadyKey(card.key, closed.round),)
    return LedgerState(closed.round, (), (), kept, (change,), ready, ended=True)


def _handover(facts: Federation, signers: list[Signer], end: LedgerState) -> Handover:
    ledger = Ledger(facts)
    encoded = ledger.encode(end)
    block = _header(facts, signers, 3, digest_of(b"nothing"), ledger.root_of(b""))
    proof = _header(facts, signers, 5, block.id, ledger.root_of(encoded))
    return Handover(Snapshot(block, encoded, proof, _qc(facts, signers, 5, proof.id)))


def _header(
    facts: Federation, signers: list[Signer], view: int, committed: Digest, root: Digest
) -> Header:
    parent = digest_of(f"parent of {view}".encode())
    qc = _qc(facts, signers, view - 1, parent)
    height = Height(view)
    return Header(
        facts.epoch, View(view), height, parent, qc, None, parent, committed, root, NodeId(0)
    )


def _qc(facts: Federation, signers: list[Signer], view: int, block: Digest) -> QC:
    committee = facts.committee
    voters = committee.members[: committee.quorum]
    message = vote_statement(facts.chain, facts.epoch, View(view), block)
    signatures = tuple(signers[voter].sign(message) for voter in voters)
    return QC(View(view), block, bitmap_of(voters, committee.slots), signatures)


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    write_long_life(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
