"""Signatures and certificates with real Ed25519: what is accepted, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest

from defl.crypto import Tag, statement
from defl.errors import (
    BadBlob,
    BadBlock,
    BadSignature,
    PeerFault,
    WrongEpoch,
)
from defl.ids import NO_DIGEST, NodeId, Round, View
from defl.messages import (
    Attestation,
    Evidence,
    Proposal,
    SignedHeader,
    Vote,
)
from defl.verifier import Verifier
from support.builders import Small, name, nodes, tampered

SMALL = Small()
BLOCK = SMALL.block((SMALL.upd(0, 1), SMALL.agg(2, 1)))
QC_1 = SMALL.qc(1, BLOCK.id)
MANIFEST, _ = SMALL.blob(1)
OTHER_MANIFEST, _ = SMALL.blob(2)

STATEMENTS: dict[str, Any] = {
    "proposal": SMALL.proposal(BLOCK),
    "vote": SMALL.vote(1, 1, BLOCK.id),
    "timeout": SMALL.timeout(1, 3, QC_1),
    "offer": SMALL.offer(1, 1, MANIFEST),
    "ack": SMALL.ack(1, SMALL.offer(0, 1, MANIFEST)),
    "upd": SMALL.upd(1, 1),
    "agg": SMALL.agg(1, 1),
    "attestation": SMALL.attestation(1, 3, name("model")),
    "pace": SMALL.pace(1, 3, 50_000),
}


def check(verifier: Verifier, message: Any) -> None:
    verifier.verify(message)


def with_header(proposal: Proposal, **fields: Any) -> Proposal:
    header = tampered(proposal.block.header, **fields)
    return tampered(proposal, block=tampered(proposal.block, header=header))


# --- Statements ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STATEMENTS)
def test_a_message_signed_by_its_author_is_accepted(kind: str) -> None:
    check(SMALL.verifier(), STATEMENTS[kind])


TAMPERED = [
    ("vote", "view", View(2)),
    ("vote", "block", name("another block")),
    ("vote", "author", NodeId(2)),
    ("timeout", "view", View(4)),
    ("timeout", "high_qc", SMALL.genesis_qc),
    ("timeout", "author", NodeId(2)),
    ("offer", "round", Round(2)),
    ("offer", "author", NodeId(2)),
    ("offer", "manifest", OTHER_MANIFEST),
    ("offer", "manifest", tampered(MANIFEST, base=name("another base"))),
    ("ack", "round", Round(2)),
    ("ack", "author", NodeId(2)),
    ("ack", "digest", name("another blob")),
    ("ack", "base", name("another base")),
    ("ack", "size", 401),
    ("ack", "acker", NodeId(2)),
    ("upd", "round", Round(2)),
    ("upd", "author", NodeId(2)),
    ("upd", "digest", name("another blob")),
    ("upd", "size", 401),
    ("upd", "base", name("another base")),
    ("agg", "round", Round(2)),
    ("agg", "author", NodeId(2)),
    ("attestation", "round", Round(2)),
    ("attestation", "digest", name("another model")),
    ("attestation", "author", NodeId(2)),
    ("pace", "round", Round(2)),
    ("pace", "milliseconds", 50_001),
    ("pace", "author", NodeId(2)),
]


@pytest.mark.parametrize(("kind", "field", "value"), TAMPERED)
def test_a_signature_covers_every_field(kind: str, field: str, value: object) -> None:
    with pytest.raises(BadSignature):
        check(SMALL.verifier(), tampered(STATEMENTS[kind], **{field: value}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("view", View(5)),
        ("height", 2),
        ("committed", name("another block")),
        ("state_root", name("another state")),
        ("author", NodeId((STATEMENTS["proposal"].block.header.author + 1) % 4)),
        ("tc", SMALL.tc(4)),
    ],
)
def test_a_proposals_signature_covers_every_field_of_the_header(field: str, value: object) -> None:
    with pytest.raises(BadSignature):
        check(SMALL.verifier(), with_header(STATEMENTS["proposal"], **{field: value}))


@pytest.mark.parametrize("kind", STATEMENTS)
def test_a_flipped_bit_in_a_signature_is_detected(kind: str) -> None:
    message = STATEMENTS[kind]
    flipped = bytes([message.signature[0] ^ 1]) + message.signature[1:]
    with pytest.raises(BadSignature):
        check(SMALL.verifier(), tampered(message, signature=flipped))


@pytest.mark.parametrize("kind", STATEMENTS)
def test_a_signature_of_a_nonexistent_member_is_refused(kind: str) -> None:
    message = STATEMENTS[kind]
    stranger = NodeId(SMALL.size)
    if kind == "proposal":
        message = with_header(message, author=stranger)
    else:
        message = tampered(message, **{"acker" if kind == "ack" else "author": stranger})
    with pytest.raises(BadSignature, match="does not exist"):
        check(SMALL.verifier(), message)


# --- Domains ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STATEMENTS)
def test_a_statement_of_another_federation_with_the_same_keys_is_refused(kind: str) -> None:
    """Only the chain id differs: keys, epoch and genesis block are the same."""
    other = Small(rounds=4)
    assert other.federation.committee == SMALL.federation.committee
    verifier = Verifier(other.federation, SMALL.scheme, SMALL.genesis.id)

    with pytest.raises(BadSignature):
        check(verifier, STATEMENTS[kind])


@pytest.mark.parametrize("kind", STATEMENTS)
def test_a_statement_of_another_epoch_is_refused(kind: str) -> None:
    """Only the epoch differs: even the chain id is the same."""
    other = Small(epoch=1)
    other.federation.__dict__["chain"] = SMALL.chain
    verifier = Verifier(other.federation, SMALL.scheme, SMALL.genesis.id)

    with pytest.raises((WrongEpoch, BadSignature)):
        check(verifier, STATEMENTS[kind])


@pytest.mark.parametrize("kind", ["vote", "timeout", "proposal"])
def test_a_statement_that_claims_another_epoch_is_refused_as_such(kind: str) -> None:
    """Even if it is correctly signed for that epoch by the same keys."""
    ahead = Small(epoch=1)
    ahead.chain = SMALL.chain
    message: Any = {
        "vote": ahead.vote(1, 1, BLOCK.id),
        "timeout": ahead.timeout(1, 3, SMALL.genesis_qc),
        "proposal": ahead.proposal(SMALL.block(epoch=1)),
    }[kind]

    with pytest.raises(WrongEpoch):
        check(SMALL.verifier(), message)


def test_a_snapshot_of_another_epoch_is_refused() -> None:
    snapshot = SMALL.snapshot()
    with pytest.raises(WrongEpoch):
        SMALL.verifier().verify(tampered(snapshot, block=tampered(snapshot.block, epoch=1)))


DIGEST = name("what is signed")
# Kinds whose fields look alike: one's signature, put into a message of the other.
LOOKALIKES: dict[str, Callable[[], Any]] = {
    "a vote as an attestation": lambda: Attestation(
        Round(3), DIGEST, NodeId(1), SMALL.vote(1, 3, DIGEST).signature
    ),
    "an attestation as a vote": lambda: Vote(
        0, View(3), DIGEST, NodeId(1), SMALL.attestation(1, 3, DIGEST).signature, View(0), View(0)
    ),
    "a vote as a proposal": lambda: Proposal(BLOCK, SMALL.vote(1, 1, BLOCK.id).signature),
    "a proposal as a vote": lambda: Vote(
        0, View(1), BLOCK.id, NodeId(1), SMALL.proposal(BLOCK).signature, View(0), View(0)
    ),
    "an AGG as a timeout": lambda: tampered(
        SMALL.timeout(0, 3), signature=SMALL.agg(0, 3).signature
    ),
    "a timeout as an AGG": lambda: tampered(
        SMALL.agg(0, 3), signature=SMALL.timeout(0, 3).signature
    ),
}


@pytest.mark.parametrize("kind", LOOKALIKES)
def test_a_signature_is_never_valid_for_another_kind_of_statement(kind: str) -> None:
    with pytest.raises(BadSignature):
        check(SMALL.verifier(), LOOKALIKES[kind]())


def test_votes_cannot_be_counted_as_store_acks_nor_acks_as_votes() -> None:
    about = (Round(1), NodeId(1), DIGEST, NO_DIGEST, 400)
    statements = {statement(tag, SMALL.chain, 0, *about) for tag in Tag}

    assert len(statements) == len(Tag)


def test_adjacent_fields_cannot_be_confused() -> None:
    statements = {
        statement(Tag.VOTE, SMALL.chain, 0, *fields)
        for fields in [(b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"abc", b""), (1, 2), (1,)]
    }

    assert len(statements) == 6


# --- Blocks, snapshots, offers, evidence -----------------------------------------------------


@pytest.mark.parametrize(
    ("why", "block"),
    [
        ("other transactions", tampered(BLOCK, transactions=(SMALL.agg(2, 1),))),
        ("no transactions", tampered(BLOCK, transactions=())),
        ("one twice", SMALL.block((SMALL.agg(1, 1), SMALL.agg(1, 1)))),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_a_block_with_transactions_that_do_not_fit_it_is_refused(why: str, block: Any) -> None:
    with pytest.raises(BadBlock):
        SMALL.verifier().verify(block)


def test_a_block_must_extend_the_block_that_its_qc_certifies() -> None:
    child = SMALL.block(view=2, parent=BLOCK)
    SMALL.verifier().verify(child)
    elsewhere = tampered(child.header, parent=SMALL.genesis.id)
    with pytest.raises(BadBlock, match="certify the parent"):
        SMALL.verifier().verify(tampered(child, header=elsewhere))


def test_a_block_must_be_newer_than_its_qc() -> None:
    with pytest.raises(BadBlock, match="not older"):
        SMALL.verifier().verify(SMALL.block(view=1, parent=BLOCK))


@pytest.mark.parametrize(
    "forged",
    [
        tampered(SMALL.agg(1, 1), signature=bytes(64)),
        tampered(SMALL.upd(1, 1), signature=bytes(64)),
        tampered(SMALL.upd(1, 1), acks=(bytes(64),) * 3),
    ],
)
def test_a_block_with_a_forged_transaction_is_refused(forged: Any) -> None:
    with pytest.raises(BadSignature):
        SMALL.verifier().verify(SMALL.block((forged,)))


def test_a_certificate_for_another_blob_does_not_certify_this_one() -> None:
    """Signed correctly by its author, with the acks of another digest, base or size."""
    for other in (
        SMALL.upd(1, 1, digest=name("another blob")),
        SMALL.upd(1, 1, base=name("another base")),
        SMALL.upd(1, 1, size=401),
        SMALL.upd(2, 1, digest=SMALL.upd(1, 1).digest),
        SMALL.upd(1, 2, digest=SMALL.upd(1, 1).digest),
    ):
        with pytest.raises(BadSignature, match="store-ack"):
            SMALL.verifier().verify(tampered(SMALL.upd(1, 1), acks=other.acks))


def test_a_snapshot_is_proven_by_a_certified_header_that_names_it() -> None:
    SMALL.verifier().verify(SMALL.snapshot())


def test_a_snapshot_with_an_invalid_proof_is_refused() -> None:
    true = SMALL.snapshot()
    forged_qc = tampered(true.proof_qc, signatures=(bytes(64),) * 3)
    for fake in (
        tampered(true, block=tampered(true.block, height=7)),
        tampered(true, proof=tampered(true.proof, state_root=name("another state"))),
        tampered(true, proof=tampered(true.proof, committed=name("another block"))),
        tampered(true, proof_qc=QC_1),
        tampered(true, proof_qc=forged_qc),
        tampered(true, proof_qc=SMALL.qc(2, true.proof.id, nodes(0, 1))),
    ):
        with pytest.raises(PeerFault):
            SMALL.verifier().verify(fake)


def test_a_snapshot_of_a_block_that_a_true_proof_does_not_name_is_refused() -> None:
    """All certificates hold; only the block is another one."""
    true = SMALL.snapshot()
    with pytest.raises(BadBlock, match="does not name"):
        SMALL.verifier().verify(tampered(true, block=BLOCK.header))


def test_an_offer_must_name_its_base() -> None:
    manifest, _ = SMALL.blob(1, base=NO_DIGEST)
    with pytest.raises(BadBlob):
        SMALL.verifier().verify(SMALL.offer(1, 1, manifest))


def signed_header(view: int, **fields: Any) -> SignedHeader:
    proposal = SMALL.proposal(SMALL.block(view=view, **fields))
    return SignedHeader(proposal.block.header, proposal.signature)


ONE, TWO = name("one"), name("two")
CONTRADICTIONS: dict[str, tuple[Any, Any]] = {
    "proposals": (signed_header(5), signed_header(5, height=9)),
    "votes": (SMALL.vote(1, 3, ONE), SMALL.vote(1, 3, TWO)),
    "timeouts": (SMALL.timeout(1, 3, QC_1), SMALL.timeout(1, 3)),
    "offers": (SMALL.offer(1, 1, MANIFEST), SMALL.offer(1, 1, OTHER_MANIFEST)),
    "updates": (SMALL.upd(1, 1, digest=ONE), SMALL.upd(1, 1, digest=TWO)),
    "bases": (SMALL.upd(1, 1, base=ONE), SMALL.upd(1, 1, base=TWO)),
    "attestations": (SMALL.attestation(1, 3, ONE), SMALL.attestation(1, 3, TWO)),
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_two_contradicting_statements_are_evidence(kind: str) -> None:
    SMALL.verifier().verify(Evidence(*CONTRADICTIONS[kind]))


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_evidence_with_a_forged_half_is_refused(kind: str) -> None:
    first, second = CONTRADICTIONS[kind]
    for forged in (
        Evidence(first, tampered(second, signature=first.signature)),
        Evidence(tampered(first, signature=second.signature), second),
    ):
        with pytest.raises(BadSignature):
            SMALL.verifier().verify(forged)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (SMALL.vote(1, 3, ONE), SMALL.vote(1, 3, ONE)),
        (SMALL.vote(1, 3, ONE), SMALL.vote(1, 4, TWO)),
        (SMALL.vote(1, 3, ONE), SMALL.vote(2, 3, TWO)),
        (SMALL.vote(1, 3, ONE), SMALL.timeout(1, 3)),
        (signed_header(5), signed_header(9)),
        (SMALL.timeout(1, 3, QC_1), SMALL.timeout(1, 4)),
        # The same view, reported with a QC of other signers: nothing else was signed.
        (SMALL.timeout(1, 3, QC_1), SMALL.timeout(1, 3, SMALL.qc(1, BLOCK.id, nodes(1, 2, 3)))),
        (SMALL.offer(1, 1, MANIFEST), SMALL.offer(1, 2, OTHER_MANIFEST)),
        # A restarted author may collect other signers.
        (SMALL.upd(1, 1), SMALL.upd(1, 1, ackers=nodes(1, 2, 3))),
        (SMALL.attestation(1, 3, ONE), SMALL.attestation(1, 2, TWO)),
    ],
)
def test_statements_that_an_honest_node_may_sign_are_not_evidence(first: Any, second: Any) -> None:
    with pytest.raises(BadSignature, match="may both sign"):
        SMALL.verifier().verify(Evidence(first, second))
