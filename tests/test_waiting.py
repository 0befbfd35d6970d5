"""Which members a node waits for before its AGG, how long, and the cost of broken promises."""

from functools import cache

import pytest

from defl.committee import Committee, Timing
from defl.ids import NO_DIGEST, Digest, NodeId, Round, digest_of
from defl.ledger import LedgerState
from defl.output import ClosedRound, Reference
from defl.waiting import (
    GRANT,
    LONGEST,
    LONGEST_FIRST,
    OVERDUE,
    TIMES_KEPT,
    VAIN_ROUNDS,
    VAIN_SHARE,
    OwnPace,
    Waiting,
)
from support.waiting_model import COMMIT_S, Model, Move, Plan, steady

MIN_S, MAX_S = 1.0, 3600.0
SIZES = (4, 7, 10)
BASE = digest_of(b"base")
FOREVER_S = 1e6


class Bench:
    """One node of four, with a state that the tests commit to. A quorum is three, f is one."""

    def __init__(
        self, start_round: int = 0, *, max_s: float = MAX_S, at: float = 0.0, size: int = 4
    ) -> None:
        committee = Committee(tuple(bytes([i]) * 32 for i in range(size)))
        self.waiting = Waiting(committee, Timing(gst_lt_min_s=MIN_S, gst_lt_max_s=max_s))
        closed = (ClosedRound(Round(start_round), NO_DIGEST, BASE, _references(0, 1, 2, 3), 0, 1),)
        self.state = LedgerState(Round(start_round), (), (), closed if start_round else ())
        self.waiting.set_state(self.state, at)

    def promise(self, member: int, takes_s: float, now: float, ahead: int = 1) -> bool:
        round_ = Round(self.state.round + ahead)
        return self.waiting.add_promise(NodeId(member), round_, takes_s, now)

    def deliver(self, *members: int, now: float, base: Digest = BASE) -> None:
        current = (*self.state.current, *_references(*members, base=base))
        self._show(
            LedgerState(self.state.round, current, self.state.voters, self.state.closed), now
        )

    def hold(self, *members: int, now: float) -> None:
        for member in members:
            self.waiting.add_held(NodeId(member), now)

    def vote(self, *members: int, now: float) -> None:
        voters = (*self.state.voters, *(NodeId(member) for member in members))
        self._show(
            LedgerState(self.state.round, self.state.current, voters, self.state.closed), now
        )

    def close(self, now: float) -> None:
        updates = tuple(ref for ref in self.state.current if ref.base == BASE)
        closed = ClosedRound(Round(self.state.round + 1), NO_DIGEST, BASE, updates, 0, 1)
        self._show(LedgerState(closed.round, (), (), (closed,)), now)

    def _show(self, state: LedgerState, now: float) -> None:
        self.state = state
        self.waiting.set_state(state, now)

    def first_round(self, slowest_s: float = 10.0) -> float:
        """Members 0 to 2 need a second, member 3 longer; all deliver. Returns the closing time."""
        for member in range(4):
            self.promise(member, 0.0, 0.0)
        self.deliver(0, 1, 2, now=1.0)
        self.deliver(3, now=slowest_s)
        self.close(slowest_s)
        return slowest_s


def _references(*members: int, base: Digest = BASE) -> tuple[Reference, ...]:
    return tuple(Reference(NodeId(m), NO_DIGEST, 0, base, b"", b"") for m in members)


# --- Who is expected, and for how long -------------------------------------------------------


def test_a_member_whose_own_agg_is_committed_is_not_waited_for() -> None:
    bench = Bench()
    opened = bench.first_round()
    bench.deliver(0, 1, 2, now=opened + 1.0)
    assert bench.waiting.awaited == (NodeId(3),)
    bench.vote(3, now=opened + 1.5)

    assert bench.waiting.awaited == ()
    assert bench.waiting.vote_at == opened + MIN_S


def test_no_agg_is_submitted_before_a_quorum_of_one_base_has_delivered() -> None:
    bench = Bench()
    bench.deliver(0, 1, now=1.0)
    bench.deliver(2, now=2.0, base=digest_of(b"another"))
    assert bench.waiting.vote_at is None

    bench.deliver(3, now=3.0)
    assert bench.waiting.vote_at == 3.0


def test_the_minimum_time_holds_even_if_no_member_is_awaited() -> None:
    bench = Bench()
    bench.deliver(0, 1, 2, now=0.25)

    assert bench.waiting.vote_at == MIN_S


def test_a_member_with_another_key_inherits_nothing_from_the_old_machine() -> None:
    """Whose promises were broken so often that nobody waits for it."""
    bench = Bench()
    opened = bench.first_round(slowest_s=1.0)
    for _ in range(40):
        bench.promise(3, 1000.0, opened)
        bench.deliver(0, 1, 2, now=opened + 1.0)
        opened = max(opened + 1.0, bench.waiting.vote_at or 0.0)
        bench.close(opened)
    bench.promise(3, 1000.0, opened)
    keys = tuple(bytes([i]) * 32 for i in (0, 1, 2, 9))
    bench.waiting.enter(Committee(keys))

    assert bench.waiting.vain_s(NodeId(3)) == 0.0
    assert bench.promise(3, 0.0, opened), "the new machine's first promise counts"
    bench.deliver(0, 1, 2, now=opened + 1.0)
    assert bench.waiting.deadline(NodeId(3)) == opened + 2.0


def test_an_early_promise_of_a_replaced_machine_does_not_bind_its_successor() -> None:
    """The old machine promised an hour for the next round, just before its key was replaced."""
    bench = Bench()
    closed = bench.first_round(slowest_s=1.0)
    assert bench.promise(3, 3600.0, closed, ahead=2)
    bench.waiting.enter(Committee(tuple(bytes([i]) * 32 for i in (0, 1, 2, 9))))
    bench.deliver(0, 1, 2, now=closed + 1.0)
    bench.close(closed + 2.0)

    assert bench.promise(3, 0.0, closed + 2.0), "the new machine's first promise counts"
    bench.deliver(0, 1, 2, now=closed + 3.0)
    assert bench.waiting.deadline(NodeId(3)) == closed + 4.0


def test_an_offer_of_the_last_epoch_does_not_make_its_author_look_fast_in_the_next() -> None:
    """Members train again after the boundary, so they need longer than their first offers say."""
    bench = Bench()
    for member in range(4):
        bench.promise(member, 0.0, 0.0)
    bench.hold(0, 1, 2, now=0.5)
    bench.waiting.enter(Committee(tuple(bytes([i]) * 32 for i in range(4))))
    bench.deliver(0, 1, 2, now=2.0)

    assert bench.waiting.vote_at == LONGEST_FIRST * 2.0


def test_in_the_first_round_only_members_that_announce_themselves_are_awaited() -> None:
    bench = Bench()
    for member in range(3):
        bench.promise(member, 0.0, 0.0)
    bench.deliver(0, 1, 2, now=2.0)
    assert bench.waiting.vote_at == 2.0

    bench.promise(3, 0.0, 2.0)
    assert bench.waiting.vote_at == 2.0 + LONGEST_FIRST * 2.0


def test_the_first_round_begins_when_a_quorum_has_announced_itself() -> None:
    """Organisations start their nodes hours apart; that says nothing about their pace."""
    bench = Bench()
    for member, start in ((0, 0.0), (3, 10.0), (1, 7200.0)):
        bench.promise(member, 0.0, start)
    bench.promise(2, 0.0, 7200.5)
    bench.deliver(0, 1, 2, now=7202.0)

    assert bench.waiting.vote_at == 7200.0 + LONGEST_FIRST * 2.0


def test_an_announcement_after_the_first_update_does_not_restart_the_round() -> None:
    """Other announcements were lost; a late one must not make the quorum look fast."""
    bench = Bench()
    bench.promise(0, 0.0, 0.0)
    bench.deliver(0, now=2.0)
    bench.promise(3, 0.0, 3.0)
    bench.deliver(1, 2, now=4.0)

    assert bench.waiting.vote_at == 3.0 + LONGEST_FIRST * 4.0


def test_the_first_round_does_not_multiply_the_time_until_a_late_member_starts() -> None:
    """Member 0 only announces itself, so the quorum needs member 3, which starts at 30 s."""
    bench = Bench()
    for member in range(3):
        bench.promise(member, 0.0, 0.0)
    bench.deliver(1, 2, now=1.0)
    bench.promise(3, 0.0, 30.0)
    bench.deliver(3, now=31.5)

    assert bench.waiting.vote_at == LONGEST_FIRST * 1.5


def test_an_update_that_waits_for_enough_members_to_commit_it_does_not_look_slow() -> None:
    """Member 0 announces itself and helps to commit nothing until member 3 has started."""
    bench = Bench()
    for member in range(3):
        bench.promise(member, 0.0, 0.0)
    bench.hold(1, 2, now=1.0)
    bench.promise(3, 0.0, 30.0)
    bench.hold(3, now=31.5)
    bench.deliver(1, 2, 3, now=32.0)

    assert bench.waiting.vote_at == LONGEST_FIRST * 1.5


def test_a_byzantine_member_that_delivers_late_does_not_keep_the_first_round_open_for_another() -> (
    None
):
    """Of seven, members 0 and 1 are Byzantine. Member 0 delivers just before the late member 6."""
    bench = Bench(size=7)
    for member in range(6):
        bench.promise(member, FOREVER_S if member < 2 else 0.0, 0.0)
    bench.deliver(2, 3, 4, 5, now=1.5)
    bench.promise(6, 0.0, 30.0)
    bench.deliver(0, now=31.0)

    assert bench.waiting.deadline(NodeId(1)) == LONGEST_FIRST * 1.5
    assert bench.waiting.vote_at == 30.0 + LONGEST_FIRST * 1.5, "for the late member"


def test_members_that_announce_themselves_one_after_the_other_cost_as_much_as_one() -> None:
    bench = Bench(size=10)
    for member in range(7):
        bench.promise(member, 0.0, 0.0)
    bench.deliver(*range(7), now=1.0)
    for member, now in ((7, 0.5), (8, 60.0), (9, 64.0)):
        bench.promise(member, 0.0, now)
        assert bench.waiting.deadline(NodeId(member)) <= 1.0 + LONGEST_FIRST * 1.0


def test_a_member_that_trained_before_it_announced_itself_states_how_long_it_took() -> None:
    """It was up early and could sign nothing until a quorum was. Its update came at once; that
    does not make the others look slow."""
    bench = Bench(size=7)
    for member in range(4):
        bench.promise(member, 30.0, 0.0)
    bench.promise(4, 0.0, 0.0)
    bench.promise(5, 0.0, 0.0)
    bench.deliver(0, 1, 2, 3, now=0.5)
    bench.deliver(4, now=30.0)

    assert bench.waiting.vote_at == LONGEST_FIRST * 30.5


def test_the_time_until_a_late_member_started_is_no_part_of_later_budgets() -> None:
    bench = Bench()
    for member in range(3):
        bench.promise(member, 0.0, 0.0)
    bench.hold(1, 2, now=1.0)
    bench.promise(3, 0.0, 30.0)
    bench.hold(3, now=31.0)
    bench.deliver(1, 2, 3, now=31.5)
    bench.close(100.0)
    bench.promise(0, 20.0, now=100.0)
    bench.deliver(1, 2, 3, now=101.0)
    budget_s = (VAIN_ROUNDS + VAIN_SHARE) * 1.0

    assert bench.waiting.vote_at is not None
    assert bench.waiting.vote_at <= 101.0 + budget_s


def test_a_member_of_the_last_round_gets_twice_its_slowest_time() -> None:
    bench = Bench()
    opened_at = bench.first_round(slowest_s=10.0)
    bench.deliver(0, 1, 2, now=opened_at + 1.0)

    assert bench.waiting.vote_at == opened_at + GRANT * 10.0
    bench.deliver(3, now=opened_at + 11.0)
    assert bench.waiting.vote_at == opened_at + 1.0, "at once: no other member is awaited"


def test_a_member_as_fast_as_the_others_gets_twice_their_time() -> None:
    bench = Bench()
    opened_at = bench.first_round(slowest_s=1.0)
    bench.deliver(0, 1, 2, now=opened_at + 4.0)

    assert bench.waiting.vote_at == opened_at + 8.0


def test_a_silent_member_that_was_left_out_is_not_awaited() -> None:
    bench = Bench()
    bench.deliver(0, 1, 2, now=2.0)
    bench.close(2.0)
    bench.deliver(0, 1, 2, now=4.0)

    assert bench.waiting.vote_at == 4.0


def test_a_promise_counts_from_its_arrival() -> None:
    bench = Bench()
    bench.deliver(0, 1, 2, now=4.0)
    bench.close(4.0)
    bench.promise(3, 5.0, now=5.0)
    bench.deliver(0, 1, 2, now=8.0)

    assert bench.waiting.vote_at == 5.0 + GRANT * 5.0


def test_only_the_first_promise_of_a_member_for_the_open_round_counts() -> None:
    bench = Bench()
    bench.deliver(0, 1, 2, now=4.0)
    bench.close(4.0)
    assert bench.promise(3, 5.0, now=4.0)
    assert not bench.promise(3, 50.0, now=4.5)
    assert not bench.promise(3, 50.0, now=4.5, ahead=0), "a closed round"
    assert not bench.promise(3, 50.0, now=4.5, ahead=3), "a round far ahead"
    bench.deliver(0, 1, 2, now=8.0)

    assert bench.waiting.vote_at == 4.0 + GRANT * 5.0


def test_an_early_promise_is_kept_until_its_round_opens_here() -> None:
    bench = Bench()
    bench.deliver(0, 1, 2, now=4.0)
    assert bench.promise(3, 5.0, now=4.0, ahead=2)
    assert not bench.promise(3, 50.0, now=4.0, ahead=2)
    bench.close(4.5)
    bench.deliver(0, 1, 2, now=8.5)

    assert bench.waiting.vote_at == 4.5 + GRANT * 5.0


def test_a_member_may_promise_early_for_one_round_after_the_other() -> None:
    bench = Bench()
    for _ in range(3):
        bench.deliver(0, 1, 2, now=4.0)
        assert bench.promise(3, 5.0, now=4.0, ahead=2)
        bench.close(4.5)


@pytest.mark.parametrize(("max_s", "longest"), [(MAX_S, LONGEST * 1.0), (30.0, 30.0)])
def test_no_wait_exceeds_the_bounds(max_s: float, longest: float) -> None:
    bench = Bench(max_s=max_s)
    opened_at = bench.first_round(slowest_s=29.0)
    bench.waiting._accounts[NodeId(3)].times.append(1000.0)
    bench.deliver(0, 1, 2, now=opened_at + 1.0)

    assert bench.waiting.vote_at == opened_at + longest


# --- Accounts --------------------------------------------------------------------------------


def test_only_futile_waits_are_charged_to_the_member_and_the_common_budget() -> None:
    bench = Bench()
    opened_at = bench.first_round(slowest_s=10.0)
    assert bench.waiting.vain_s(NodeId(3)) == bench.waiting._vain_s == 0.0

    bench.deliver(0, 1, 2, now=opened_at + 1.0)
    bench.waiting.record_vote(opened_at + 20.0)
    bench.close(opened_at + 20.4)
    assert bench.waiting.vain_s(NodeId(3)) == bench.waiting._vain_s == 19.0
    seen = bench.waiting.seen
    assert seen is not None
    assert [late.member for late in seen.late] == [3]
    assert (seen.whole, seen.lasted_s, seen.deadline_s) == (True, 20.4, 20.0)
    assert seen.arrivals == tuple((NodeId(member), 1.0) for member in range(3))

    bench.deliver(0, 1, 2, 3, now=opened_at + 22.0)
    bench.close(opened_at + 22.0)
    assert bench.waiting.vain_s(NodeId(3)) == bench.waiting._vain_s == 19.0
    assert bench.waiting.seen is not None
    assert bench.waiting.seen.late == ()


def test_the_deadline_of_a_member_that_came_in_time_is_remembered() -> None:
    """The round would have closed without it at 20 s."""
    bench = Bench()
    opened_at = bench.first_round(slowest_s=10.0)
    bench.deliver(0, 1, 2, now=opened_at + 1.0)
    bench.deliver(3, now=opened_at + 12.0)
    bench.close(opened_at + 12.5)

    seen = bench.waiting.seen
    assert seen is not None
    assert (seen.opened_at, seen.deadline_s) == (opened_at, 20.0)
    assert dict(seen.arrivals) == {0: 1.0, 1: 1.0, 2: 1.0, 3: 12.0}


def test_a_round_in_which_nobody_was_awaited_has_no_deadline() -> None:
    bench = Bench()
    opened_at = bench.first_round()
    bench.deliver(0, 1, 2, 3, now=opened_at + 1.0)
    bench.close(opened_at + 1.5)

    assert bench.waiting.seen is not None
    assert bench.waiting.seen.deadline_s is None


def test_a_round_that_was_open_at_the_start_is_not_seen_whole() -> None:
    bench = Bench(start_round=3, at=100.0)
    bench.deliver(0, 1, 2, now=101.0)
    bench.close(102.0)

    assert bench.waiting.seen is not None
    assert not bench.waiting.seen.whole


def test_a_round_that_this_node_first_sees_with_updates_in_it_is_not_seen_whole() -> None:
    """The last round closed in the same step, but nobody knows when this one opened."""
    bench = Bench()
    bench.deliver(0, 1, 2, 3, now=1.0)
    closed = ClosedRound(Round(1), NO_DIGEST, BASE, _references(0, 1, 2, 3), 0, 1)
    bench._show(LedgerState(Round(1), _references(0, 1), (), (closed,)), 10.0)
    bench.deliver(2, 3, now=10.1)
    bench.close(10.2)

    assert bench.waiting.seen is not None
    assert not bench.waiting.seen.whole


def test_nothing_is_seen_of_rounds_that_this_node_has_skipped() -> None:
    bench = Bench()
    bench.first_round()
    far = ClosedRound(Round(5), NO_DIGEST, BASE, _references(0, 1, 2), 0, 1)
    bench.waiting.set_state(LedgerState(Round(5), (), (), (far,)), 50.0)

    assert bench.waiting.seen is None


def test_a_node_that_voted_early_charges_what_the_others_waited() -> None:
    """Otherwise liars would drain the budgets of the nodes one by one."""
    bench = Bench()
    opened_at = bench.first_round(slowest_s=10.0)
    bench.deliver(0, 1, 2, now=opened_at + 1.0)
    bench.waiting.record_vote(opened_at + 1.0)
    bench.close(opened_at + 20.0)

    assert bench.waiting.vain_s(NodeId(3)) == 20.0 - 1.0 - MIN_S


def test_two_members_that_are_late_together_cost_the_common_budget_one_wait() -> None:
    bench = Bench(size=7)
    for member in range(7):
        bench.promise(member, 0.0, 0.0)
    bench.deliver(*range(7), now=10.0)
    bench.close(10.0)
    bench.deliver(*range(5), now=11.0)
    bench.waiting.record_vote(14.0)
    bench.close(14.0)

    assert [bench.waiting.vain_s(NodeId(late)) for late in (5, 6)] == [3.0, 3.0]
    assert bench.waiting._vain_s == 3.0


def test_the_useful_time_of_a_round_is_at_most_the_longest_wait() -> None:
    """A partition may keep a round open for days; that earns no liar a budget."""
    bench = Bench(max_s=5.0)
    bench.first_round(slowest_s=10.0)

    assert bench.waiting._useful_s == 5.0
    assert list(bench.waiting._recent) == [5.0]


@pytest.mark.parametrize("spare", [-0.1, 0.1])
def test_a_node_does_not_wait_for_less_than_half_of_what_a_member_needs(spare: float) -> None:
    bench = Bench()
    opened_at = bench.first_round(slowest_s=10.0)
    credit = VAIN_ROUNDS * 10.0 + VAIN_SHARE * 10.0
    needed = GRANT * 10.0 - 1.0
    bench.waiting._vain_s = FOREVER_S
    bench.waiting._accounts[NodeId(3)].vain_s = credit + GRANT * 10.0 - needed / 2 - spare
    bench.deliver(0, 1, 2, now=opened_at + 1.0)

    until = opened_at + 1.0 + (needed / 2 + spare if spare > 0 else 0.0)
    assert bench.waiting.vote_at == pytest.approx(until)


@pytest.mark.parametrize("account", ["common", "own"])
def test_either_budget_suffices_for_a_wait(account: str) -> None:
    bench = Bench()
    opened_at = bench.first_round(slowest_s=10.0)
    if account == "common":
        bench.waiting._accounts[NodeId(3)].vain_s = FOREVER_S
    else:
        bench.waiting._vain_s = FOREVER_S
    bench.deliver(0, 1, 2, now=opened_at + 1.0)

    assert bench.waiting.vote_at == opened_at + GRANT * 10.0


def test_the_first_round_charges_no_member() -> None:
    bench = Bench()
    for member in range(4):
        bench.promise(member, 0.0, 0.0)
    bench.deliver(0, 1, 2, now=1.0)
    bench.waiting.record_vote(64.0)
    bench.close(64.4)

    assert bench.waiting.vain_s(NodeId(3)) == 0.0


def test_an_update_with_another_base_ends_the_wait_and_is_charged() -> None:
    bench = Bench()
    opened_at = bench.first_round(slowest_s=10.0)
    bench.deliver(0, 1, 2, now=opened_at + 1.0)
    bench.deliver(3, now=opened_at + 15.0, base=digest_of(b"another"))
    assert bench.waiting.vote_at == opened_at + 1.0

    bench.waiting.record_vote(opened_at + 15.0)
    bench.close(opened_at + 15.4)
    assert bench.waiting.vain_s(NodeId(3)) == 14.0


# --- Restarts, memory, clocks ----------------------------------------------------------------


def test_a_restarted_node_submits_its_agg_once_one_honest_member_has() -> None:
    """It knows no member's pace, and f AGGs may all be liars'."""
    bench = Bench(start_round=7)
    bench.promise(3, 0.0, now=0.0)
    bench.deliver(0, 1, 2, now=5.0)
    bench.vote(2, now=5.0)
    assert bench.waiting.vote_at == LONGEST * 5.0

    bench.vote(1, now=6.0)
    assert bench.waiting.vote_at == 5.0


def test_a_node_that_has_just_started_expects_only_members_that_announce_themselves() -> None:
    """All may have restarted, and a member of the last round may be gone for good."""
    bench = Bench(start_round=7)
    bench.deliver(0, 1, 2, now=5.0)
    assert bench.waiting.vote_at == 5.0

    bench.promise(3, 0.0, now=5.1)
    assert bench.waiting.vote_at == 5.0 + LONGEST * 5.0


def test_a_promise_gains_a_member_of_the_last_round_no_time() -> None:
    """It repeats its promise to peers that reconnect, whenever that is."""
    bench = Bench()
    opened_at = bench.first_round(slowest_s=10.0)
    bench.promise(3, 10.0, now=opened_at + 9.0)
    bench.deliver(0, 1, 2, now=opened_at + 1.0)

    assert bench.waiting.vote_at == opened_at + GRANT * 10.0


def test_a_node_that_has_seen_a_whole_round_does_not_follow_others() -> None:
    bench = Bench()
    opened_at = bench.first_round(slowest_s=10.0)
    bench.deliver(0, 1, 2, now=opened_at + 1.0)
    bench.vote(0, 1, now=opened_at + 1.0)

    assert bench.waiting.vote_at == opened_at + GRANT * 10.0


def test_times_of_a_round_not_seen_from_its_opening_are_ignored() -> None:
    bench = Bench()
    bench.first_round(slowest_s=10.0)
    times = list(bench.waiting._accounts[NodeId(3)].times)
    # Several rounds at once, as after a partition.
    closed = ClosedRound(Round(9), NO_DIGEST, BASE, _references(0, 1, 2, 3), 0, 1)
    bench._show(LedgerState(Round(9), _references(0, 1), (), (closed,)), 11.0)
    bench.deliver(2, 3, now=11.1)
    bench.close(11.1)

    assert list(bench.waiting._accounts[NodeId(3)].times) == times


def test_memory_is_constant_over_ten_thousand_rounds() -> None:
    bench = Bench()
    now, sizes = 0.0, []
    for round_ in range(10_000):
        for member in range(4):
            bench.promise(member, 1.0, now)
            bench.promise(member, 1.0, now, ahead=2)
        bench.deliver(0, 1, 2, now=now + 1.0)
        if round_ % 3:
            bench.deliver(3, now=now + 1.5)
        now += 2.0
        bench.close(now)
        sizes.append(_size(bench.waiting))

    assert max(sizes) == max(sizes[: 2 * TIMES_KEPT])


def _size(waiting: Waiting) -> int:
    accounts = sum(len(account.times) for account in waiting._accounts.values())
    return accounts + len(waiting._recent) + len(waiting._early)


@pytest.mark.parametrize("epoch", [-1e6, 0.0, 1e6])
def test_only_differences_of_the_clock_matter(epoch: float) -> None:
    bench = Bench(at=epoch)
    for member in range(4):
        bench.promise(member, 0.0, epoch)
    bench.deliver(0, 1, 2, now=epoch + 1.0)
    bench.deliver(3, now=epoch + 10.0)
    bench.close(epoch + 10.0)
    bench.deliver(0, 1, 2, now=epoch + 11.0)

    vote_at = bench.waiting.vote_at
    assert vote_at is not None
    assert vote_at - epoch == pytest.approx(30.0)


# --- A node's own pace -----------------------------------------------------------------------


def test_a_node_states_its_slowest_recent_training_including_late_ones() -> None:
    own = OwnPace()
    assert own.statement_s(0.0) == 0.0
    own.start(0.0)
    own.finish(50.0)
    own.start(50.0)
    own.finish(60.0)

    assert own.statement_s(100.0) == 50.0


def test_a_node_still_training_for_a_closed_round_adds_the_remaining_time() -> None:
    own = OwnPace()
    own.start(0.0)
    own.finish(50.0)
    own.start(100.0)

    assert own.statement_s(120.0) == 50.0 + 30.0
    assert own.statement_s(170.0) == 50.0


def test_a_node_with_an_overdue_training_sends_no_pace_until_it_ends() -> None:
    own = OwnPace()
    own.start(0.0)
    own.finish(50.0)
    own.start(100.0)
    assert own.statement_s(100.0 + OVERDUE * 50.0 + 1.0) is None

    own.finish(500.0)
    assert own.statement_s(500.0) == 400.0


# --- The goals, over many rounds -------------------------------------------------------------


@pytest.mark.parametrize("nodes", SIZES)
@pytest.mark.parametrize("factor", [1.2, 5.0, 50.0])
@pytest.mark.parametrize(("sigma", "least"), [(0.1, 0.9), (0.3, 0.75)])
def test_a_slow_member_takes_part_in_the_rounds(
    nodes: int, factor: float, sigma: float, least: float
) -> None:
    slow = nodes - 1
    for seed in range(3):
        work = {slow: steady(factor, sigma)}
        result = Model(nodes, rounds=40, seed=seed, work=work).run()
        assert result.share(slow) >= least


def test_a_member_50_times_slower_takes_part_from_round_1_without_a_promise() -> None:
    result = Model(4, rounds=21, work={3: steady(50.0)}).run()

    assert all(NodeId(3) in authors for authors in result.rounds)
    assert result.paces == 4, "each announces itself once, in the first round"


@pytest.mark.parametrize("nodes", SIZES)
def test_equal_members_all_take_part_and_wait_only_for_the_slowest(nodes: int) -> None:
    result = Model(nodes, rounds=100).run()

    assert all(len(authors) == nodes for authors in result.rounds)
    assert max(result.lasted_s) < 1.5 + COMMIT_S, "a training with three sigma of noise, no AGG"


def silent(_round: int, _model: Model) -> Move:
    return Move()


def claiming(_round: int, _model: Model) -> Move:
    return Move(promises_s=FOREVER_S, votes_s=0.0)


def claiming_a_little(_round: int, _model: Model) -> Move:
    return Move(promises_s=0.0)


def alternating(round_: int, _model: Model) -> Move:
    return Move(delivers_s=1.0 if round_ % 2 else None, promises_s=FOREVER_S)


def silent_then_claiming(round_: int, _model: Model) -> Move:
    return Move(promises_s=FOREVER_S) if round_ > 20 else Move()


def staggered(number: int, liars: int) -> Plan:
    def plan(round_: int, _model: Model) -> Move:
        fails = round_ % (liars + 1) == number
        return Move(delivers_s=None if fails else 1.0, promises_s=5.0)

    return plan


LIARS = {
    "claiming": lambda _number, _liars: claiming,
    "claiming a little": lambda _number, _liars: claiming_a_little,
    "alternating": lambda _number, _liars: alternating,
    "silent, then claiming": lambda _number, _liars: silent_then_claiming,
    "staggered": staggered,
}
# Rounds that are long compared with a training of half a second.
LONG_TIMING = Timing(gst_lt_min_s=4.0, gst_lt_max_s=3600.0)
# As short as they can be: nothing hides the waiting, and one promise of 50 rounds' length is
# accepted in the first round. Over 40 rounds that alone is more than half of them.
SHORT_TIMING = Timing(gst_lt_min_s=1.0, gst_lt_max_s=3600.0)


def time_of(nodes: int, rounds: int, plans: list[Plan], timing: Timing) -> tuple[float, float]:
    """The time of the whole run, and of its first round."""
    training_s = 0.5 if timing is LONG_TIMING else 1.0
    work = {member: steady(training_s) for member in range(nodes)}
    result = Model(
        nodes, rounds=rounds, work=work, liars=dict(enumerate(plans)), timing=timing
    ).run()
    return result.total_s, result.lasted_s[0]


@cache
def silent_time(nodes: int, rounds: int, timing: Timing) -> tuple[float, float]:
    return time_of(nodes, rounds, [silent] * ((nodes - 1) // 3), timing)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", SIZES)
@pytest.mark.parametrize("kind", LIARS)
def test_broken_promises_cost_at_most_half_as_much_again_as_silence(nodes: int, kind: str) -> None:
    liars = (nodes - 1) // 3
    plans = [LIARS[kind](number, liars) for number in range(liars)]
    for rounds, timing in ((40, LONG_TIMING), (400, LONG_TIMING), (400, SHORT_TIMING)):
        lied, _ = time_of(nodes, rounds, plans, timing)
        quiet, _ = silent_time(nodes, rounds, timing)
        assert lied <= 1.5 * quiet


@pytest.mark.parametrize("nodes", SIZES)
@pytest.mark.parametrize("kind", LIARS)
def test_the_cost_of_broken_promises_over_40_shortest_rounds_is_bounded(
    nodes: int, kind: str
) -> None:
    """The first promise, then half of the useful time, and 32 rounds for early bad luck."""
    liars = (nodes - 1) // 3
    plans = [LIARS[kind](number, liars) for number in range(liars)]
    lied, first = time_of(nodes, 40, plans, SHORT_TIMING)
    quiet, quiet_first = silent_time(nodes, 40, SHORT_TIMING)

    longest_quorum_s = 2.0
    assert first <= LONGEST_FIRST * longest_quorum_s
    assert lied - first <= (1.5 * quiet - quiet_first) + 2 * VAIN_ROUNDS * longest_quorum_s


@pytest.mark.parametrize("nodes", SIZES)
def test_silent_members_cost_no_waiting(nodes: int) -> None:
    quiet, _ = silent_time(nodes, 40, SHORT_TIMING)

    training_and_two_commits = 1.3 + 2 * COMMIT_S
    assert quiet / 40 < training_and_two_commits


@pytest.mark.parametrize("nodes", SIZES)
@pytest.mark.parametrize("factor", [1.0, 20.0])
def test_a_returning_member_takes_part_again_within_three_rounds(nodes: int, factor: float) -> None:
    back = 15
    result = Model(nodes, rounds=30, work={1: steady(factor)}, away={1: range(5, back)}).run()

    assert any(NodeId(1) in authors for authors in result.rounds[back - 1 : back + 2])
    gone = result.lasted_s[5 : back - 1]
    assert max(gone) < 3.0, "its first missing round costs one grant, the others none"
    assert result.share(1, start=back + 3) >= 0.9


def test_a_noisy_slow_member_takes_part_although_liars_drain_the_common_budget() -> None:
    """They break their promise in every other round, and vote early in the rest to exclude it."""

    def draining(round_: int, _model: Model) -> Move:
        if round_ % 2:
            return Move(delivers_s=1.0, votes_s=0.0)
        return Move(promises_s=FOREVER_S, votes_s=0.0)

    for seed in range(3):
        work = {9: steady(20.0, 0.5), 8: steady(20.0, 0.5)}
        liars = dict.fromkeys(range(3), draining)
        result = Model(10, rounds=120, seed=seed, work=work, liars=liars).run()
        assert min(result.share(8), result.share(9)) >= 0.75


def test_a_restarted_node_does_not_hold_up_its_first_round() -> None:
    liars: dict[int, Plan] = {0: silent}
    calm = Model(4, rounds=20, liars=liars).run()
    restarted = Model(4, rounds=20, liars=liars, restarts={10: 2}).run()

    assert restarted.lasted_s[9] < max(calm.lasted_s) + COMMIT_S + 0.5


def test_rounds_never_stay_open_beyond_the_bound_and_do_not_grow() -> None:
    """A promise-breaker's rounds get no longer with time."""
    result = Model(4, rounds=200, liars={0: claiming}).run()

    assert max(result.lasted_s) <= LONGEST * 2.0
    assert sum(result.lasted_s[100:]) <= 1.5 * 100 * (1.3 + 2 * COMMIT_S)
