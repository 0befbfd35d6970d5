"""Liveness: a federation makes progress under every fault that it must survive.

Whole participants on virtual time. The tests assert progress, not a mechanism.
"""

import pytest

from defl.committee import Rules
from defl.consensus import tree
from defl.duty import Report
from defl.ids import NodeId, View
from defl.messages import Slot, Vote, slot_of
from defl.sim.byzantine import KINDS
from defl.sim.cluster import Cluster
from defl.sim.conditions import Conditions, Partition
from defl.sim.scenario import cluster_of
from defl.sim.sim_node import SimNode

BOTH_RULES = pytest.mark.parametrize("rules", list(Rules))


def alone(members: int, start_s: float, end_s: float) -> Partition:
    """Cuts every member off from all others."""
    return Partition(tuple(frozenset({NodeId(i)}) for i in range(members)), start_s, end_s)


def assert_all_rounds_close(cluster: Cluster) -> None:
    cluster.run()
    assert cluster.conclude() == []
    assert cluster.rounds_closed == cluster.federation.rounds


@BOTH_RULES
@pytest.mark.parametrize("members", [4, 5, 7])
def test_a_bare_quorum_that_restarts_in_a_view_it_gave_up_makes_progress(
    members: int, rules: Rules
) -> None:
    faults = (members - 1) // 3
    silent = {NodeId(i): KINDS["silent"] for i in range(1, 1 + faults)}
    conditions = Conditions(partitions=(alone(members, 6, 30),), all_crash_at_s=(25,))
    assert_all_rounds_close(
        cluster_of(members, rounds=4, rules=rules, conditions=conditions, byzantine=silent)
    )


@BOTH_RULES
def test_no_transaction_is_put_into_two_blocks_of_the_log(rules: Rules) -> None:
    """A leader knows what the uncommitted blocks below its own hold; a copy would cost everybody
    its bytes and its signatures."""
    cluster = cluster_of(4, rounds=3, rules=rules)
    slots: list[Slot] = []

    def watch(node: SimNode, report: Report) -> None:
        if node.id == 0:
            blocks = [committed.block for committed in report.committed]
            slots.extend(slot_of(tx) for block in blocks for tx in block.transactions)

    cluster.watchers.append(watch)
    assert_all_rounds_close(cluster)

    assert len(slots) >= 3 * 4
    assert len(set(slots)) == len(slots)


@BOTH_RULES
def test_a_full_block_tree_does_not_prevent_progress(
    rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "BLOCKS_MAX", 16)
    cluster = cluster_of(4, rounds=2, rules=rules)
    cluster.traffic.censor = lambda _source, _target, message: isinstance(message, Vote)
    views = 0
    while views < 3 * tree.BLOCKS_MAX:
        cluster.step()
        views = min(node.behaviour.participant.replica.view for node in cluster.nodes)
    cluster.crash(NodeId(0), downtime_s=1.0)  # the disk holds every block it voted for
    cluster.traffic.censor = None

    assert_all_rounds_close(cluster)
    for node in cluster.nodes:
        assert node.behaviour.participant.replica.stored["blocks"] < tree.BLOCKS_MAX


@BOTH_RULES
def test_the_next_commit_drops_blocks_of_failed_views(rules: Rules) -> None:
    cluster = cluster_of(4, rounds=2, rules=rules)
    cluster.traffic.censor = lambda _source, _target, message: isinstance(message, Vote)
    replicas = [node.behaviour.participant.replica for node in cluster.nodes]
    while min(replica.view for replica in replicas) < 30:
        cluster.step()
    cluster.traffic.censor = None
    cluster.run(until=lambda: min(replica.head.height for replica in replicas) > 0)

    assert max(replica.stored["blocks"] for replica in replicas) < 12


@BOTH_RULES
def test_a_network_slower_than_the_first_period_commits_eventually(rules: Rules) -> None:
    """A view takes two messages of two seconds and more; the first period is one second."""
    conditions = Conditions(latency_s=2.0, jitter_s=0.2)
    assert_all_rounds_close(cluster_of(4, rounds=2, rules=rules, conditions=conditions))


def test_an_isolated_leader_gives_its_own_view_the_full_period() -> None:
    """It has not received its own messages either, but must not count itself as failed."""
    cluster = cluster_of(4, rounds=1)
    cluster.run(until=lambda: cluster.rounds_closed == 1)
    replica = cluster.nodes[0].behaviour.participant.replica
    leads = next(v for v in range(replica.view, 99) if replica._leader(v) == replica._me)
    replica._enter(View(leads))

    assert replica._pace.period(replica._me) >= cluster.federation.timing.view_base_s
