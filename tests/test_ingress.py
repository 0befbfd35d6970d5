"""Ingress: which peer may send what, the order of the checks, and that no message skips one."""

from functools import partial
from typing import Any, get_args

import pytest
from msgspec import Struct

import defl.verifier
from defl.crypto import ReportingSigner, Scheme
from defl.errors import BadCertificate, BadSignature, Malformed, PeerFault, WrongAuthor, WrongEpoch
from defl.fields import members_in
from defl.ids import Digest, NodeId, View, digest_of
from defl.ingress import POLICIES, Ingress, Proof
from defl.messages import (
    Blocks,
    Certificates,
    Chunk,
    Evidence,
    Gossip,
    Handover,
    Message,
    Snapshot,
    Status,
    Vote,
    vote_statement,
)
from defl.output import Received, ReceivedChunk
from defl.participant import Participant
from defl.wire import control_frame_bytes_max, encode
from support.builders import Small, name, nodes, tampered

SMALL = Small()
ME = NodeId(1)
MESSAGES = {type(message).__name__: message for message in SMALL.messages()}
SIGNED = sorted(
    kind.__name__ for kind, policy in POLICIES.items() if policy.proof is Proof.SIGNATURES
)


class CountingScheme:
    """Counts the signatures that are really checked."""

    def __init__(self, scheme: Scheme) -> None:
        self._scheme = scheme
        self.checked = 0

    def verify(self, public_key: bytes, message: Digest, signature: bytes) -> bool:
        self.checked += 1
        return self._scheme.verify(public_key, message, signature)


def state_in(message: Message) -> bytes:
    match message:
        case Snapshot(state=state) | Handover(snapshot=Snapshot(state=state)):
            return state
    return b""


def admit(message: Message, peer: int = ME) -> Received | ReceivedChunk:
    return SMALL.ingress().admit(NodeId(peer), encode(message))


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_valid_message_of_every_kind_becomes_an_event(kind: str) -> None:
    event = admit(MESSAGES[kind])

    assert event.peer == ME
    if isinstance(event, ReceivedChunk):
        assert event.chunk_digest == digest_of(event.data)
    else:
        assert event.message == MESSAGES[kind]


def test_only_a_chunk_may_be_as_long_as_a_chunk() -> None:
    """On either lane, and it is refused before it is decoded."""
    small = Small(chunk_bytes=2**20)
    longest = control_frame_bytes_max(small.federation.committee.size)
    gossip = Gossip((SMALL.upd(ME, 1),) * 400)
    frame = encode(gossip) + bytes(longest)
    with pytest.raises(Malformed, match=f"at most {longest} are allowed"):
        small.ingress().admit(ME, frame)
    chunk = Chunk(name("blob"), 0, bytes(longest))
    assert isinstance(small.ingress().admit(ME, encode(chunk)), ReceivedChunk)


@pytest.mark.parametrize("kind", SIGNED)
def test_a_signed_message_of_another_federation_is_refused(kind: str) -> None:
    other = {type(m).__name__: m for m in Small(rounds=4).messages()}[kind]
    with pytest.raises(PeerFault):
        admit(other)


@pytest.mark.parametrize("kind", SIGNED)
def test_every_signature_in_a_message_is_checked(kind: str) -> None:
    """Every 64-byte string, however deeply nested. A state has a root instead (see below)."""
    frame = encode(MESSAGES[kind])
    state = state_in(MESSAGES[kind])
    begin = frame.index(state) if state else len(frame)
    outside = (*range(begin), *range(begin + len(state), len(frame) - 65))
    places = [i for i in outside if frame[i : i + 2] == b"\xc4\x40"]
    assert places
    for place in places:
        forged = frame[: place + 2] + bytes([frame[place + 2] ^ 1]) + frame[place + 3 :]
        with pytest.raises(PeerFault):
            SMALL.ingress().admit(ME, forged)


# --- Policies --------------------------------------------------------------------------------


def test_every_message_type_has_exactly_one_policy() -> None:
    assert set(POLICIES) == set(get_args(Message))
    assert set(map(type, MESSAGES.values())) == set(POLICIES), "and has an example in this test"


def test_a_type_without_a_policy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(POLICIES, Vote)
    with pytest.raises(Malformed, match="no policy states how a Vote is admitted"):
        SMALL.ingress().read(ME, encode(MESSAGES["Vote"]))
    with pytest.raises(Malformed, match="no policy states how a Vote is admitted"):
        SMALL.ingress().examine(ME, MESSAGES["Vote"])


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_policy_says_whether_a_message_carries_signatures(kind: str) -> None:
    frame = encode(MESSAGES[kind])
    ingress = SMALL.ingress()
    claims = ingress.examine(ME, ingress.read(ME, frame)).claims

    has_signatures = b"\xc4\x40" in frame and kind != "Chunk"  # a binary string of 64 bytes
    assert has_signatures == bool(claims)
    assert has_signatures == (POLICIES[type(MESSAGES[kind])].proof is Proof.SIGNATURES)


def test_a_type_without_a_verification_rule_is_refused() -> None:
    class Novelty(Struct, frozen=True):
        """A message type added without a verification rule."""

    with pytest.raises(Malformed, match="no rule says how a Novelty is verified"):
        SMALL.verifier().verify(Novelty())


# --- Senders -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Vote", "Timeout", "StoreAck", "Proposal"])
def test_a_live_statement_is_accepted_from_its_author_alone(kind: str) -> None:
    admit(MESSAGES[kind], peer=ME)
    with pytest.raises(WrongAuthor, match="in the name of member 1"):
        admit(MESSAGES[kind], peer=2)


@pytest.mark.parametrize("kind", ["Vote", "Timeout", "StoreAck", "Proposal"])
def test_a_live_statement_is_not_relayed_even_if_its_signature_is_cached(kind: str) -> None:
    ingress = SMALL.ingress()
    ingress.admit(ME, encode(MESSAGES[kind]))
    with pytest.raises(WrongAuthor):
        ingress.admit(NodeId(2), encode(MESSAGES[kind]))


@pytest.mark.parametrize(
    "relayed",
    [
        Gossip((SMALL.upd(3, 1), SMALL.agg(3, 1))),
        MESSAGES["Blocks"],
        MESSAGES["Offer"],
        MESSAGES["Attestation"],
        MESSAGES["Pace"],
        MESSAGES["Evidence"],
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_relayed_message_needs_only_its_authors_signature(relayed: Message) -> None:
    """So a transaction of a crashed author still arrives through other members."""
    assert admit(relayed, peer=2) == Received(NodeId(2), relayed)


def test_a_relayed_transaction_without_its_authors_signature_is_refused() -> None:
    by_another = tampered(SMALL.agg(3, 1), author=NodeId(0))
    with pytest.raises(BadSignature):
        admit(Gossip((SMALL.upd(3, 1), by_another)), peer=2)


@pytest.mark.parametrize("peer", [-1, 4, 99])
def test_a_peer_that_is_not_a_member_is_refused(peer: int) -> None:
    with pytest.raises(WrongAuthor, match="of a stranger"):
        SMALL.ingress().admit(NodeId(peer), encode(Status(MESSAGES["Status"].view, 0)))


# --- Order and caching ------------------------------------------------------------------------


def test_cheap_checks_run_before_any_signature_is_checked() -> None:
    scheme = CountingScheme(SMALL.scheme)
    ingress = Ingress(SMALL.federation, scheme)
    vote = MESSAGES["Vote"]
    too_few = SMALL.qc(1, name("block"), nodes(0, 1))
    for frame, peer, fault in (
        (bytes(10_000_000), 1, Malformed),
        (encode(vote) + b"\x00", 1, Malformed),
        (encode(vote), 2, WrongAuthor),
        (encode(tampered(vote, epoch=7)), 1, WrongEpoch),
        (encode(Certificates(too_few, None)), 1, BadCertificate),
    ):
        with pytest.raises(fault):
            ingress.admit(NodeId(peer), frame)

    assert scheme.checked == 0


def test_repeated_bytes_are_handled_again_but_not_verified_again() -> None:
    scheme = CountingScheme(SMALL.scheme)
    ingress = Ingress(SMALL.federation, scheme)
    frame = encode(MESSAGES["Vote"])

    first, second = ingress.admit(ME, frame), ingress.admit(ME, frame)

    assert first == second
    assert scheme.checked == 1


def test_a_refused_frame_is_refused_again() -> None:
    ingress = SMALL.ingress()
    forged = encode(tampered(MESSAGES["Vote"], signature=bytes(64)))
    for _ in range(2):
        with pytest.raises(BadSignature):
            ingress.admit(ME, forged)


def test_a_checked_signature_is_not_checked_again_in_another_message() -> None:
    """A QC of votes that were verified one by one costs nothing."""
    scheme = CountingScheme(SMALL.scheme)
    ingress = Ingress(SMALL.federation, scheme)
    block = name("block")
    for member in SMALL.first():
        ingress.admit(member, encode(SMALL.vote(member, 1, block)))
    ingress.admit(ME, encode(Certificates(SMALL.qc(1, block), None)))

    assert scheme.checked == SMALL.quorum


def test_a_nodes_own_signature_is_not_checked_when_it_comes_back() -> None:
    """Its vote in a QC; a forged one in its name is checked."""
    scheme = CountingScheme(SMALL.scheme)
    ingress = Ingress(SMALL.federation, scheme)
    signer = ReportingSigner(SMALL.signers[ME], partial(ingress.remember_own, ME))
    block, qc = name("block"), SMALL.qc(1, name("block"))
    signer.sign(vote_statement(SMALL.federation.chain, 0, View(1), block))
    ingress.admit(ME, encode(Certificates(qc, None)))

    assert scheme.checked == SMALL.quorum - 1

    position = members_in(qc.signers).index(ME)
    signatures = (*qc.signatures[:position], bytes(64), *qc.signatures[position + 1 :])
    with pytest.raises(BadSignature):
        ingress.admit(ME, encode(Certificates(tampered(qc, signatures=signatures), None)))


def test_a_message_with_one_bad_signature_leaves_nothing_in_the_cache() -> None:
    """Even its valid signatures are checked again in another message."""
    scheme = CountingScheme(SMALL.scheme)
    ingress = Ingress(SMALL.federation, scheme)
    good, bad = SMALL.agg(3, 1), tampered(SMALL.agg(0, 1), signature=bytes(64))
    with pytest.raises(BadSignature):
        ingress.admit(ME, encode(Gossip((good, bad))))
    with pytest.raises(BadSignature):
        ingress.admit(ME, encode(Gossip((bad,))))
    before = scheme.checked
    ingress.admit(ME, encode(Gossip((good,))))

    assert scheme.checked == before + 1


def test_the_cache_of_checked_signatures_is_bounded_per_signer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member that signs much evicts only its own signatures."""
    monkeypatch.setattr(defl.verifier, "SIGNATURES_KEPT", 10)
    scheme = CountingScheme(SMALL.scheme)
    ingress = Ingress(SMALL.federation, scheme)
    other = encode(SMALL.vote(2, 1, name("block")))
    ingress.admit(NodeId(2), other)
    for view in range(1, 30):
        ingress.admit(ME, encode(SMALL.vote(1, view, name("block"))))
    before = scheme.checked
    ingress.admit(NodeId(2), other)

    assert scheme.checked == before
    assert [len(kept) for kept in ingress._verifier._signatures] == [0, 10, 1, 0]


def test_the_length_of_a_gossip_is_bounded_by_the_number_of_members() -> None:
    """All that each member can have under way; a longer one costs no signature check."""
    scheme = CountingScheme(SMALL.scheme)
    ingress = Ingress(SMALL.federation, scheme)
    aggs = tuple(SMALL.agg(1, round_) for round_ in range(61))
    with pytest.raises(Malformed, match="61 transactions in a Gossip, at most 60"):
        ingress.admit(ME, encode(Gossip(aggs)))
    assert scheme.checked == 0
    ingress.admit(ME, encode(Gossip(aggs[:60])))


def test_a_forged_certificate_in_a_block_is_refused_though_the_true_one_is_cached() -> None:
    ingress = SMALL.ingress()
    parent = SMALL.block()
    true = SMALL.qc(1, parent.id)
    ingress.admit(ME, encode(Certificates(true, None)))
    forged = tampered(true, signatures=(bytes(64), *true.signatures[1:]))
    child = SMALL.block(view=2, parent=parent, qc=forged)
    for message in (SMALL.proposal(child), Blocks((child,))):
        with pytest.raises(BadSignature):
            ingress.admit(child.header.author, encode(message))


def test_evidence_of_two_compatible_statements_is_refused() -> None:
    block = name("block")
    harmless = Evidence(SMALL.vote(1, 3, block), SMALL.vote(1, 4, block))
    with pytest.raises(BadSignature, match="may both sign"):
        admit(harmless)


# --- Snapshots -------------------------------------------------------------------------------


def participant_after(message: Any) -> Participant:
    participant = Participant(SMALL.federation, ME, SMALL.signers[ME], SMALL.durable())
    event = admit(message, peer=2)
    participant.handle(event, now=0.0)
    return participant


def test_a_node_installs_a_proven_snapshot() -> None:
    snapshot = SMALL.snapshot()

    assert participant_after(snapshot).state.voters == (NodeId(0),)


def test_a_snapshot_whose_state_is_not_the_proven_one_is_not_installed() -> None:
    """All certificates are valid; only the state is replaced by another that decodes."""
    true = SMALL.snapshot()
    empty = SMALL.ledger.encode(SMALL.ledger.genesis())
    lie = SMALL.ledger.decode(true.state)
    richer = SMALL.ledger.encode(tampered(lie, voters=nodes(0, 1, 2)))
    for data in (empty, richer):
        fake = Snapshot(true.block, data, true.proof, true.proof_qc)
        participant = participant_after(fake)

        assert participant.state == SMALL.ledger.genesis()
        assert participant.replica.head.height == 0
