"""Catching up: which peers a replica asks, what it accepts, and what an idle log must prove."""

import pytest
from msgspec.structs import replace

from defl.committee import Rules
from defl.consensus.answers import Answers
from defl.consensus.replica import Replica
from defl.consensus.sync import Sync
from defl.fields import is_in
from defl.ids import Digest, NodeId, View, digest_of
from defl.ledger import Ledger, LedgerState
from defl.messages import BlockRequest, Certificates, Snapshot, Status
from defl.output import Durable
from defl.participant import Participant
from defl.sim.cluster import Cluster
from defl.sim.scenario import cluster_of
from support.builders import Small, name

BOTH_RULES = pytest.mark.parametrize("rules", list(Rules))


def participant(cluster: Cluster, member: int) -> Participant:
    return cluster.nodes[member].behaviour.participant


def snapshot_of(cluster: Cluster, member: int) -> Snapshot:
    snapshot = cluster.nodes[member].disk.snapshot
    assert snapshot is not None
    return snapshot


def newcomer_of(cluster: Cluster) -> Replica[LedgerState]:
    """Return the replica of member 3 as it starts, before the cluster has run."""
    disk = cluster.nodes[3].disk.recovered()
    return Participant(cluster.federation, NodeId(3), cluster.signers[3], disk).replica


@BOTH_RULES
def test_a_genuine_older_snapshot_rolls_nothing_back(rules: Rules) -> None:
    cluster = cluster_of(4, rounds=4, rules=rules)
    cluster.run(until=lambda: cluster.rounds_closed == 1)
    old = snapshot_of(cluster, 0)
    cluster.run(until=lambda: cluster.rounds_closed == 3)
    replica = participant(cluster, 0).replica
    head, state = replica.head, replica.state
    replica.receive(NodeId(1), old, cluster.now)

    assert replica.head == head
    assert replica.state == state
    assert replica.take().snapshot is None


@BOTH_RULES
def test_the_qc_of_a_received_snapshot_moves_the_view(rules: Rules) -> None:
    """It proves the state and that its view is over: no second certificate is needed."""
    cluster = cluster_of(4, rounds=2, rules=rules)
    newcomer = newcomer_of(cluster)
    cluster.run()
    snapshot = snapshot_of(cluster, 0)
    newcomer.receive(NodeId(0), snapshot, 0.0)

    assert newcomer.state == participant(cluster, 0).state
    assert newcomer.view == snapshot.proof_qc.view + 1
    assert newcomer.record.high_qc == snapshot.proof_qc


@BOTH_RULES
def test_a_restart_knows_the_qc_of_its_stored_snapshot(rules: Rules) -> None:
    """A snapshot may be stored without the safety record."""
    cluster = cluster_of(4, rounds=2, rules=rules)
    cluster.run()
    disk = cluster.nodes[0].disk
    snapshot = snapshot_of(cluster, 0)
    record = disk.record
    assert record is not None
    old_record = replace(record, high_qc=snapshot.proof.qc, high_tc=None)
    durable = Durable(old_record, snapshot)
    replica = Participant(cluster.federation, NodeId(0), cluster.signers[0], durable).replica

    assert replica.record.high_qc == snapshot.proof_qc
    assert replica.view == snapshot.proof_qc.view + 1


@BOTH_RULES
@pytest.mark.parametrize("has_signed", [True, False])
def test_a_stored_snapshot_with_a_later_vote_of_this_node_makes_it_an_observer(
    rules: Rules, has_signed: bool
) -> None:
    """The snapshot is newer than the record: a copy of the disk was put together from two times."""
    cluster = cluster_of(4, rounds=2, rules=rules)
    first = {node.id: node.disk.record for node in cluster.nodes}
    cluster.run()
    snapshot = snapshot_of(cluster, 0)
    me = next(m for m in first if is_in(snapshot.proof_qc.signers, m) is has_signed)
    durable = Durable(first[me], snapshot)
    replica = Participant(cluster.federation, me, cluster.signers[me], durable).replica

    assert (replica.observing is not None) is has_signed


@BOTH_RULES
def test_a_node_asks_for_the_next_blocks_with_the_snapshot_in_hand(rules: Rules) -> None:
    """The request that the snapshot answers may be a moment old; its repetition is a period off."""
    cluster = cluster_of(4, rounds=4, rules=rules)
    newcomer = newcomer_of(cluster)
    cluster.run(until=lambda: cluster.rounds_closed == 1)
    snapshot = snapshot_of(cluster, 0)
    cluster.run(until=lambda: cluster.rounds_closed == 2)
    ahead = participant(cluster, 0).replica.record.high_qc
    assert ahead.view > snapshot.proof_qc.view
    newcomer.receive(NodeId(0), Certificates(ahead, None), 10.0)
    assert requests(newcomer) == [ahead.block]

    newcomer.receive(NodeId(0), snapshot, 10.1)

    assert requests(newcomer) == [ahead.block]


def requests(replica: Replica[LedgerState]) -> list[Digest]:
    sent = [item.message for item in replica.take().send]
    return [message.block for message in sent if isinstance(message, BlockRequest)]


def test_a_tc_of_the_high_qcs_own_view_goes_along_to_a_peer_that_is_behind() -> None:
    """The TC moves nobody, but shows a member whose disk was rolled back its own timeout."""
    small = Small(real=False)
    qc, tc = small.qc(3, name("block")), small.tc(3)
    first = small.durable().record
    assert first is not None
    for high_tc, expected in ((tc, tc), (small.tc(2), None)):
        mine = replace(first, high_qc=qc, high_tc=high_tc)
        answer = Answers(1.0).to(
            NodeId(1), shows=(View(0), View(1)), mine=mine, view=View(4), now=0.0
        )
        assert answer == Certificates(qc, expected)


def test_a_missing_block_is_requested_from_each_signer_in_turn() -> None:
    """The first signer may be a liar that never answers."""
    sync = Sync(NodeId(0), retry_s=1.0)
    block = digest_of(b"wanted")
    sync.want(block, (NodeId(0), NodeId(1), NodeId(2), NodeId(3)))
    requests = [sync.due(float(second)) for second in range(4)]

    assert requests == [(NodeId(i), block) for i in (1, 2, 3, 1)]
    assert sync.due(3.5) is None


@BOTH_RULES
def test_a_node_catches_up_though_the_first_signer_it_asks_never_answers(rules: Rules) -> None:
    cluster = cluster_of(4, rounds=3, rules=rules)
    away = NodeId(0)
    cluster.run(until=lambda: participant(cluster, 1).state.round == 1)
    cluster.crash(away, downtime_s=2.0, power=False)
    cluster.traffic.censor = lambda source, target, message: (
        source == NodeId(1) and target == away and not isinstance(message, Status)
    )
    cluster.run()

    assert cluster.conclude() == []
    assert participant(cluster, away).state.round == 3


@BOTH_RULES
@pytest.mark.parametrize("seed", [1, 2])
def test_a_log_goes_idle_only_when_a_certified_header_names_its_last_state(
    rules: Rules, seed: int
) -> None:
    """A node that connects later gets a proof of the last state."""
    cluster = cluster_of(4, rounds=2, seed=seed, rules=rules)
    replicas = [participant(cluster, member).replica for member in range(4)]

    def stored(member: int) -> LedgerState | None:
        snapshot = cluster.nodes[member].disk.snapshot
        return Ledger(cluster.federation).decode(snapshot.state) if snapshot is not None else None

    def idle() -> bool:
        return cluster.rounds_closed == 2 and all(replica.wake_at is None for replica in replicas)

    cluster.run(until=lambda: idle() and all(stored(m) == r.state for m, r in enumerate(replicas)))

    for member, replica in enumerate(replicas):
        assert replica.wake_at is None
        assert stored(member) == replica.state
