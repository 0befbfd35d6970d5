"""Whole simulated federations: slow members take part, and false promises cost little time."""

from functools import cache

import pytest

from defl.committee import Timing, faults_of
from defl.ids import NodeId, Round
from defl.lab.experiments.bench_waiting import NOISY, STEADY, WaitingCase, measure
from defl.output import Notice, RoundClosed
from defl.sim.byzantine import KINDS
from defl.sim.conditions import AccessLine, Conditions, LateStart
from defl.sim.presence import (
    LEFT_OUT_IN_A_ROW_MAX,
    ROUNDS_JUDGED_MIN,
    ROUNDS_TO_LEARN,
    Presence,
)
from defl.sim.scenario import cluster_of
from defl.sim.verdicts import NO_MEMBER_LEFT_BEHIND
from defl.waiting import LONGEST_FIRST

TIMING = Timing()

BREAKERS = ("claiming", "just-late", "alternating", "staggered", "silent-then-claiming")


@pytest.mark.parametrize(("nodes", "rounds"), [(4, 40), (7, 40), (10, 20)])
@pytest.mark.parametrize(("factor", "sigma"), [(1.2, STEADY), (5.0, STEADY), (50.0, NOISY)])
def test_a_slow_trainer_takes_part_in_the_rounds(
    nodes: int, rounds: int, factor: float, sigma: float
) -> None:
    measured = measure(WaitingCase("slow", factor, sigma), nodes, rounds, seed=1)

    assert measured.holds
    assert measured.rounds == rounds
    assert measured.share >= 0.9


def test_a_member_slightly_slower_than_the_minimum_wait_is_not_shut_out() -> None:
    """Regression: such a member took part in 0 of 40 rounds."""
    training_s = 0.5
    longer = ((NodeId(3), 1.2 * TIMING.gst_lt_min_s / training_s),)
    conditions = Conditions(work_s=training_s, work_sigma=STEADY, work_factors=longer)
    cluster = cluster_of(4, rounds=20, conditions=conditions)
    cluster.run()
    cluster.conclude()

    assert cluster.checker.verdicts[NO_MEMBER_LEFT_BEHIND]
    assert all(cluster.checker.verdicts.values())


@cache
def silent_s(nodes: int) -> float:
    return measure(WaitingCase("silent", liars="silent"), nodes, 40, seed=1).virtual_s


@pytest.mark.parametrize(
    ("nodes", "kind"), [*((4, kind) for kind in BREAKERS), (7, "claiming"), (10, "claiming")]
)
def test_f_promise_breakers_cost_little_more_than_silent_members(nodes: int, kind: str) -> None:
    lied = measure(WaitingCase(kind, liars=kind), nodes, 40, seed=1)

    assert lied.holds
    assert lied.least_share == 1.0
    assert lied.virtual_s <= 1.5 * silent_s(nodes)


def test_the_first_round_does_not_wait_for_silent_members() -> None:
    silent = measure(WaitingCase("silent", liars="silent"), 4, 4, seed=1)

    assert silent.first_round_s < 5 * TIMING.gst_lt_min_s


# Half a second of training with little noise, and the transfer.
HONEST_WORK_S = 0.8


@cache
def closing_times(nodes: int, kind: str, late_s: float) -> list[float]:
    """Return when rounds 1 to 3 close, if f members are Byzantine and f others start late."""
    faults = faults_of(nodes)
    late = tuple(LateStart(NodeId(nodes - 1 - i), late_s) for i in range(faults))
    cluster = cluster_of(
        nodes,
        rounds=3,
        conditions=Conditions(work_s=0.5, work_sigma=STEADY, late_starts=late),
        byzantine={NodeId(i): KINDS[kind] for i in range(faults)},
    )
    cluster.run()
    assert cluster.conclude() == []
    return [cluster.checker.closed_at[Round(round_)] for round_ in (1, 2, 3)]


@pytest.mark.parametrize(("nodes", "late_s"), [(4, 30.0), (7, 30.0), (10, 30.0), (4, 300.0)])
@pytest.mark.parametrize("kind", ["claiming", "stalling"])
def test_the_first_round_does_not_multiply_a_late_start(
    nodes: int, late_s: float, kind: str
) -> None:
    """Regression: 30 s became 1,943 s, and the rounds that followed took 200 s more each."""
    first, _, third = closing_times(nodes, kind, late_s)
    quiet_first, _, quiet_third = closing_times(nodes, "silent", late_s)

    assert quiet_first < 1.5 * late_s + 5 * TIMING.gst_lt_min_s, "views grow while it is away"
    assert first <= quiet_first + LONGEST_FIRST * HONEST_WORK_S
    assert third - first <= 2 * (quiet_third - quiet_first)


@pytest.mark.parametrize("apart_s", [0.5, 2.0])
@pytest.mark.parametrize("place", [0, 3, 6])
def test_a_member_50_times_slower_is_in_the_first_round_in_whatever_order_all_start(
    place: int, apart_s: float
) -> None:
    """Early members have trained, or half trained, when a quorum is up at last."""
    starts = tuple(LateStart(NodeId(i), 0.1 + i * apart_s) for i in range(7))
    factors = ((NodeId(place), 50.0),)
    conditions = Conditions(work_s=2.0, work_sigma=STEADY, work_factors=factors, late_starts=starts)

    assert place in authors_of_the_first_round(7, conditions)


def test_a_member_with_a_slow_line_is_in_the_first_round() -> None:
    """Training takes no time, so all that tells how long a member needs are the transfers."""
    lines = tuple(AccessLine(NodeId(i), 500.0 if i == 3 else 10e3, 10e3) for i in range(4))
    conditions = Conditions(work_s=0.05, work_sigma=STEADY, lines=lines)

    assert 3 in authors_of_the_first_round(4, conditions, values=5000)


def authors_of_the_first_round(nodes: int, conditions: Conditions, **facts: int) -> set[NodeId]:
    closed: dict[Round, tuple[NodeId, ...]] = {}

    def on_notice(_node: NodeId, notice: Notice) -> None:
        if isinstance(notice, RoundClosed):
            closed[notice.round] = notice.updates

    cluster = cluster_of(nodes, rounds=2, conditions=conditions, on_notice=on_notice, **facts)
    cluster.run()
    assert cluster.conclude() == []
    return set(closed[Round(1)])


@pytest.mark.parametrize("factor", [1.0, 20.0])
def test_a_crashed_member_takes_part_again_within_three_rounds(factor: float) -> None:
    conditions = Conditions(work_sigma=STEADY, work_factors=((NodeId(3), factor),))
    cluster = cluster_of(4, rounds=20, conditions=conditions)
    cluster.run(until=lambda: cluster.rounds_closed >= 4)
    cluster.crash(NodeId(3), downtime_s=15.0)
    away = cluster.nodes[3]
    cluster.run(until=lambda: away.alive)
    back = max(node.behaviour.participant.state.round for node in cluster.honest)
    authors: dict[int, set[int]] = {}

    def all_closed() -> bool:
        for node in cluster.honest:
            for closed in node.behaviour.participant.state.closed:
                authors[closed.round] = {ref.author for ref in closed.updates}
        return False

    cluster.run(until=all_closed)
    assert any(3 in authors[round_] for round_ in range(back + 1, back + 4))
    assert cluster.conclude() == []


@pytest.mark.parametrize("factor", [20.0, 50.0])
def test_a_slow_member_rejoins_soon_after_all_members_restart(factor: float) -> None:
    """No node remembers any pace, the slow member not even its own.

    Regression: it was left out of all later rounds."""
    slow = NodeId(0)
    conditions = Conditions(work_sigma=STEADY, work_factors=((slow, factor),))
    cluster = cluster_of(4, rounds=16, conditions=conditions)
    cluster.run(until=lambda: cluster.rounds_closed >= 4)
    quick = cluster.nodes[1].behaviour.participant
    cluster.run(until=lambda: len(quick.state.current) == 3)  # the slow one still trains
    for node in cluster.nodes:
        cluster.crash(node.id, downtime_s=1.0, power=False)
    authors: dict[int, set[int]] = {}

    def all_closed() -> bool:
        for node in cluster.honest:
            for closed in node.behaviour.participant.state.closed:
                authors[closed.round] = {ref.author for ref in closed.updates}
        return False

    cluster.run(until=all_closed)
    assert any(slow in authors[round_] for round_ in (6, 7))
    assert cluster.conclude() == []


# --- The check itself ------------------------------------------------------------------------


def test_four_judged_rounds_missed_in_a_row_fail_the_presence_check() -> None:
    presence = Presence()
    first = ROUNDS_TO_LEARN + 1
    faults = [
        presence.closed(Round(round_), present=False)
        for round_ in range(1, first + LEFT_OUT_IN_A_ROW_MAX + 1)
    ]

    assert faults[:-1] == [None] * (len(faults) - 1)
    assert faults[-1] is not None


def test_missing_every_third_round_fails_the_presence_check_in_the_long_run() -> None:
    presence = Presence()
    last = ROUNDS_TO_LEARN + ROUNDS_JUDGED_MIN
    faults = [presence.closed(Round(round_), present=round_ % 3 != 0) for round_ in range(1, 40)]

    assert faults[: last - 1] == [None] * (last - 1)
    assert any(fault is not None for fault in faults[last - 1 :])


def test_rounds_in_which_a_member_was_down_or_catching_up_are_not_judged() -> None:
    presence = Presence()
    for round_ in range(1, 60):
        presence.away(Round(round_))
        assert presence.closed(Round(round_ + 1), present=False) is None
