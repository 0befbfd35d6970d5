"""Algorithm 1: when this node trains, aggregates and says AGG, and when it does not."""

from itertools import pairwise

import pytest

from benches import ME, Desk
from builders import name
from defl.client import GST_LT_DECAY, GST_LT_GROWTH, WORK_RETRY_MAX_S
from defl.ids import Round
from defl.messages import Agg
from defl.output import (
    Aggregate,
    ModelReady,
    Train,
    Trained,
    WorkFailed,
    WorkFailing,
)

GST_LT_S = 4.0  # the least time that is given for a round in these federations
GST_LT_MAX_S = 120.0
GRACE_S = 120.0


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
    desk.client.trained(Trained(Round(1), manifest), 0.5)

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
    desk.client.trained(Trained(Round(1), manifest), 0.5)
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

    desk.client.trained(Trained(Round(1), manifest), 0.5)

    done = desk.pool.take()
    assert done.offer is None
    assert done.acks == []
    assert done.drop == [manifest.digest]


def test_an_update_trained_from_another_model_is_discarded() -> None:
    desk = Desk()
    desk.at(0.0)
    manifest, _ = desk.small.blob(1, name("another model"))

    desk.client.trained(Trained(Round(1), manifest), 0.5)

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


def test_a_second_try_under_way_does_not_keep_the_node_awake() -> None:
    desk = Desk()
    (train,) = desk.at(1000.0).work
    desk.client.failed(WorkFailed(train, "no"), 1000.0)
    assert desk.at(1001.0).work == [train]

    assert desk.client.wake_at is None


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
