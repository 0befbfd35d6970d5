"""Ingress and epochs: frames of another epoch, outsiders, and changes of the membership."""

from typing import Any

import pytest
from msgspec.structs import replace

from defl.cards import CERTIFICATE_BYTES_MAX
from defl.changes import CHANGE_BYTES_MAX, Add, Approve, Change, Ready, Remove, ReplaceKey, Rounds
from defl.contacts import PeerRole
from defl.crypto import Ed25519Signer
from defl.errors import BadSignature, Malformed, WrongAuthor, WrongEpoch
from defl.ids import NodeId, Round
from defl.ingress import POLICIES, Ingress
from defl.messages import Gossip, Handover, Snapshot
from defl.output import OtherEpoch, Received, ReceivedChunk
from defl.wire import EPOCHLESS, encode
from support.builders import Small, name, tampered
from test_ingress import ME, MESSAGES, SMALL, CountingScheme, admit, participant_after

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
        event = ingress.admit(peer, encode(message))
        assert isinstance(event, Received | ReceivedChunk)
        assert event.peer == peer
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


# --- Handovers ---------------------------------------------------------------------------------


def test_a_node_goes_where_a_proven_handover_leads() -> None:
    assert participant_after(SMALL.handover()).epoch == 1


def test_a_handover_whose_state_is_not_the_proven_one_leads_nowhere() -> None:
    true = SMALL.handover().snapshot
    state = SMALL.ledger.decode(true.state)
    other_end = tampered(state.changes[0], operations=(Rounds(Round(99)),))
    lie = SMALL.ledger.encode(tampered(state, changes=(other_end,)))
    fake = Handover(Snapshot(true.block, lie, true.proof, true.proof_qc))

    assert participant_after(fake).epoch == 0


def test_a_snapshot_of_another_epochs_block_is_refused_though_a_quorum_vouches_for_it() -> None:
    genuine = SMALL.snapshot()
    block = replace(genuine.block, epoch=1)
    proof = replace(genuine.proof, committed=block.id)
    qc = SMALL.qc(proof.view, proof.id)

    with pytest.raises(WrongEpoch):
        SMALL.verifier().verify(Snapshot(block, genuine.state, proof, qc))


def test_a_handover_must_show_the_end_of_an_epoch() -> None:
    assert participant_after(Handover(SMALL.snapshot())).epoch == 0
