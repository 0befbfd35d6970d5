"""The end of a federation: who attests the last model, how long a node serves, who only watches."""

from defl.committee import Timing
from defl.ids import NodeId, Round
from defl.messages import Attestation
from defl.output import (
    Attested,
    EvidenceFound,
    Finished,
    Trained,
)
from support.benches import ME, Desk
from support.builders import name, nodes

GRACE_S = Timing().grace_s


def finished_desk(*, muted: bool = False) -> Desk:
    desk = Desk(rounds=2, muted=muted)
    desk.to_round(2, now=0.0)
    return desk


def test_the_last_model_is_attested_instead_of_trained_from() -> None:
    desk = finished_desk()
    assert desk.at(10.0).work == []
    (envelope,) = desk.finish.take().send

    assert envelope.to is None
    said = envelope.message
    assert isinstance(said, Attestation)
    assert (said.round, said.digest, said.author) == (2, desk.model.digest, ME)
    desk.small.verifier().verify(said)


def test_nothing_is_attested_before_this_node_has_the_model_itself() -> None:
    desk = Desk(rounds=1)
    desk.close_round(0, 1, 2, now=0.0)

    assert desk.attestations(0.0) == []
    assert not desk.finish.finished


def test_an_attestation_is_repeated_while_somebody_is_silent() -> None:
    desk = finished_desk()
    assert len(desk.attestations(10.0)) == 1
    assert desk.finish.wake_at == 11.0
    assert desk.attestations(10.5) == []
    assert len(desk.attestations(11.0)) == 1
    for author in (1, 2, 3):
        said = desk.small.attestation(author, 2, desk.model.digest)
        desk.finish.receive(NodeId(author), said, 11.5)
    desk.attestations(12.0)
    assert desk.attestations(13.0) == []


def test_q_equal_attestations_prove_the_model_and_all_of_them_finish_the_node() -> None:
    desk = finished_desk()
    desk.attestations(10.0)
    notices = []
    for author, digest in ((3, desk.model.digest), (2, name("a lie")), (1, desk.model.digest)):
        assert not desk.finish.finished
        desk.finish.receive(NodeId(author), desk.small.attestation(author, 2, digest), 11.0)
        desk.at(11.0)
        notices.append(desk.finish.take().notices)

    assert notices[:2] == [[], []]
    attested, finished = notices[2]
    assert isinstance(attested, Attested)
    assert (attested.round, attested.digest) == (2, desk.model.digest)
    assert [said.author for said in attested.attestations] == [0, 1, 3]
    assert finished == Finished(Round(2))
    assert desk.finish.finished
    assert desk.finish.wake_at is None


def test_a_node_serves_until_the_grace_is_over_when_somebody_stays_silent() -> None:
    desk = finished_desk()
    desk.at(10.0)
    desk.at(10.0 + GRACE_S - 0.1)
    assert not desk.finish.finished

    desk.at(10.0 + GRACE_S)

    assert desk.finish.finished
    assert desk.finish.take().notices == [Finished(Round(2))]


def test_who_asks_by_attesting_is_answered_but_not_each_time() -> None:
    desk = finished_desk()
    desk.attestations(10.0)
    said = desk.small.attestation(1, 2, desk.model.digest)
    answers = []
    for now in (10.0, 10.1, 10.2, 11.5):
        desk.finish.receive(NodeId(1), said, now)
        answers.append([item.to for item in desk.finish.take().send])

    assert answers == [[nodes(1)], [], [], [nodes(1)]]


def test_two_attestations_of_one_member_are_evidence_and_those_of_other_rounds_are_ignored() -> (
    None
):
    desk = finished_desk()
    desk.finish.receive(NodeId(1), desk.small.attestation(1, 1, name("old")), 0.0)
    desk.finish.receive(NodeId(1), desk.small.attestation(1, 2, name("one")), 0.0)
    assert desk.finish.take().notices == []

    desk.finish.receive(NodeId(1), desk.small.attestation(1, 2, name("two")), 0.0)

    (found,) = desk.finish.take().notices
    assert isinstance(found, EvidenceFound)
    desk.small.verifier().verify(found.evidence)


# --- An observer -----------------------------------------------------------------------------


def test_an_observer_signs_nothing_but_follows_to_the_end() -> None:
    desk = Desk(rounds=2, muted=True)
    started = desk.at(0.0)
    assert started.work == []
    assert desk.at(100.0).submit == []
    desk.client.trained(Trained(Round(1), desk.small.blob(1)[0]), 100.0)
    assert desk.pool.take().offer is None

    desk.to_round(2, now=0.0)

    assert desk.client.model(Round(2)) == desk.model
    assert desk.attestations(10.0) == []
    desk.finish.receive(NodeId(1), desk.small.attestation(1, 2, desk.model.digest), 11.0)
    assert desk.finish.take().send == []
    desk.at(10.0 + GRACE_S)
    assert desk.finish.finished
