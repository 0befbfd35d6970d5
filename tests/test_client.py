"""Algorithm 1: when this node trains, aggregates and says AGG, and when it does not."""

import pytest

from defl.client import WORK_RETRY_MAX_S
from defl.committee import Timing
from defl.ids import NodeId, Round
from defl.messages import Agg, Pace
from defl.output import (
    Aggregate,
    Envelope,
    MemberLate,
    ModelReady,
    OwnUpdateLate,
    Train,
    Trained,
    WaitsFor,
    WorkFailed,
    WorkFailing,
)
from defl.waiting import LONGEST_FIRST
from support.benches import ME, Desk
from support.builders import name

GST_LT_S = Timing().gst_lt_min_s  # no AGG sooner


# --- When AGG is said ------------------------------------------------------------------------


def test_waiting_gates_only_the_nodes_own_agg_and_training_starts_at_once() -> None:
    desk = Desk()
    started = desk.at(0.0)

    assert started.work == [Train(Round(1), desk.small.initial.digest)]
    assert started.submit == []
    assert desk.aggs_at(1000.0) == [], "without a quorum of updates an AGG closes nothing"


def test_one_agg_is_submitted_when_nobody_is_awaited_and_the_least_time_is_over() -> None:
    desk = Desk()
    desk.at(0.0)
    desk.commit(*(desk.small.upd(author, 1) for author in (ME, 1, 2)), now=GST_LT_S / 4)
    assert desk.client.wake_at == GST_LT_S
    assert desk.at(GST_LT_S - 0.01).submit == []
    (agg,) = desk.at(GST_LT_S).submit

    assert isinstance(agg, Agg)
    assert (agg.round, agg.author) == (1, ME)
    desk.small.verifier().verify(agg)
    assert desk.at(GST_LT_S + 50).submit == [], "once is enough"


def test_a_node_waits_for_its_own_update_as_for_anybody_elses() -> None:
    desk = Desk()
    desk.at(0.0)
    desk.commit(*(desk.small.upd(author, 1) for author in (1, 2, 3)), now=1.0)

    assert desk.client.wake_at == LONGEST_FIRST * 1.0


def test_the_last_round_is_followed_by_no_agg() -> None:
    desk = Desk(rounds=1)
    desk.close_round(0, 1, 2, now=3.0)

    assert desk.aggs_at(1000.0) == []


def test_the_node_reports_whom_it_waits_for_and_who_was_late() -> None:
    desk = Desk()
    desk.client.receive_pace(NodeId(3), desk.small.pace(3, 1, 0), 0.0)
    desk.at(0.0)
    desk.commit(*(desk.small.upd(author, 1) for author in (0, 1, 2)), now=1.0)
    assert desk.at(1.0).notices == [WaitsFor(Round(1), ((NodeId(3), LONGEST_FIRST - 1.0),))]
    assert desk.at(2.0).notices == [], "once is enough"

    desk.commit(*(desk.small.agg(member, 1) for member in range(3)), now=70.0)
    (late,) = desk.client.take().notices
    assert isinstance(late, MemberLate)
    assert (late.member, late.lasted_s) == (3, 70.0)


# --- What a node says of its own pace --------------------------------------------------------


def paces(desk: Desk, now: float) -> list[tuple[int, int]]:
    """(round, milliseconds) of the promises that it sends to all."""
    return [
        (item.message.round, item.message.milliseconds)
        for item in desk.at(now).send
        if isinstance(item.message, Pace) and item.to is None
    ]


def test_everybody_announces_itself_in_the_first_round_and_later_only_those_left_out() -> None:
    desk = Desk()
    assert paces(desk, 0.0) == [(1, 0)]
    assert paces(desk, 1.0) == [], "once is enough"
    manifest, _ = desk.small.blob(1)
    desk.client.trained(Trained(Round(1), manifest), 1.5)
    desk.close_round(0, 1, 2, now=2.0)
    assert paces(desk, 2.0) == []

    desk.close_round(1, 2, 3, now=4.0)
    assert paces(desk, 4.0) == [(3, 1500)]


def test_an_observer_promises_nothing() -> None:
    desk = Desk(muted=True)

    assert paces(desk, 0.0) == []


def test_a_node_that_was_late_says_how_long_it_took_and_trains_once_at_a_time() -> None:
    desk = Desk()
    desk.at(0.0)
    manifest, _ = desk.small.blob(1)
    for now in (10.0, 20.0):
        desk.close_round(1, 2, 3, now=now)
        desk.fetch()
        assert not any(isinstance(work, Train) for work in desk.at(now).work)
        desk.aggregated(desk.state.round)
        assert desk.at(now).work == [], "one training at a time"
        assert paces(desk, now) == [], "it cannot tell how long the first one takes"
    desk.client.trained(Trained(Round(1), manifest), 50.0)

    done = desk.at(50.0)
    assert done.notices == [OwnUpdateLate(Round(1), 40.0)]
    assert [item.message.milliseconds for item in done.send] == [50_000]
    assert done.work == [Train(Round(3), desk.model.digest)]


def test_a_node_whose_update_came_too_late_into_the_log_says_so_next_time() -> None:
    """A slow line shuts out as well as a slow processor: each round teaches it to ask for more."""
    desk = Desk()
    desk.at(0.0)
    manifest, _ = desk.small.blob(1)
    desk.client.trained(Trained(Round(1), manifest), 1.0)
    desk.close_round(1, 2, 3, now=30.0)

    assert paces(desk, 30.0) == [(2, 30_000)]


def test_another_members_promise_is_passed_on_once_and_not_to_those_who_have_it() -> None:
    desk = Desk()
    desk.close_round(0, 1, 2, now=1.0)
    desk.at(1.0)
    pace = desk.small.pace(3, 2, 9000)

    desk.client.receive_pace(NodeId(1), pace, 1.0)
    assert desk.client.take().send == [Envelope((NodeId(2),), pace)]
    desk.client.receive_pace(NodeId(2), pace, 1.1)
    desk.client.receive_pace(NodeId(3), desk.small.pace(3, 2, 8000), 1.1)
    desk.client.receive_pace(NodeId(3), desk.small.pace(3, 9, 8000), 1.1)
    assert desk.client.take().send == []


def test_a_peer_that_connects_is_told_the_promise_again() -> None:
    desk = Desk()
    (announced,) = desk.at(0.0).send
    desk.client.connected(NodeId(2), 0.5)

    assert desk.client.take().send == [Envelope((NodeId(2),), announced.message)]


def test_a_peer_that_connects_is_told_that_this_node_works() -> None:
    """It may have just started, and then it expects nobody who does not say so."""
    desk = Desk()
    desk.at(0.0)
    manifest, _ = desk.small.blob(1)
    desk.client.trained(Trained(Round(1), manifest), 1.5)
    desk.close_round(0, 1, 2, now=2.0)
    desk.at(2.0)
    desk.client.connected(NodeId(2), 2.5)

    (told,) = desk.client.take().send
    assert told.to == (NodeId(2),)
    assert told.message == desk.small.pace(ME, 2, 1500)


def test_a_node_that_has_delivered_announces_nothing_to_a_peer_that_connects() -> None:
    desk = Desk()
    desk.close_round(0, 1, 2, now=1.0)
    desk.at(1.0)
    desk.commit(desk.small.upd(ME, 2), now=2.0)
    desk.client.connected(NodeId(2), 2.5)

    assert desk.client.take().send == []


def test_a_node_announces_itself_in_the_first_round_after_its_start() -> None:
    """All may have restarted; then nobody knows of anybody that it is still there."""
    desk = Desk()
    desk.close_round(0, 1, 2, now=1.0)
    desk.restart(2.0)
    assert paces(desk, 2.0) == [(2, 0)]
    desk.client.receive_pace(NodeId(1), desk.small.pace(1, 2, 0), 2.1)
    assert desk.client.take().send == [], "everybody does: nothing is passed on"

    desk.close_round(0, 1, 2, now=3.0)
    assert paces(desk, 3.0) == []


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


def test_a_node_whose_training_fails_lets_the_round_close_without_it() -> None:
    """It has announced itself; nobody is to wait for what will not come."""
    desk = Desk()
    desk.at(0.0)
    train = Train(Round(1), desk.small.initial.digest)
    desk.client.failed(WorkFailed(train, "the labels are missing"), 0.5)
    base = desk.small.initial.digest
    desk.commit(*(desk.small.upd(author, 1, base=base) for author in (1, 2, 3)), now=2.0)

    (agg,) = desk.at(2.0 + GST_LT_S).submit
    assert isinstance(agg, Agg)
