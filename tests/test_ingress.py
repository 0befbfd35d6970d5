"""Ingress: which peer may send what, the order of the checks, and that no message skips one."""

from functools import partial
from typing import Any, get_args

import pytest
from msgspec import Struct

import defl.verifier
from defl.cards import CERTIFICATE_BYTES_MAX
from defl.contacts import PeerRole
from defl.crypto import Ed25519Signer, ReportingSigner, Scheme
from defl.errors import BadCertificate, BadSignature, Malformed, PeerFault, WrongAuthor, WrongEpoch
from defl.ids import Digest, NodeId, Round, View, digest_of
from defl.ingress import POLICIES, Ingress, Proof
from defl.messages import (
    CHANGE_BYTES_MAX,
    Add,
    Approve,
    Blocks,
    Certificates,
    Change,
    Chunk,
    Evidence,
    Gossip,
    Handover,
    Message,
    Ready,
    Remove,
    ReplaceKey,
    Rounds,
    Snapshot,
    Status,
    Vote,
    members_in,
    vote_statement,
)
from defl.output import OtherEpoch, Received, ReceivedChunk
from defl.participant import Participant
from defl.wire import EPOCHLESS, control_frame_bytes_max, encode
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


# --- Epochs and outsiders ----------------------------------------------------------------------

ROLES = {NodeId(100): PeerRole.GUEST, NodeId(116): PeerRole.FORMER, NodeId(1000): PeerRole.STRANGER}


def ingress_for_outsiders() -> Ingress:
    return Ingress(
        SMALL.federation, SMALL.scheme, role_of=lambda peer: ROLES.get(peer, PeerRole.MEMBER)
    )


@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize("peer", ROLES)
def test_an_outsider_may_send_only_what_the_policies_allow_it(kind: str, peer: NodeId) -> None:
    ingress, message = ingress_for_outsiders(), MESSAGES[kind]
    if ROLES[peer] in POLICIES[type(message)].outsiders:
        assert ingress.admit(peer, encode(message)) == Received(peer, message)
    else:
        with pytest.raises(WrongAuthor, match=f"a {kind} of a {ROLES[peer]}"):
            ingress.admit(peer, encode(message))


def test_strangers_may_only_hand_in_a_handover() -> None:
    """A node that slept while all others were replaced knows nobody."""
    allowed = {kind for kind, policy in POLICIES.items() if PeerRole.STRANGER in policy.outsiders}

    assert allowed == {Handover}


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_frame_of_another_epoch_is_no_fault_and_is_not_believed(kind: str) -> None:
    """Except what means the same in every epoch."""
    scheme = CountingScheme(SMALL.scheme)
    ingress = Ingress(SMALL.federation, scheme)
    event = ingress.admit(ME, encode(MESSAGES[kind], epoch=3))

    if isinstance(MESSAGES[kind], EPOCHLESS):
        assert isinstance(event, Received | ReceivedChunk)
    else:
        assert event == OtherEpoch(ME, 3)
        assert scheme.checked == 0


def test_a_stranger_learns_nothing_by_stating_another_epoch() -> None:
    with pytest.raises(WrongAuthor, match="of a stranger"):
        SMALL.ingress().admit(NodeId(1000), encode(MESSAGES["Vote"], epoch=3))


def test_a_message_must_be_of_the_epoch_that_its_frame_states() -> None:
    vote = tampered(MESSAGES["Vote"], epoch=7)
    with pytest.raises(WrongEpoch, match="another epoch than its frame's"):
        admit(vote)


# --- Changes of the membership -------------------------------------------------------------------

NEWCOMER = Ed25519Signer(bytes([7]) * 32)
CARD = SMALL.card(NEWCOMER)
CHANGE = SMALL.change(1, 1, Add(CARD), Rounds(Round(9)))


@pytest.mark.parametrize(
    "transaction",
    [
        CHANGE,
        SMALL.change(1, 1),
        SMALL.approve(2, 1, CHANGE),
        SMALL.ready(NEWCOMER, 1, name("model")),
    ],
    ids=["CHANGE", "withdrawal", "APPROVE", "READY"],
)
def test_a_transaction_about_the_members_needs_its_authors_signature(
    transaction: Change | Approve | Ready,
) -> None:
    assert admit(Gossip((transaction,))) == Received(ME, Gossip((transaction,)))
    for forged in (tampered(transaction, signature=bytes(64)), tampered(transaction, round=2)):
        with pytest.raises(BadSignature):
            admit(Gossip((forged,)))


@pytest.mark.parametrize("operation", [Add(CARD), ReplaceKey(NodeId(0), CARD)])
def test_a_card_needs_its_own_keys_signature_over_this_federation(operation: Any) -> None:
    for_another = Small(rounds=4).card(NEWCOMER)
    founders = tampered(CARD, signature=NEWCOMER.sign(CARD.statement()))
    for card in (for_another, founders, tampered(CARD, address="elsewhere:1")):
        change = SMALL.change(1, 1, tampered(operation, card=card))
        with pytest.raises(BadSignature, match="a card that its key did not sign"):
            admit(Gossip((change,)))


def test_the_operations_of_a_change_are_covered_by_its_signature() -> None:
    other = tampered(CHANGE, operations=(Remove(NodeId(0)),))
    with pytest.raises(BadSignature, match="CHANGE"):
        admit(Gossip((other,)))


def test_a_change_is_bounded_in_bytes() -> None:
    """Two of the longest certificates do not fit."""
    cards = [
        SMALL.card(Ed25519Signer(bytes([i]) * 32), f"newcomer {i}", bytes(CERTIFICATE_BYTES_MAX))
        for i in range(1, 3)
    ]
    admit(Gossip((SMALL.change(1, 1, Add(cards[0])),)))
    with pytest.raises(Malformed, match=f"a CHANGE of more than {CHANGE_BYTES_MAX} bytes"):
        admit(Gossip((SMALL.change(1, 1, *map(Add, cards)),)))


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
    aggs = tuple(SMALL.agg(1, round_) for round_ in range(49))
    with pytest.raises(Malformed, match="49 transactions in a Gossip, at most 48"):
        ingress.admit(ME, encode(Gossip(aggs)))
    assert scheme.checked == 0
    ingress.admit(ME, encode(Gossip(aggs[:48])))


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


def test_a_node_goes_where_a_proven_handover_leads() -> None:
    assert participant_after(SMALL.handover()).epoch == 1


def test_a_handover_whose_state_is_not_the_proven_one_leads_nowhere() -> None:
    true = SMALL.handover().snapshot
    state = SMALL.ledger.decode(true.state)
    other_end = tampered(state.changes[0], operations=(Rounds(Round(99)),))
    lie = SMALL.ledger.encode(tampered(state, changes=(other_end,)))
    fake = Handover(Snapshot(true.block, lie, true.proof, true.proof_qc))

    assert participant_after(fake).epoch == 0


def test_a_handover_must_show_the_end_of_an_epoch() -> None:
    assert participant_after(Handover(SMALL.snapshot())).epoch == 0
