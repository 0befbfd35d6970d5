"""Power cuts of any members, together with Byzantine members that withhold blobs: whatever a
certificate promises is still there."""

from collections.abc import Callable

import pytest

from defl.ids import Digest, NodeId, Round
from defl.ledger import LedgerState
from defl.messages import Manifest
from defl.output import ClosedRound, Reference
from defl.sim import verdicts
from defl.sim.byzantine import KINDS
from defl.sim.cluster import Cluster
from defl.sim.conditions import Conditions, Rollback, WriteTimes
from defl.sim.disk import Disk
from defl.sim.durability import PowerCutCheck
from defl.sim.scenario import cluster_of
from support.builders import Small

WITHHOLDING = ("withholder", "late-withholder")
AUTHOR = NodeId(0)


def is_committed(cluster: Cluster, author: NodeId) -> Callable[[], bool]:
    """Whether an honest node has committed this member's update for round 1."""

    def committed() -> bool:
        states = (node.behaviour.participant.state for node in cluster.honest)
        return any(state.round >= 1 or state.update_of(author) is not None for state in states)

    return committed


def cut_power(cluster: Cluster, members: list[NodeId]) -> None:
    for member in members:
        cluster.crash(member, power=True, downtime_s=1.0)


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.2, 0.3])
@pytest.mark.parametrize("nodes", [4, 7])
def test_all_honest_members_lose_power_when_a_withheld_update_is_committed(
    nodes: int, after_s: float
) -> None:
    """The author serves its update to nobody once it is committed: its ackers alone have it."""
    cluster = cluster_of(
        nodes, rounds=4, seed=7, byzantine={AUTHOR: KINDS["late-withholder"]}, chunk_bytes=256
    )
    cluster.run(until=is_committed(cluster, AUTHOR))
    at = cluster.now
    cluster.run(until=lambda: cluster.now >= at + after_s)
    cut_power(cluster, [node.id for node in cluster.honest])
    cluster.run()

    assert cluster.conclude() == []
    assert cluster.rounds_closed == 4


@pytest.mark.parametrize("kind", WITHHOLDING)
@pytest.mark.parametrize(("nodes", "withholders"), [(4, 1), (7, 2)])
def test_power_cuts_at_every_round_stop_no_federation_with_withholding_members(
    nodes: int, withholders: int, kind: str
) -> None:
    """All machines lose power a little later in each round, the Byzantine members' too."""
    times = tuple(0.9 + 1.45 * cut for cut in range(8))
    conditions = Conditions(all_crash_at_s=times, power_loss_share=0.999, downtime_s=0.3)
    liars = {NodeId(member): KINDS[kind] for member in range(withholders)}
    cluster = cluster_of(
        nodes, rounds=4, seed=3, conditions=conditions, byzantine=liars, chunk_bytes=256
    )
    cluster.run()

    assert cluster.conclude() == []
    assert cluster.rounds_closed == 4


@pytest.mark.parametrize("seed", range(3))
def test_any_member_may_lose_power_beside_f_faulty_ones(seed: int) -> None:
    """One member withholds, another one's disk is rolled back, and every crash is a power cut."""
    conditions = Conditions(
        crash_rate=0.004,
        power_loss_share=0.999,
        writes=WriteTimes().slower(5.0),
        rollbacks=(Rollback(NodeId(2), at_s=2.5, writes_ago=30),),
        calm_after_s=30.0,
    )
    liars = {NodeId(5): KINDS["late-withholder"]}
    cluster = cluster_of(
        7, rounds=4, seed=seed, conditions=conditions, byzantine=liars, chunk_bytes=256
    )
    cluster.run()

    assert cluster.crashes > 4
    assert cluster.conclude() == []
    assert cluster.rounds_closed == 4


def test_a_withheld_update_survives_at_its_ackers_when_another_member_is_switched_off() -> None:
    """All honest members lose power, and one that is no acker does not come back."""
    cluster = cluster_of(
        7, rounds=3, seed=7, byzantine={AUTHOR: KINDS["late-withholder"]}, chunk_bytes=256
    )

    def committed() -> list[Reference]:
        states = [node.behaviour.participant.state for node in cluster.honest]
        refs = [state.update_of(AUTHOR) for state in states]
        return [ref for ref in refs if ref is not None]

    cluster.run(until=lambda: bool(committed()))
    bits = int.from_bytes(committed()[0].ackers, "little")
    others = [n.id for n in cluster.honest if not bits >> n.id & 1]
    cut_power(cluster, [node.id for node in cluster.honest])
    for member in others[:1]:  # with the Byzantine member that is f
        cluster.stop(member)
    cluster.run()

    assert cluster.rounds_closed == 3


# --- The check -------------------------------------------------------------------------------

SMALL = Small(real=False)
UPDATE, PAYLOAD = SMALL.blob(1, SMALL.initial.digest)
MODEL, MODEL_PAYLOAD = SMALL.blob(2, SMALL.initial.digest)


def reference(manifest: Manifest) -> Reference:
    return Reference(AUTHOR, manifest.digest, manifest.size, manifest.base, b"", b"")


OPEN = LedgerState(Round(0), (reference(UPDATE),), (), ())
CLOSED = LedgerState(
    Round(1),
    (),
    (),
    (ClosedRound(Round(1), Digest(bytes(32)), UPDATE.base, (reference(UPDATE),), 0, 1),),
)


def disk_with(manifest: Manifest, payload: bytes, *, synced: bool) -> Disk:
    disk = Disk(SMALL.durable())
    disk.place(manifest, payload, SMALL.federation.chunk_bytes)
    if synced:
        disk.sync(manifest.digest)
    return disk


def failed(
    state: LedgerState, disks: list[Disk], models: dict[Round, Digest] | None = None
) -> list[str]:
    found: list[str] = []
    check = PowerCutCheck(lambda name, _: found.append(name))
    assert check.committed(state, 0)
    assert not check.committed(state, 0)
    check.check(disks, models or {})
    return found


@pytest.mark.parametrize("state", [OPEN, CLOSED], ids=["open round", "closed round"])
def test_a_committed_update_that_nobody_has_synced_is_detected(state: LedgerState) -> None:
    unsynced = disk_with(UPDATE, PAYLOAD, synced=False)
    assert failed(state, [unsynced]) == [verdicts.RETRIEVABLE]
    assert failed(state, [unsynced, disk_with(UPDATE, PAYLOAD, synced=True)]) == []


@pytest.mark.parametrize(("state", "lost"), [(OPEN, 1), (CLOSED, 0)], ids=["open", "closed"])
def test_updates_are_needed_until_their_model_is_synced(state: LedgerState, lost: int) -> None:
    disks = [disk_with(MODEL, MODEL_PAYLOAD, synced=True)]
    models = {state.round: MODEL.digest}
    assert failed(state, disks, models) == [verdicts.RETRIEVABLE] * lost
    unsynced = [disk_with(MODEL, MODEL_PAYLOAD, synced=False)]
    assert failed(state, unsynced, models) == [verdicts.RETRIEVABLE]


def test_a_rotten_copy_does_not_survive() -> None:
    disk = disk_with(UPDATE, PAYLOAD, synced=True)
    disk.blobs[UPDATE.digest].rotten.add(0)
    assert failed(OPEN, [disk]) == [verdicts.RETRIEVABLE]
