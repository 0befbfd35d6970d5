"""The members of every epoch follow from the origin's facts and the handovers, or an error says
which epoch is not proven and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from defl.changes import Rounds
from defl.committee import Federation
from defl.crypto import Ed25519Scheme, Signer
from defl.errors import BrokenLineage
from defl.fields import bitmap_of
from defl.ids import Digest, NodeId, Round
from defl.ledger import decode_state
from defl.lineage import federations_of
from defl.messages import QC, Handover, Snapshot, vote_statement
from defl.output import EpochBegan
from defl.succession import next_membership
from support.lineages import ProvenChurn, lived

DAN = 3
QUORUM = 3  # of epoch 0


@dataclass(frozen=True)
class Life:
    origin: Federation
    federations: tuple[Federation, ...]  # as a member saw the epochs begin
    handovers: tuple[Handover, ...]
    signers: Sequence[Signer]  # by machine


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    """eve joins, dan leaves, bob gets another key."""
    churn = lived(tmp_path_factory.mktemp("life"))
    origin = churn.cluster.federation
    begun = [began.federation for _, began in churn.notices_of(EpochBegan, 0)]
    handovers = churn.node(0).disk.handovers
    return Life(
        origin,
        (origin, *begun),
        tuple(handovers[epoch] for epoch in range(len(begun))),
        churn.cluster.signers,
    )


def refusal(origin: Federation, handovers: Sequence[Handover]) -> BrokenLineage:
    with pytest.raises(BrokenLineage) as raised:
        federations_of(origin, handovers, Ed25519Scheme())
    return raised.value


def with_(handovers: Sequence[Handover], epoch: int, snapshot: Snapshot) -> list[Handover]:
    return [*handovers[:epoch], Handover(snapshot), *handovers[epoch + 1 :]]


def certified(federation: Federation, snapshot: Snapshot, signers: dict[int, Signer]) -> Snapshot:
    """The same proof with a QC of these members."""
    view, block = snapshot.proof_qc.view, snapshot.proof_qc.block
    message = vote_statement(federation.chain, federation.epoch, view, block)
    qc = QC(
        view,
        block,
        bitmap_of(map(NodeId, signers), federation.committee.slots),
        tuple(signers[member].sign(message) for member in sorted(signers)),
    )
    return replace(snapshot, proof_qc=qc)


def test_the_facts_of_every_epoch_follow_from_the_origin(life: Life) -> None:
    proven = federations_of(life.origin, life.handovers, Ed25519Scheme())

    assert [facts.chain for facts in proven] == [facts.chain for facts in life.federations]
    assert [facts.committee.size for facts in proven] == [4, 5, 4, 4]


def test_a_federation_without_handovers_is_in_its_first_epoch(life: Life) -> None:
    assert federations_of(life.origin, (), Ed25519Scheme()) == (life.origin,)


def test_a_handover_with_a_forged_signature_is_refused(life: Life) -> None:
    snapshot = life.handovers[1].snapshot
    first = snapshot.proof_qc.signatures[0]
    forged = (bytes([first[0] ^ 1]) + first[1:], *snapshot.proof_qc.signatures[1:])
    broken = refusal(
        life.origin,
        with_(
            life.handovers,
            1,
            replace(snapshot, proof_qc=replace(snapshot.proof_qc, signatures=forged)),
        ),
    )

    assert broken.epoch == 1
    assert "did not sign" in broken.reason


def test_another_state_than_the_signed_one_is_refused(life: Life) -> None:
    snapshot = life.handovers[1].snapshot
    other = life.handovers[2].snapshot.state
    broken = refusal(life.origin, with_(life.handovers, 1, replace(snapshot, state=other)))

    assert broken.epoch == 1
    assert "not the one that the members signed" in broken.reason


def test_the_quorum_of_an_epoch_is_needed_not_that_of_the_epoch_before(life: Life) -> None:
    """Epoch 1 has five members: three signatures sufficed in epoch 0."""
    facts, snapshot = life.federations[1], life.handovers[1].snapshot
    three = certified(facts, snapshot, {m: life.signers[m] for m in range(3)})
    four = certified(facts, snapshot, {m: life.signers[m] for m in range(4)})

    assert (
        "3 distinct members, 4 are needed"
        in refusal(life.origin, with_(life.handovers, 1, three)).reason
    )
    assert len(federations_of(life.origin, with_(life.handovers, 1, four), Ed25519Scheme())) == 4


def test_a_departed_member_signs_no_handover(life: Life) -> None:
    facts, snapshot = life.federations[2], life.handovers[2].snapshot
    with_dan = certified(facts, snapshot, {m: life.signers[m] for m in (0, 2, DAN)})
    broken = refusal(life.origin, with_(life.handovers, 2, with_dan))

    assert broken.epoch == 2
    assert "members that do not exist" in broken.reason


def test_a_replaced_key_signs_nothing_in_the_next_epoch(life: Life) -> None:
    """bob's old machine has number 1, which is still his member id."""
    facts = life.federations[3]
    assert facts.committee.keys[1] != life.signers[1].public_key
    stolen = certified(
        life.federations[2], life.handovers[2].snapshot, {m: life.signers[m] for m in (0, 1, 2)}
    )
    assert len(federations_of(life.origin, with_(life.handovers, 2, stolen), Ed25519Scheme())) == 4
    thief = certified(facts, life.handovers[2].snapshot, {m: life.signers[m] for m in (0, 1, 2)})

    assert "did not sign" in refusal(life.origin, with_(life.handovers, 2, thief)).reason


@pytest.mark.parametrize("kept", [(1, 2), (0, 2), (0, 0, 1), (1, 0, 2), (0, 1, 1)])
def test_missing_repeated_and_reordered_handovers_are_refused(
    life: Life, kept: tuple[int, ...]
) -> None:
    broken = refusal(life.origin, [life.handovers[epoch] for epoch in kept])

    wrong = next(place for place, epoch in enumerate(kept) if place != epoch)
    assert broken.epoch == wrong
    assert f"here is {kept[wrong]}'s" in broken.reason


def test_a_handover_of_another_federation_is_refused(life: Life) -> None:
    """It differs in one byte of its file."""
    other = Federation(
        replace(life.origin.charter, document=Digest(b"\1" * 32)), life.origin.membership
    )

    assert refusal(other, life.handovers).epoch == 0


def test_a_state_with_an_approved_change_is_no_handover(tmp_path: Path) -> None:
    """The members signed it, and a successor would follow from it: but the epoch went on."""
    churn = ProvenChurn(tmp_path, rounds=6)
    churn.run_until_round(2)
    churn.change(Rounds(Round(9)))

    def approved() -> bool:
        snapshot = churn.participant(0).replica.snapshot
        changes = decode_state(snapshot.state).changes if snapshot is not None else ()
        return any(len(change.approvals) == QUORUM for change in changes)

    churn.run_until(approved)
    snapshot = churn.participant(0).replica.snapshot
    assert snapshot is not None
    state = decode_state(snapshot.state)
    assert not state.ended
    origin = churn.cluster.federation
    assert next_membership(origin, state.round, state.changes, state.ready) is not None

    broken = refusal(origin, [Handover(snapshot)])

    assert "does not show that it has ended" in broken.reason
