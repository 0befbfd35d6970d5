"""The end of a federation: attestations of the last model, and how long a node keeps serving."""

from defl.committee import Committee, Timing
from defl.contacts import PeerRole
from defl.crypto import Signer
from defl.finish import ALONE_S, Finish, Isolation
from defl.ids import OUTSIDER, NodeId, Round
from defl.messages import Attestation, Message
from defl.output import (
    Attested,
    Connected,
    Disconnected,
    Durable,
    EvidenceFound,
    Finished,
    Tick,
    Trained,
)
from defl.participant import Participant
from defl.participant_parts import first_record_of
from defl.sim.scenario import signer_of
from support.benches import ME, ClientBench
from support.builders import name, nodes
from support.epochs import Churn
from support.stores import SMALL
from support.switches import NEXT, SWITCH

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


def test_members_whose_attestations_were_all_lost_prove_the_last_model_soon_afterwards() -> None:
    """The log is idle after the last round, so only the repetition wakes a member up."""
    churn = Churn(4, rounds=1)
    lost: list[Message] = []

    def lose(_source: NodeId, _target: NodeId, message: Message) -> bool:
        if isinstance(message, Attestation) and len(lost) < 12:
            lost.append(message)
            return True
        return False

    churn.cluster.traffic.censor = lose
    churn.run_until(lambda: len(lost) == 12)
    lost_at = churn.cluster.now
    churn.run_until(lambda: len(churn.notices_of(Attested)) == 4)

    assert churn.cluster.now - lost_at < 10.0


def test_an_attestation_is_repeated_while_a_member_is_silent() -> None:
    bench = finished_bench()
    assert len(bench.attestations(10.0)) == 1
    assert bench.finish.wake_at == 11.0
    assert bench.attestations(10.5) == []
    assert len(bench.attestations(11.0)) == 1
    for author in (1, 2, 3):
        attestation = bench.small.attestation(author, 2, bench.model.digest)
        bench.finish.receive(NodeId(author), attestation, 11.5)
        bench.serve(author, now=11.5)
    bench.attestations(12.0)
    assert bench.attestations(13.0) == []


def test_q_equal_attestations_prove_the_model_and_are_durable_before_they_are_returned() -> None:
    bench = finished_bench()
    bench.attestations(10.0)
    effects = []
    for author, digest in ((3, bench.model.digest), (2, name("a lie")), (1, bench.model.digest)):
        bench.finish.receive(NodeId(author), bench.small.attestation(author, 2, digest), 11.0)
        bench.finish.take()
        bench.at(11.0)
        effects.append(bench.finish.take())

    assert [effect.notices for effect in effects[:2]] == [[], []]
    assert [effect.attestations for effect in effects[:2]] == [(), ()]
    (attested,) = effects[2].notices
    assert isinstance(attested, Attested)
    assert (attested.round, attested.digest) == (2, bench.model.digest)
    assert [attestation.author for attestation in attested.attestations] == [0, 1, 3]
    assert effects[2].attestations == attested.attestations
    returned = [(item.to, item.message.author) for item in effects[2].send]
    assert returned == [(nodes(1), 1), (nodes(3), 3)]


def test_a_node_serves_until_every_member_has_shown_that_it_has_the_proof() -> None:
    """One that attests another model can never have it, so nobody waits for that one."""
    bench = finished_bench()
    bench.attestations(10.0)
    for author, digest in ((3, bench.model.digest), (2, name("a lie")), (1, bench.model.digest)):
        bench.finish.receive(NodeId(author), bench.small.attestation(author, 2, digest), 11.0)
    bench.serve(1, now=11.0)
    bench.at(11.0)
    assert not bench.finish.finished
    bench.finish.take()
    (repeated,) = bench.attestations(12.0)
    assert (repeated.to, repeated.message.author) == (nodes(3), ME)

    bench.serve(3, now=12.5)
    bench.at(12.5)

    assert bench.finish.take().notices == [Finished(Round(2))]
    assert bench.finish.finished
    assert bench.finish.wake_at is None


def test_a_member_that_comes_back_gets_the_attestation_and_its_own_one_back() -> None:
    bench = finished_bench()
    bench.attestations(10.0)
    back = bench.small.attestation(3, 2, bench.model.digest)
    for author in (1, 2, 3):
        attestation = bench.small.attestation(author, 2, bench.model.digest)
        bench.finish.receive(NodeId(author), attestation, 10.5)
    bench.attestations(10.5)
    bench.finish.answer(NodeId(3), back, 40.0)

    sent = bench.finish.take().send
    assert [(item.to, item.message.author) for item in sent] == [(nodes(3), ME), (nodes(3), 3)]


def test_a_node_that_stopped_with_the_proof_has_it_when_it_starts_again() -> None:
    """It had shown the others that they may go, and was killed before it wrote its files."""
    bench = finished_bench(muted=True)
    digest = bench.model.digest
    proof = tuple(bench.small.attestation(author, 2, digest) for author in (0, 1, 3))
    bench.finish = Finish(bench.small.federation, ME, bench.small.signers[ME], proof)
    bench.finish.muted = True
    bench.finish.attest(Round(2), digest, 10.0)

    (attested,) = bench.finish.take().notices
    assert isinstance(attested, Attested)
    assert attested.attestations == proof


def test_the_proof_of_an_earlier_end_counts_no_more_after_an_extension() -> None:
    small = ClientBench(rounds=2).small
    earlier = tuple(small.attestation(author, 1, name("model")) for author in range(3))
    finish = Finish(small.federation, ME, small.signers[ME], earlier)

    assert finish.agreeing == 0


def test_members_that_attest_this_nodes_model_are_counted_after_it_is_proven_too() -> None:
    bench = finished_bench()
    assert bench.finish.agreeing == 0
    bench.attestations(10.0)
    for author, model in ((1, bench.model.digest), (2, bench.model.digest), (3, name("another"))):
        bench.finish.receive(NodeId(author), bench.small.attestation(author, 2, model), 10.5)

    assert bench.finish.agreeing == 3


def test_a_member_that_attests_twice_counts_with_its_first_attestation() -> None:
    bench = finished_bench()
    bench.attestations(10.0)
    for author, model in ((1, bench.model.digest), (1, name("two")), (2, bench.model.digest)):
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


# --- A node that hears of nobody -------------------------------------------------------------


COMMITTEE = Committee(tuple(bytes([i]) * 32 for i in range(7)))  # f is two


def isolation(*connected: int) -> Isolation:
    result = Isolation()
    assert not result.judge(COMMITTEE, Round(3), 0.0)
    for member in connected:
        result.saw(COMMITTEE, Connected(NodeId(member)), 0.0)
    return result


def test_a_node_that_hears_of_at_most_f_members_for_days_stops() -> None:
    """All of them may be Byzantine, and stay connected for ever."""
    isolated = isolation(5, 6)
    assert isolated.wake_at == ALONE_S
    assert not isolated.judge(COMMITTEE, Round(3), ALONE_S - 1.0)
    assert isolated.judge(COMMITTEE, Round(3), ALONE_S)
    assert isolated.stops


def test_a_node_that_is_connected_with_an_honest_member_goes_on() -> None:
    """Training may take longer than that, and nobody says anything meanwhile."""
    joined = isolation(4, 5, 6)
    assert not joined.judge(COMMITTEE, Round(3), ALONE_S)
    assert not joined.judge(COMMITTEE, Round(3), 2 * ALONE_S)

    joined.saw(COMMITTEE, Disconnected(NodeId(4)), 2.5 * ALONE_S)
    assert not joined.judge(COMMITTEE, Round(3), 3.0 * ALONE_S)
    assert joined.wake_at == 3.5 * ALONE_S
    assert joined.judge(COMMITTEE, Round(3), 3.5 * ALONE_S)


def test_a_node_waits_for_the_first_round_for_as_long_as_it_takes() -> None:
    """Others may not have started yet."""
    waiting = isolation()

    assert not waiting.judge(COMMITTEE, Round(0), 10 * ALONE_S)
    assert not waiting.stops


def test_strangers_are_not_remembered() -> None:
    isolated = isolation()
    for number in range(1000, 3000):
        isolated.saw(COMMITTEE, Connected(NodeId(number)), 1.0)

    assert isolated._seen_at == {}
    assert isolated.judge(COMMITTEE, Round(3), ALONE_S)


def outsider(signer: Signer) -> Participant:
    """A node that knows, from a lineage, that a round has closed, and that is no member."""
    durable = Durable(first_record_of(NEXT, SWITCH.closed), switch=SWITCH)
    return Participant(NEXT, OUTSIDER, signer, durable)


def is_isolated_after(participant: Participant, seconds: float) -> bool:
    for now in (0.0, seconds):
        participant.handle(Tick(), now)
    return participant.isolated


def test_a_guest_waits_for_its_approval_for_as_long_as_it_takes() -> None:
    """Nobody talks to it before, and operators may take longer than a weekend."""
    guest = outsider(signer_of(7, seed=1, real=True))
    assert guest.state.round > 0
    assert guest.role is PeerRole.GUEST

    assert not is_isolated_after(guest, 10 * ALONE_S)


def test_a_former_member_that_hears_of_nobody_for_days_stops() -> None:
    former = outsider(SMALL.signers[3])
    assert former.role is PeerRole.FORMER

    assert is_isolated_after(former, ALONE_S)
