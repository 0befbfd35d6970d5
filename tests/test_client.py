"""Algorithm 1: when this node trains, aggregates, says AGG and attests, and when it does not."""

from itertools import pairwise

import pytest

from builders import Small, name, nodes
from defl.client import GST_LT_DECAY, GST_LT_GROWTH, WORK_RETRY_MAX_S, Client
from defl.client import Effects as Done
from defl.finish import Finish
from defl.ids import Digest, NodeId, Round, digest_of
from defl.messages import Agg, Attestation, Manifest, ManifestAnswer, Transaction
from defl.output import (
    Aggregate,
    Aggregated,
    Attested,
    Envelope,
    EvidenceFound,
    Finished,
    ModelReady,
    ReceivedChunk,
    Train,
    Trained,
    WorkFailed,
    WorkFailing,
)
from defl.pool.pool import Pool
from defl.work import model_blob, model_row

ME = NodeId(0)
GST_LT_S = 4.0  # the least time that is given for a round in these federations
GST_LT_MAX_S = 120.0
GRACE_S = 120.0


class Desk:
    """One node's client with its pool, and a ledger that is told what was committed."""

    def __init__(self, rounds: int = 5, *, muted: bool = False) -> None:
        self.small = Small(real=False, rounds=rounds)
        federation, signer = self.small.federation, self.small.signers[ME]
        durable = self.small.durable()
        self.pool = Pool(federation, ME, signer, durable, Round(0))
        self.finish = Finish(federation, ME, signer)
        self.client = Client(federation, ME, signer, self.pool, durable.models, self.finish)
        self.pool.muted = self.client.muted = self.finish.muted = muted
        self.state = self.small.ledger.genesis()
        self.model = self.small.initial
        self.blobs: dict[Digest, tuple[Manifest, bytes]] = {}
        self.client.state_is(self.state, 0.0)

    def at(self, now: float) -> Done:
        self.client.advance(now)
        return self.client.take()

    def aggs_at(self, now: float) -> list[int]:
        return [tx.round for tx in self.at(now).submit if isinstance(tx, Agg)]

    def commit(self, *transactions: Transaction, now: float) -> None:
        block = self.small.block(tuple(transactions), view=self.state.round + 1)
        self.state, _ = self.small.ledger.execute(self.state, block)
        self.client.state_is(self.state, now)

    def close_round(self, *authors: int, now: float) -> None:
        """With these members' updates alone; the last AGG closes it."""
        round_ = self.state.round + 1
        updates = []
        for author in authors:
            manifest, payload = self.small.blob(10 * round_ + author, self.model.digest)
            self.blobs[manifest.digest] = manifest, payload
            digest, base = manifest.digest, manifest.base
            updates.append(self.small.upd(author, round_, digest=digest, base=base))
        self.commit(*updates, *(self.small.agg(member, round_) for member in range(3)), now=now)
        assert self.state.round == round_

    def fetch(self) -> None:
        """The peers answer everything that was asked for."""
        for manifest, payload in self.blobs.values():
            self.pool.receive(NodeId(1), ManifestAnswer(manifest), 0.0)
            for index in range(len(manifest.chunks)):
                data = payload[index * 256 : (index + 1) * 256]
                event = ReceivedChunk(NodeId(1), manifest.digest, index, data, digest_of(data))
                self.pool.receive_chunk(event, 0.0)

    def aggregated(self, round_: int) -> Done:
        row = model_row(self.small.federation, self.small.initial_payload) + round_
        self.model, _ = model_blob(self.small.federation, row)
        self.client.aggregated(Aggregated(Round(round_), self.model))
        return self.client.take()

    def to_round(self, round_: int, now: float) -> None:
        """Closed, fetched and aggregated up to here."""
        while self.state.round < round_:
            self.close_round(0, 1, 2, 3, now=now)
            self.at(now)
            self.fetch()
            self.at(now)
            self.aggregated(self.state.round)

    def attestations(self, now: float) -> list[Envelope]:
        self.at(now)
        return [item for item in self.finish.take().send if isinstance(item.message, Attestation)]


# --- The GST_LT timer ------------------------------------------------------------------------


def test_the_timer_gates_only_the_nodes_own_agg_and_training_starts_at_once() -> None:
    desk = Desk()
    started = desk.at(0.0)

    assert started.work == [Train(Round(1), desk.small.initial.digest)]
    assert started.submit == []
    assert desk.client.wake_at == GST_LT_S
    assert desk.at(GST_LT_S - 0.01).submit == []


def test_the_timer_fires_though_training_is_not_done() -> None:
    """Go on without me."""
    desk = Desk()
    desk.at(0.0)
    (agg,) = desk.at(GST_LT_S).submit

    assert isinstance(agg, Agg)
    assert (agg.round, agg.author) == (1, ME)
    desk.small.verifier().transaction(agg)
    assert desk.at(GST_LT_S + 50).submit == [], "once is enough"


def test_an_update_in_time_does_not_bring_the_agg_forward() -> None:
    desk = Desk()
    desk.at(0.0)
    manifest, _ = desk.small.blob(1)
    desk.client.trained(Trained(Round(1), manifest))

    assert desk.aggs_at(1.0) == []
    assert desk.aggs_at(GST_LT_S) == [1]


def test_a_round_that_closes_early_takes_its_timer_along() -> None:
    desk = Desk()
    desk.close_round(0, 1, 2, now=3.0)

    assert desk.aggs_at(GST_LT_S) == []
    assert desk.aggs_at(3.0 + GST_LT_S) == [2]


def test_the_last_round_has_no_timer_after_it() -> None:
    desk = Desk(rounds=1)
    desk.close_round(0, 1, 2, now=3.0)

    assert desk.aggs_at(1000.0) == []


def test_the_timer_grows_when_a_missed_members_update_arrives_late() -> None:
    desk = Desk()
    desk.close_round(0, 1, 2, now=0.0)
    late = desk.small.upd(3, 1)

    desk.client.saw(late)
    assert desk.client.gst_lt_s == GST_LT_S * GST_LT_GROWTH
    desk.client.saw(late)
    assert desk.client.gst_lt_s == GST_LT_S * GST_LT_GROWTH, "one late update, one lesson"

    desk.close_round(0, 1, 2, now=10.0)
    expected = 10.0 + GST_LT_S * GST_LT_GROWTH * GST_LT_DECAY
    assert desk.client.wake_at == pytest.approx(expected)


def test_who_was_in_time_or_is_in_an_open_round_or_says_agg_is_not_late() -> None:
    desk = Desk()
    desk.close_round(0, 1, 2, now=0.0)
    for transaction in (
        desk.small.upd(2, 1),
        desk.small.upd(3, 2),
        desk.small.upd(3, 0),
        desk.small.agg(3, 1),
    ):
        desk.client.saw(transaction)

    assert desk.client.gst_lt_s == GST_LT_S


def test_the_timer_shrinks_slowly_and_stays_within_its_bounds() -> None:
    desk = Desk(rounds=100)
    seen = []
    for round_ in range(1, 25):
        desk.close_round(0, 1, 2, now=0.0)
        desk.client.saw(desk.small.upd(3, round_))
        seen.append(desk.client.gst_lt_s)
    assert seen == sorted(seen)
    assert seen[-1] == GST_LT_MAX_S

    for _ in range(60):
        desk.close_round(0, 1, 2, 3, now=0.0)
        seen.append(desk.client.gst_lt_s)
    shrinking = seen[24:]
    assert all(
        after == pytest.approx(before * GST_LT_DECAY) for before, after in pairwise(shrinking)
    )
    for _ in range(14):
        desk.close_round(0, 1, 2, 3, now=0.0)
    assert GST_LT_S <= desk.client.gst_lt_s < shrinking[-1]


def test_a_quiet_federation_keeps_the_least_time() -> None:
    desk = Desk()
    for _ in range(3):
        desk.close_round(0, 1, 2, 3, now=0.0)

    assert desk.client.gst_lt_s == GST_LT_S


# --- From a closed round to the next update --------------------------------------------------


def test_when_a_round_closes_its_blobs_are_fetched_aggregated_and_trained_from() -> None:
    desk = Desk()
    desk.close_round(0, 2, 3, now=1.0)
    assert desk.at(1.0).work == [], "nothing can be aggregated before the blobs are here"
    desk.fetch()

    last = desk.state.closed[-1]
    assert desk.at(2.0).work == [
        Aggregate(Round(1), desk.small.initial.digest, last.updates, last.block)
    ]
    assert [ref.author for ref in last.updates] == [0, 2, 3]
    assert desk.at(2.5).work == [], "once is enough"

    ready = desk.aggregated(1)
    assert ready.model == (1, desk.model)
    assert ready.notices == [ModelReady(Round(1), desk.model.digest)]
    assert desk.client.model(Round(1)) == desk.model
    assert desk.at(3.0).work == [Train(Round(2), desk.model.digest)]


def test_a_trained_update_is_offered_and_not_trained_again() -> None:
    desk = Desk()
    desk.at(0.0)
    manifest, _ = desk.small.blob(1)
    desk.client.trained(Trained(Round(1), manifest))
    done = desk.pool.take()

    assert done.offer is not None
    assert done.offer.manifest == manifest
    assert done.drop == []
    assert desk.at(1.0).work == []


def test_a_node_whose_update_is_committed_does_not_train_for_that_round() -> None:
    """Its disk may have forgotten; the log has not."""
    desk = Desk()
    desk.commit(desk.small.upd(ME, 1), now=0.0)

    assert desk.at(0.0).work == []


@pytest.mark.parametrize("late_by", [1, 2])
def test_an_update_that_comes_after_its_round_closed_is_discarded(late_by: int) -> None:
    desk = Desk()
    desk.at(0.0)
    for _ in range(late_by):
        desk.close_round(1, 2, 3, now=1.0)
    desk.pool.take()
    manifest, _ = desk.small.blob(1)

    desk.client.trained(Trained(Round(1), manifest))

    done = desk.pool.take()
    assert done.offer is None
    assert done.acks == []
    assert done.drop == [manifest.digest]


def test_an_update_trained_from_another_model_is_discarded() -> None:
    desk = Desk()
    desk.at(0.0)
    manifest, _ = desk.small.blob(1, name("another model"))

    desk.client.trained(Trained(Round(1), manifest))

    done = desk.pool.take()
    assert done.offer is None
    assert done.drop == [manifest.digest]


def test_an_aggregate_of_a_round_that_is_no_longer_the_last_is_discarded() -> None:
    desk = Desk()
    desk.close_round(0, 1, 2, now=0.0)
    desk.at(0.0)
    desk.fetch()
    desk.at(0.0)
    desk.close_round(0, 1, 2, now=1.0)
    desk.pool.take()

    done = desk.aggregated(1)

    assert done.model is None
    assert done.notices == []
    assert desk.client.model(Round(1)) is None
    assert desk.pool.take().drop == [desk.model.digest]


def test_models_are_kept_for_tau_rounds() -> None:
    desk = Desk(rounds=10)
    desk.to_round(4, now=0.0)

    assert [r for r in range(6) if desk.client.model(Round(r)) is not None] == [2, 3, 4]


# --- Work that fails -------------------------------------------------------------------------


def test_failed_work_is_reported_and_tried_again_after_a_while() -> None:
    desk = Desk()
    (train,) = desk.at(0.0).work
    desk.client.failed(WorkFailed(train, "out of memory"), 1.0)
    assert desk.client.take().notices == [WorkFailing(train, "out of memory")]

    assert desk.at(1.5).work == []
    assert desk.client.wake_at == 2.0
    assert desk.at(2.0).work == [train]
    assert desk.at(2.1).work == []


def test_the_pause_before_another_try_doubles_up_to_a_bound() -> None:
    desk = Desk()
    now, pauses = 1000.0, []
    (train,) = desk.at(now).work
    for _ in range(9):
        desk.client.failed(WorkFailed(train, "no"), now)
        wake_at = desk.client.wake_at
        assert wake_at is not None
        pauses.append(wake_at - now)
        now = wake_at
        assert desk.at(now).work == [train]

    assert pauses == [1, 2, 4, 8, 16, 32, WORK_RETRY_MAX_S, WORK_RETRY_MAX_S, WORK_RETRY_MAX_S]


@pytest.mark.xfail(strict=True, reason="Client.wake_at keeps the time of a try that is under way")
def test_a_second_try_under_way_does_not_keep_the_node_awake() -> None:
    desk = Desk()
    (train,) = desk.at(1000.0).work
    desk.client.failed(WorkFailed(train, "no"), 1000.0)
    assert desk.at(1001.0).work == [train]

    assert desk.client.wake_at is None


@pytest.mark.xfail(strict=True, reason="Client.failed plans another try of work of a closed round")
def test_the_failure_of_stale_work_does_not_keep_the_node_awake() -> None:
    desk = Desk(rounds=1)
    (train,) = desk.at(0.0).work
    desk.close_round(1, 2, 3, now=1.0)
    desk.at(1.0)
    desk.client.failed(WorkFailed(train, "no"), 2.0)
    desk.at(10.0)

    assert desk.client.wake_at is None


def test_failures_of_one_round_are_forgotten_in_the_next() -> None:
    desk = Desk()
    (train,) = desk.at(0.0).work
    for now in (0.0, 1.0, 3.0):
        desk.client.failed(WorkFailed(train, "no"), now)
    desk.to_round(1, now=3.5)

    assert desk.at(3.5).work == [Train(Round(2), desk.model.digest)]


# --- The end ---------------------------------------------------------------------------------


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
    desk.small.verifier().attestation(said)


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
    desk.small.verifier().evidence(found.evidence)


# --- An observer -----------------------------------------------------------------------------


def test_an_observer_signs_nothing_but_follows_to_the_end() -> None:
    desk = Desk(rounds=2, muted=True)
    started = desk.at(0.0)
    assert started.work == []
    assert desk.at(100.0).submit == []
    desk.client.trained(Trained(Round(1), desk.small.blob(1)[0]))
    assert desk.pool.take().offer is None

    desk.to_round(2, now=0.0)

    assert desk.client.model(Round(2)) == desk.model
    assert desk.attestations(10.0) == []
    desk.finish.receive(NodeId(1), desk.small.attestation(1, 2, desk.model.digest), 11.0)
    assert desk.finish.take().send == []
    desk.at(10.0 + GRACE_S)
    assert desk.finish.finished
