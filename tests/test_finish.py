"""The end of a federation: attestations of the last model, and how long a node keeps serving."""

from defl.committee import Timing
from defl.ids import NodeId, Round
from defl.messages import Attestation
from defl.output import (
    Attested,
    EvidenceFound,
    Finished,
    Trained,
)
from support.benches import ME, ClientBench
from support.builders import name, nodes

GRACE_S = Timing().grace_s


def finished_bench(*, muted: bool = False) -> ClientBench:
    bench = ClientBench(rounds=2, muted=muted)
    bench.to_round(2, now=0.0)
    return bench


def test_the_last_model_is_attested_instead_of_trained_from() -> None:
    bench = finished_bench()
    assert bench.at(10.0).work == []
    (envelope,) = bench.finish.take().send

    assert envelope.to is None
    attestation = envelope.message
    assert isinstance(attestation, Attestation)
    assert (attestation.round, attestation.author) == (2, ME)
    assert attestation.digest == bench.model.digest
    bench.small.verifier().verify(attestation)


def test_nothing_is_attested_before_this_node_has_the_model_itself() -> None:
    bench = ClientBench(rounds=1)
    bench.close_round(0, 1, 2, now=0.0)

    assert bench.attestations(0.0) == []
    assert not bench.finish.finished


def test_an_attestation_is_repeated_while_a_member_is_silent() -> None:
    bench = finished_bench()
    assert len(bench.attestations(10.0)) == 1
    assert bench.finish.wake_at == 11.0
    assert bench.attestations(10.5) == []
    assert len(bench.attestations(11.0)) == 1
    for author in (1, 2, 3):
        attestation = bench.small.attestation(author, 2, bench.model.digest)
        bench.finish.receive(NodeId(author), attestation, 11.5)
    bench.attestations(12.0)
    assert bench.attestations(13.0) == []


def test_q_equal_attestations_prove_the_model_and_all_of_them_finish_the_node() -> None:
    bench = finished_bench()
    bench.attestations(10.0)
    notices = []
    for author, digest in ((3, bench.model.digest), (2, name("a lie")), (1, bench.model.digest)):
        assert not bench.finish.finished
        bench.finish.receive(NodeId(author), bench.small.attestation(author, 2, digest), 11.0)
        bench.at(11.0)
        notices.append(bench.finish.take().notices)

    assert notices[:2] == [[], []]
    attested, finished = notices[2]
    assert isinstance(attested, Attested)
    assert (attested.round, attested.digest) == (2, bench.model.digest)
    assert [attestation.author for attestation in attested.attestations] == [0, 1, 3]
    assert finished == Finished(Round(2))
    assert bench.finish.finished
    assert bench.finish.wake_at is None


def test_members_that_attest_this_nodes_model_are_counted_after_it_is_proven_too() -> None:
    bench = finished_bench()
    assert bench.finish.agreeing == 0
    bench.attestations(10.0)
    for author, model in ((1, bench.model.digest), (2, bench.model.digest), (3, name("another"))):
        bench.finish.receive(NodeId(author), bench.small.attestation(author, 2, model), 10.5)

    assert bench.finish.agreeing == 3


def test_a_node_serves_until_the_grace_period_ends_if_a_member_stays_silent() -> None:
    bench = finished_bench()
    bench.at(10.0)
    bench.at(10.0 + GRACE_S - 0.1)
    assert not bench.finish.finished

    bench.at(10.0 + GRACE_S)

    assert bench.finish.finished
    assert bench.finish.take().notices == [Finished(Round(2))]


def test_an_attestation_is_answered_at_a_limited_rate() -> None:
    bench = finished_bench()
    bench.attestations(10.0)
    attestation = bench.small.attestation(1, 2, bench.model.digest)
    answers = []
    for now in (10.0, 10.1, 10.2, 11.5):
        bench.finish.receive(NodeId(1), attestation, now)
        answers.append([item.to for item in bench.finish.take().send])

    assert answers == [[nodes(1)], [], [], [nodes(1)]]


def test_two_attestations_of_one_member_are_evidence_and_those_of_other_rounds_are_ignored() -> (
    None
):
    bench = finished_bench()
    bench.finish.receive(NodeId(1), bench.small.attestation(1, 1, name("old")), 0.0)
    bench.finish.receive(NodeId(1), bench.small.attestation(1, 2, name("one")), 0.0)
    assert bench.finish.take().notices == []

    bench.finish.receive(NodeId(1), bench.small.attestation(1, 2, name("two")), 0.0)

    (notice,) = bench.finish.take().notices
    assert isinstance(notice, EvidenceFound)
    bench.small.verifier().verify(notice.evidence)


# --- An observer -----------------------------------------------------------------------------


def test_a_member_whose_contradiction_is_proven_causes_no_further_verification() -> None:
    bench = ClientBench(rounds=1)
    bench.finish.receive(NodeId(1), bench.small.attestation(1, 1, name("model")), 0.0)
    other = bench.small.attestation(1, 1, name("another"))

    assert bench.finish.wants(other, lambda _author, _kind: False)
    assert not bench.finish.wants(other, lambda _author, _kind: True)


def test_an_observer_signs_nothing_and_follows_to_the_end() -> None:
    bench = ClientBench(rounds=2, muted=True)
    started = bench.at(0.0)
    assert started.work == []
    assert bench.at(100.0).submit == []
    bench.client.trained(Trained(Round(1), bench.small.blob(1)[0]), 100.0)
    assert bench.pool.take().offer is None

    bench.to_round(2, now=0.0)

    assert bench.client.model(Round(2)) == bench.model
    assert bench.attestations(10.0) == []
    bench.finish.receive(NodeId(1), bench.small.attestation(1, 2, bench.model.digest), 11.0)
    assert bench.finish.take().send == []
    bench.at(10.0 + GRACE_S)
    assert bench.finish.finished
