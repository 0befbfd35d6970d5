"""Algorithm 1: when a node trains, aggregates and submits its AGG, and when it does not."""

import pytest

from defl.client import WORK_RETRY_MAX_S
from defl.committee import Timing
from defl.ids import Digest, NodeId, Round
from defl.messages import Agg, ChunkRequest, Pace
from defl.output import (
    Aggregate,
    Envelope,
    ModelReady,
    OwnUpdateLate,
    Train,
    Trained,
    WaitsFor,
    WorkFailed,
    WorkFailing,
)
from defl.waiting import LONGEST_FIRST
from support.benches import ME, ClientBench
from support.builders import name

GST_LT_S = Timing().gst_lt_min_s  # no AGG sooner


# --- When the AGG is submitted ---------------------------------------------------------------


def test_waiting_gates_only_the_nodes_own_agg_and_training_starts_at_once() -> None:
    bench = ClientBench()
    started = bench.at(0.0)

    assert started.work == [Train(Round(1), bench.small.initial.digest)]
    assert started.submit == []
    assert bench.aggs_at(1000.0) == [], "without a quorum of updates an AGG closes nothing"


def test_one_agg_is_submitted_when_no_member_is_awaited_and_the_minimum_time_is_over() -> None:
    bench = ClientBench()
    bench.at(0.0)
    bench.commit(*(bench.small.upd(author, 1) for author in (ME, 1, 2)), now=GST_LT_S / 4)
    assert bench.client.wake_at == GST_LT_S
    assert bench.at(GST_LT_S - 0.01).submit == []
    (agg,) = bench.at(GST_LT_S).submit

    assert isinstance(agg, Agg)
    assert (agg.round, agg.author) == (1, ME)
    bench.small.verifier().verify(agg)
    assert bench.at(GST_LT_S + 50).submit == [], "once is enough"


def test_a_node_waits_for_its_own_update_as_for_any_other() -> None:
    bench = ClientBench()
    bench.at(0.0)
    bench.commit(*(bench.small.upd(author, 1) for author in (1, 2, 3)), now=1.0)

    assert bench.client.wake_at == LONGEST_FIRST * 1.0


def test_no_agg_is_submitted_after_the_last_round() -> None:
    bench = ClientBench(rounds=1)
    bench.close_round(0, 1, 2, now=3.0)

    assert bench.aggs_at(1000.0) == []


def test_no_agg_is_submitted_before_the_node_may_sign() -> None:
    bench = ClientBench()
    bench.client.muted = True
    bench.at(0.0)
    bench.commit(*(bench.small.upd(author, 1) for author in (ME, 1, 2)), now=1.0)
    assert bench.aggs_at(1.0 + GST_LT_S) == []
    bench.client.muted = False

    assert bench.aggs_at(2.0 + GST_LT_S) == [1]


def test_a_node_that_may_not_sign_yet_does_not_wake_up_to_vote() -> None:
    """The time of its vote has passed, so the node would wake up again and again."""
    bench = ClientBench()
    bench.client.muted = True
    bench.at(0.0)
    bench.commit(*(bench.small.upd(author, 1) for author in (ME, 1, 2)), now=1.0)
    bench.at(1.0 + GST_LT_S)
    assert bench.client.wake_at is None
    bench.client.muted = False

    assert bench.client.wake_at == GST_LT_S


def test_the_node_reports_whom_it_waits_for_and_who_was_late() -> None:
    bench = ClientBench()
    bench.client.receive_pace(NodeId(3), bench.small.pace(3, 1, 0), 0.0)
    bench.at(0.0)
    bench.commit(*(bench.small.upd(author, 1) for author in (0, 1, 2)), now=1.0)
    assert bench.at(1.0).notices == [WaitsFor(Round(1), ((NodeId(3), LONGEST_FIRST - 1.0),))]
    assert bench.at(2.0).notices == [], "once is enough"

    bench.commit(*(bench.small.agg(member, 1) for member in range(3)), now=70.0)
    seen = bench.client.waiting.seen
    assert seen is not None
    assert [late.member for late in seen.late] == [3]
    assert (seen.lasted_s, seen.deadline_s) == (70.0, LONGEST_FIRST)


# --- A node's own pace -----------------------------------------------------------------------


def paces(bench: ClientBench, now: float) -> list[tuple[int, int]]:
    """(round, milliseconds) of each Pace that it sends to all."""
    return [
        (item.message.round, item.message.milliseconds)
        for item in bench.at(now).send
        if isinstance(item.message, Pace) and item.to is None
    ]


def test_all_members_announce_themselves_in_the_first_round_and_later_only_those_left_out() -> None:
    bench = ClientBench()
    assert paces(bench, 0.0) == [(1, 0)]
    assert paces(bench, 1.0) == [], "once is enough"
    manifest, _ = bench.small.blob(1)
    bench.client.trained(Trained(Round(1), manifest), 1.5)
    bench.close_round(0, 1, 2, now=2.0)
    assert paces(bench, 2.0) == []

    bench.close_round(1, 2, 3, now=4.0)
    assert paces(bench, 4.0) == [(3, 1500)]


def test_an_observer_sends_no_pace() -> None:
    bench = ClientBench(muted=True)

    assert paces(bench, 0.0) == []


def test_a_late_node_states_how_long_it_took_and_runs_one_training_at_a_time() -> None:
    bench = ClientBench()
    bench.at(0.0)
    manifest, _ = bench.small.blob(1)
    for now in (10.0, 20.0):
        bench.close_round(1, 2, 3, now=now)
        bench.fetch()
        assert not any(isinstance(work, Train) for work in bench.at(now).work)
        bench.aggregated(bench.state.round)
        assert bench.at(now).work == [], "one training at a time"
        assert paces(bench, now) == [], "it does not know yet how long the first one takes"
    bench.client.trained(Trained(Round(1), manifest), 50.0)

    done = bench.at(50.0)
    assert done.notices == [OwnUpdateLate(Round(1), 40.0)]
    assert [item.message.milliseconds for item in done.send] == [50_000]
    assert done.work == [Train(Round(3), bench.model.digest)]


def test_a_node_whose_update_was_committed_too_late_states_the_longer_time_next_round() -> None:
    """A slow link delays an update like a slow processor does: it states more time each round."""
    bench = ClientBench()
    bench.at(0.0)
    manifest, _ = bench.small.blob(1)
    bench.client.trained(Trained(Round(1), manifest), 1.0)
    bench.close_round(1, 2, 3, now=30.0)

    assert paces(bench, 30.0) == [(2, 30_000)]


def test_a_node_whose_training_failed_announces_itself_in_the_next_round() -> None:
    """Nothing is overdue: the training that took so long runs no more."""
    bench = ClientBench()
    bench.at(0.0)
    train = Train(Round(1), bench.small.initial.digest)
    bench.client.failed(WorkFailed(train, "out of memory"), 100.0)
    bench.close_round(1, 2, 3, now=100.5)

    assert paces(bench, 100.5) == [(2, 0)]


@pytest.mark.parametrize(("trained_s", "stated_s"), [(60.0, 60), (9000.0, 7200)])
def test_a_node_that_waited_until_it_could_sign_states_how_long_it_has_trained(
    trained_s: float, stated_s: int
) -> None:
    """It started two hours before the others. Its update comes at once, or sooner than theirs."""
    bench = ClientBench()
    bench.client.muted = True
    assert len(bench.at(0.0).work) == 1
    if trained_s < 7200.0:
        bench.client.trained(Trained(Round(1), bench.small.blob(1)[0]), trained_s)
    assert paces(bench, 7199.0) == []
    bench.client.muted = False

    assert paces(bench, 7200.0) == [(1, 1000 * stated_s)]


@pytest.mark.parametrize("is_committed", [True, False])
def test_the_time_until_a_quorum_is_up_is_no_part_of_a_nodes_pace(is_committed: bool) -> None:
    bench = ClientBench()
    bench.at(0.0)
    bench.client.trained(Trained(Round(1), bench.small.blob(1)[0]), 1.5)
    for member in (1, 2):
        bench.client.receive_pace(NodeId(member), bench.small.pace(member, 1, 0), 7200.0)
    if is_committed:
        bench.commit(bench.small.upd(ME, 1, base=bench.model.digest), now=7203.0)
        bench.close_round(1, 2, now=7204.0)
        bench.close_round(1, 2, 3, now=7208.0)
    else:
        bench.close_round(1, 2, 3, now=7203.0)

    ((_, stated_ms),) = paces(bench, 7208.0)
    assert stated_ms == 3000


def test_the_time_until_a_trained_update_may_be_signed_is_no_part_of_a_nodes_pace() -> None:
    """The others answer a restarted node only after its training, as late as they like."""
    bench = ClientBench()
    bench.to_round(1, now=2.0)
    bench.client.muted = True
    bench.at(2.0)
    update, _ = bench.small.blob(1, bench.model.digest)
    bench.client.trained(Trained(Round(2), update), 3.0)
    bench.client.muted = False
    bench.at(100.0)
    bench.commit(bench.small.upd(ME, 2, base=bench.model.digest), now=101.5)
    bench.close_round(1, 2, now=102.0)
    bench.close_round(1, 2, 3, now=104.0)

    assert paces(bench, 104.0) == [(4, 2500)], "1 s of training, and 1.5 s until the commit"


def test_another_members_pace_is_relayed_once_to_the_members_that_lack_it() -> None:
    bench = ClientBench()
    bench.close_round(0, 1, 2, now=1.0)
    bench.at(1.0)
    pace = bench.small.pace(3, 2, 9000)

    bench.client.receive_pace(NodeId(1), pace, 1.0)
    assert bench.client.take().send == [Envelope((NodeId(2),), pace)]
    bench.client.receive_pace(NodeId(2), pace, 1.1)
    bench.client.receive_pace(NodeId(3), bench.small.pace(3, 2, 8000), 1.1)
    bench.client.receive_pace(NodeId(3), bench.small.pace(3, 9, 8000), 1.1)
    assert bench.client.take().send == []


def test_a_pace_is_sent_again_to_a_peer_that_connects() -> None:
    bench = ClientBench()
    (announced,) = bench.at(0.0).send
    bench.client.connected(NodeId(2), 0.5)

    assert bench.client.take().send == [Envelope((NodeId(2),), announced.message)]


def test_a_working_node_sends_its_pace_to_a_peer_that_connects() -> None:
    """The peer may have just started, and then expects only members that announce themselves."""
    bench = ClientBench()
    bench.at(0.0)
    manifest, _ = bench.small.blob(1)
    bench.client.trained(Trained(Round(1), manifest), 1.5)
    bench.close_round(0, 1, 2, now=2.0)
    bench.at(2.0)
    bench.client.connected(NodeId(2), 2.5)

    (envelope,) = bench.client.take().send
    assert envelope.to == (NodeId(2),)
    assert envelope.message == bench.small.pace(ME, 2, 1500)


def test_a_node_that_has_delivered_sends_no_pace_to_a_peer_that_connects() -> None:
    bench = ClientBench()
    bench.close_round(0, 1, 2, now=1.0)
    bench.at(1.0)
    bench.commit(bench.small.upd(ME, 2), now=2.0)
    bench.client.connected(NodeId(2), 2.5)

    assert bench.client.take().send == []


def test_a_node_announces_itself_in_the_first_round_after_its_start() -> None:
    """All members may have restarted, and then none knows which others are up."""
    bench = ClientBench()
    bench.close_round(0, 1, 2, now=1.0)
    bench.restart(2.0)
    assert paces(bench, 2.0) == [(2, 0)]
    bench.client.receive_pace(NodeId(1), bench.small.pace(1, 2, 0), 2.1)
    assert bench.client.take().send == [], "all members do: no pace is relayed"

    bench.close_round(0, 1, 2, now=3.0)
    assert paces(bench, 3.0) == []


# --- From a closed round to the next update --------------------------------------------------


def test_when_a_round_closes_its_blobs_are_fetched_aggregated_and_trained_from() -> None:
    bench = ClientBench()
    bench.close_round(0, 2, 3, now=1.0)
    assert bench.at(1.0).work == [], "nothing can be aggregated before the blobs are here"
    bench.fetch()

    last = bench.state.closed[-1]
    assert bench.at(2.0).work == [
        Aggregate(
            Round(1),
            bench.small.initial.digest,
            last.updates,
            last.block,
            last.faults_max,
            weights=(1, 1, 1),
        )
    ]
    assert [ref.author for ref in last.updates] == [0, 2, 3]
    assert bench.at(2.5).work == [], "once is enough"

    ready = bench.aggregated(1)
    assert ready.model == (1, bench.model)
    assert ready.notices == [ModelReady(Round(1), bench.model.digest)]
    assert bench.client.model(Round(1)) == bench.model
    assert bench.at(3.0).work == [Train(Round(2), bench.model.digest)]


def test_a_node_that_lost_its_blobs_fetches_those_of_all_kept_rounds_back() -> None:
    """Peers that lag may need them, and the other holders may fail one by one."""
    bench = ClientBench()
    bench.to_round(2, now=1.0)
    kept = {ref.digest for closed in bench.state.closed for ref in closed.updates}
    assert len(kept) == 8
    bench.restart(2.0, blobs_lost=True)

    assert bench.requested(2.0) >= kept


def test_a_round_is_aggregated_once_its_base_is_here_too() -> None:
    bench = ClientBench()
    bench.to_round(1, now=1.0)
    base = bench.model
    bench.close_round(1, 2, 3, now=2.0)
    bench.restart(3.0, blobs_lost=True)
    bench.at(3.0)
    assert bench.requested(3.0) >= {base.digest, *(ref.digest for ref in bench.state.last.updates)}
    bench.fetch()
    assert bench.at(4.0).work == []
    bench.pool.keep_model(Round(1), base)

    assert [type(work) for work in bench.at(5.0).work] == [Aggregate]


def test_a_node_between_two_handovers_fetches_committed_updates_when_its_wait_is_over() -> None:
    """No other commit has to come first: an update's holders may fail one by one."""
    bench = ClientBench()
    bench.client.fetch_from(5.0)
    update = bench.small.upd(1, 1)
    bench.commit(update, now=1.0)
    bench.at(1.0)
    assert bench.requested(1.0) == set()
    assert bench.client.wake_at == 5.0
    bench.at(5.0)

    assert bench.requested(5.0) == {update.digest}


def test_a_trained_update_is_offered_and_not_trained_again() -> None:
    bench = ClientBench()
    bench.at(0.0)
    manifest, _ = bench.small.blob(1)
    bench.client.trained(Trained(Round(1), manifest), 0.5)
    done = bench.pool.take()

    assert done.offer is not None
    assert done.offer.manifest == manifest
    assert done.drop == []
    assert bench.at(1.0).work == []


def test_a_node_whose_update_is_committed_does_not_train_for_that_round() -> None:
    """Even if its disk has lost the offer: the update is in the log."""
    bench = ClientBench()
    bench.commit(bench.small.upd(ME, 1), now=0.0)

    assert bench.at(0.0).work == []


@pytest.mark.parametrize("late_by", [1, 2])
def test_an_update_that_is_trained_after_its_round_closed_is_discarded(late_by: int) -> None:
    bench = ClientBench()
    bench.at(0.0)
    for _ in range(late_by):
        bench.close_round(1, 2, 3, now=1.0)
    bench.pool.take()
    manifest, _ = bench.small.blob(1)

    bench.client.trained(Trained(Round(1), manifest), 0.5)

    done = bench.pool.take()
    assert done.offer is None
    assert done.acks == []
    assert done.drop == [manifest.digest]


def test_an_update_trained_from_another_model_is_discarded() -> None:
    bench = ClientBench()
    bench.at(0.0)
    manifest, _ = bench.small.blob(1, name("another model"))

    bench.client.trained(Trained(Round(1), manifest), 0.5)

    done = bench.pool.take()
    assert done.offer is None
    assert done.drop == [manifest.digest]


def test_a_stale_aggregate_is_discarded() -> None:
    bench = ClientBench()
    bench.close_round(0, 1, 2, now=0.0)
    bench.at(0.0)
    bench.fetch()
    bench.at(0.0)
    bench.close_round(0, 1, 2, now=1.0)
    bench.pool.take()

    done = bench.aggregated(1)

    assert done.model is None
    assert done.notices == []
    assert bench.client.model(Round(1)) is None
    assert bench.pool.take().drop == [bench.model.digest]


def test_models_are_kept_for_tau_rounds() -> None:
    bench = ClientBench(rounds=10)
    bench.to_round(4, now=0.0)

    assert [r for r in range(6) if bench.client.model(Round(r)) is not None] == [2, 3, 4]


# --- Work that fails -------------------------------------------------------------------------


def test_an_update_that_must_not_be_used_is_dropped() -> None:
    bench = ClientBench()
    (train,) = bench.at(0.0).work
    update = Digest(b"u" * 32)
    bench.client.failed(WorkFailed(train, "an I/O error", update), 1.0)
    assert bench.pool.take().drop == [update]


def test_failed_work_is_reported_and_retried_later() -> None:
    bench = ClientBench()
    (train,) = bench.at(0.0).work
    bench.client.failed(WorkFailed(train, "out of memory"), 1.0)
    assert bench.client.take().notices == [WorkFailing(train, "out of memory")]

    assert bench.at(1.5).work == []
    assert bench.client.wake_at == 2.0
    assert bench.at(2.0).work == [train]
    assert bench.at(2.1).work == []


def test_the_retry_delay_doubles_up_to_a_bound() -> None:
    bench = ClientBench()
    now, pauses = 1000.0, []
    (train,) = bench.at(now).work
    for _ in range(9):
        bench.client.failed(WorkFailed(train, "no"), now)
        wake_at = bench.client.wake_at
        assert wake_at is not None
        pauses.append(wake_at - now)
        now = wake_at
        assert bench.at(now).work == [train]

    assert pauses == [1, 2, 4, 8, 16, 32, WORK_RETRY_MAX_S, WORK_RETRY_MAX_S, WORK_RETRY_MAX_S]


def test_a_running_retry_does_not_keep_the_node_awake() -> None:
    bench = ClientBench()
    (train,) = bench.at(1000.0).work
    bench.client.failed(WorkFailed(train, "no"), 1000.0)
    assert bench.at(1001.0).work == [train]

    assert bench.client.wake_at is None


def test_a_training_that_succeeds_after_a_failure_does_not_keep_the_node_awake() -> None:
    bench = ClientBench()
    (train,) = bench.at(1000.0).work
    assert isinstance(train, Train)
    bench.client.failed(WorkFailed(train, "no"), 1000.0)
    assert bench.at(1001.0).work == [train]
    bench.client.trained(Trained(Round(1), bench.small.blob(1, train.base)[0]), 1002.0)
    bench.at(1002.0)

    assert bench.client.wake_at is None


def test_a_model_whose_bytes_are_lost_is_fetched_back_before_training() -> None:
    bench = ClientBench()
    bench.pool.refetch_whole(bench.model.digest, 0.0)
    assert bench.at(1000.0).work == []
    bench.pool.keep_model(Round(0), bench.model)

    assert [type(work) for work in bench.at(1001.0).work] == [Train]


def bench_without_its_model() -> tuple[ClientBench, Aggregate]:
    """Its disk has lost the model of round 1; the inputs are here, and so is how it was made."""
    bench = ClientBench()
    bench.close_round(0, 1, 2, 3, now=0.0)
    bench.at(0.0)
    bench.fetch()
    (aggregate,) = [work for work in bench.at(0.0).work if isinstance(work, Aggregate)]
    bench.aggregated(1)
    lose_model(bench, 100.0)
    return bench, aggregate


def lose_model(bench: ClientBench, now: float) -> None:
    bench.pool.refetch_whole(bench.model.digest, now)
    bench.client.lost(bench.model.digest, now)


def test_a_model_that_nobody_may_have_any_more_is_computed_again() -> None:
    bench, aggregate = bench_without_its_model()

    assert bench.at(100.5).work == [], "it may be fetched yet"
    assert bench.client.wake_at == 101.0
    assert bench.at(101.0).work == [aggregate]
    computed = bench.aggregated(1)
    assert not computed.notices
    assert computed.model is None, "its record is durable already"
    assert [type(work) for work in bench.at(102.0).work] == [Train]
    assert bench.requested(102.0) == set()


def test_a_model_that_is_lost_again_and_again_is_computed_less_and_less_often() -> None:
    bench, aggregate = bench_without_its_model()
    times = []
    now = 100.0
    for _ in range(4):
        while bench.at(now).work != [aggregate]:
            now += 0.5
        times.append(now)
        bench.aggregated(1)
        lose_model(bench, now)

    assert times == [101.0, 103.0, 107.0, 115.0]


def test_a_lost_model_is_not_computed_again_once_it_is_fetched() -> None:
    bench, _ = bench_without_its_model()
    bench.pool.keep_model(Round(1), bench.model)

    assert [type(work) for work in bench.at(101.0).work] == [Train]


def test_the_loss_of_another_blob_delays_no_aggregation() -> None:
    bench = ClientBench()
    bench.close_round(0, 1, 2, 3, now=0.0)
    bench.client.lost(bench.model.digest, 0.0)  # the base of the round
    bench.at(0.0)
    bench.fetch()

    assert [type(work) for work in bench.at(0.0).work] == [Aggregate]


def test_the_last_model_is_computed_again_too() -> None:
    bench = ClientBench(rounds=1)
    bench.close_round(0, 1, 2, 3, now=0.0)
    bench.at(0.0)
    bench.fetch()
    (aggregate,) = bench.at(0.0).work
    bench.aggregated(1)
    lose_model(bench, 0.0)

    assert bench.at(1.0).work == [aggregate]


def test_a_node_that_lost_the_initial_weights_gets_them_back_from_the_others() -> None:
    bench = ClientBench()
    bench.pool.refetch_whole(bench.model.digest, 0.0)
    bench.restart(999.0)
    bench.pool.take()
    assert bench.at(1000.0).work == []
    bench.pool.send_due(1000.0)
    (asked, *_) = [e.message for e in bench.pool.take().send if isinstance(e, Envelope)]
    assert asked == ChunkRequest(bench.model.digest, 0)
    bench.pool.keep_model(Round(0), bench.model)

    assert [type(work) for work in bench.at(1001.0).work] == [Train]


def test_the_failure_of_stale_work_does_not_keep_the_node_awake() -> None:
    bench = ClientBench(rounds=1)
    (train,) = bench.at(0.0).work
    bench.close_round(1, 2, 3, now=1.0)
    bench.at(1.0)
    bench.client.failed(WorkFailed(train, "no"), 2.0)
    bench.at(10.0)

    assert bench.client.wake_at is None


def test_failures_are_forgotten_when_a_round_closes() -> None:
    bench = ClientBench()
    (train,) = bench.at(0.0).work
    for now in (0.0, 1.0, 3.0):
        bench.client.failed(WorkFailed(train, "no"), now)
    bench.to_round(1, now=3.5)

    assert bench.at(3.5).work == [Train(Round(2), bench.model.digest)]


def test_a_retry_of_a_closed_rounds_training_does_not_wake_the_node() -> None:
    bench = ClientBench()
    (train,) = bench.at(0.0).work
    bench.client.failed(WorkFailed(train, "no"), 3.0)
    assert bench.client.wake_at is not None
    bench.close_round(1, 2, 3, now=3.5)
    bench.at(3.5)

    assert bench.client.wake_at is None


def test_a_node_whose_training_fails_lets_the_round_close_without_it() -> None:
    """It has announced itself, but no update will come."""
    bench = ClientBench()
    bench.at(0.0)
    train = Train(Round(1), bench.small.initial.digest)
    bench.client.failed(WorkFailed(train, "the labels are missing"), 0.5)
    base = bench.small.initial.digest
    bench.commit(*(bench.small.upd(author, 1, base=base) for author in (1, 2, 3)), now=2.0)

    (agg,) = bench.at(2.0 + GST_LT_S).submit
    assert isinstance(agg, Agg)


def test_a_node_whose_training_fails_while_it_is_awaited_stops_waiting_for_itself() -> None:
    bench = ClientBench()
    bench.at(0.0)
    base = bench.small.initial.digest
    bench.commit(*(bench.small.upd(author, 1, base=base) for author in (1, 2, 3)), now=2.0)
    assert bench.aggs_at(2.0 + GST_LT_S) == []
    train = Train(Round(1), base)
    bench.client.failed(WorkFailed(train, "the labels are missing"), 3.0 + GST_LT_S)

    assert bench.aggs_at(3.0 + GST_LT_S) == [1]
