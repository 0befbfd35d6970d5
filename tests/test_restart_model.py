"""The exhaustive model of restarts and timeouts: a part of it, and faults that it must detect.

`make model` runs it to its full depth.
"""

from typing import Any

import pytest

from defl.committee import Rules
from defl.consensus.replica import Replica
from defl.ids import NodeId
from defl.messages import Timeout
from defl.output import Durable
from defl.sim.explorer import FAIR_ROUNDS_MAX, Explorer
from defl.sim.situations import LIVING, SILENT, leader

BOTH = pytest.mark.parametrize("rules", list(Rules))


class ForgetsItsTimeout(Replica[bytes]):
    """After a restart it sends its timeout again but does not count it (version 0.1)."""

    def __init__(self, federation: Any, me: NodeId, *rest: Any) -> None:
        durable = next(item for item in rest if isinstance(item, Durable))
        self._earlier = durable.record.last_timeout if durable.record is not None else None
        super().__init__(federation, me, *rest)
        for timeouts in self._tally._timeouts.values():
            timeouts.pop(me, None)

    def _count_timeout(self, timeout: Timeout) -> None:
        if timeout != self._earlier:
            super()._count_timeout(timeout)


class VotesAgain(Replica[bytes]):
    """Votes for every block that it receives."""

    def __init__(self, federation: Any, me: NodeId, *rest: Any) -> None:
        super().__init__(federation, me, *rest)
        self._safety.may_vote = lambda _view: True  # type: ignore[method-assign]


@BOTH
def test_a_fair_schedule_commits_from_every_state_of_the_first_view(rules: Rules) -> None:
    """Six events are enough for the whole quorum to time out and restart."""
    result = Explorer(rules).explore(6, starts=1)

    assert not result.violations, result.violations[0]
    assert result.states > 1500
    assert 0 < result.fair_rounds_max < FAIR_ROUNDS_MAX


@BOTH
def test_a_fair_schedule_commits_from_every_state_of_a_growing_log(
    rules: Rules,
) -> None:
    result = Explorer(rules).explore(3)

    assert not result.violations, result.violations[0]
    assert result.states > 2500


@BOTH
def test_long_random_walks_reach_no_dead_end(rules: Rules) -> None:
    result = Explorer(rules).wander(8, 40, seed=2)

    assert not result.violations, result.violations[0]
    assert result.events > 250


@BOTH
def test_the_model_detects_a_quorum_that_restarted_and_forgot_its_own_timeouts(
    rules: Rules,
) -> None:
    result = Explorer(rules, ForgetsItsTimeout).explore(6, starts=1)

    lines = result.violations[0].splitlines()
    assert lines[0] == "a fair schedule commits nothing from here"
    assert sum("timer" in line for line in lines) == len(LIVING)
    assert sum("starts again" in line for line in lines) == len(LIVING)


def test_two_restarts_leave_one_member_that_counts_all_timeouts() -> None:
    result = Explorer(Rules.HOTSTUFF, ForgetsItsTimeout).explore(6, starts=1, restarts=2)

    assert not result.violations


def test_the_model_detects_a_member_that_votes_twice() -> None:
    result = Explorer(Rules.JOLTEON, VotesAgain).wander(40, 30, seed=4)

    assert any("contradicts itself" in violation for violation in result.violations)


def test_the_silent_member_leads_first_and_then_every_fourth_view() -> None:
    assert [leader(view) for view in range(1, 6)] == [SILENT, *LIVING, SILENT]


def test_a_replayed_replica_equals_the_original() -> None:
    """States are identified by fingerprint, so the same events must give the same fingerprint."""
    model = Explorer(Rules.HOTSTUFF)
    model.explore(4, starts=2)

    for member in model.members:
        for number, situation in enumerate(member.situations):
            replica = member.replayed(number)
            assert member.number_of(replica, situation.now, situation.durable) == number
