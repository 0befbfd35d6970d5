"""It never halts: scenarios in which every fault is one that the federation promises to survive,
and the goal is progress, not a mechanism. Whole participants, virtual time."""

import pytest

from defl.committee import Rules
from defl.ids import NodeId
from defl.sim.byzantine import KINDS
from defl.sim.cluster import Cluster
from defl.sim.conditions import Conditions, Partition
from defl.sim.scenario import cluster_of

BOTH_RULES = pytest.mark.parametrize("rules", list(Rules))


def alone(members: int, start_s: float, end_s: float) -> Partition:
    """Nobody hears anybody."""
    return Partition(tuple(frozenset({NodeId(i)}) for i in range(members)), start_s, end_s)


def assert_all_rounds_close(cluster: Cluster) -> None:
    cluster.run()
    assert cluster.conclude() == []
    assert cluster.rounds_closed == cluster.federation.rounds


@BOTH_RULES
@pytest.mark.parametrize("members", [4, 5, 7])
def test_exactly_a_quorum_is_alive_and_all_of_it_restarts_in_a_view_it_gave_up(
    members: int, rules: Rules
) -> None:
    faults = (members - 1) // 3
    silent = {NodeId(i): KINDS["silent"] for i in range(1, 1 + faults)}
    conditions = Conditions(partitions=(alone(members, 6, 30),), all_crash_at_s=(25,))
    assert_all_rounds_close(
        cluster_of(members, rounds=4, rules=rules, conditions=conditions, byzantine=silent)
    )
