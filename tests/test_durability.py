"""The simulator's checks of the order of duty, and runs on slow, full and broken disks."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from msgspec.structs import replace

from defl.client import RoundClient
from defl.committee import Timing
from defl.duty import WriteRecords
from defl.ids import Digest, NodeId, Round, View
from defl.messages import ChunkRequest, Message
from defl.output import (
    Aggregate,
    Notice,
    Persist,
    Received,
    ServeChunk,
    Train,
    Validate,
    WorkFailing,
)
from defl.pool.weights import manifest_of, payload_bytes
from defl.schema import Codec
from defl.sim import verdicts
from defl.sim.byzantine import KINDS
from defl.sim.conditions import Conditions, WriteTimes
from defl.sim.disk import Disk
from defl.sim.durability import AckedValues, InputsCheck, RecordCheck
from defl.sim.machine_faults import MachineFaults
from defl.sim.scenario import cluster_of
from defl.sim.sim_node import SimNode
from defl.sim.writes import Write, Writes
from defl.work import validate
from support.builders import Small, name

SMALL = Small(real=False)
ME, PEER = NodeId(0), NodeId(2)
VIEW = View(7)
BASE = SMALL.initial
OWN, OWN_BYTES = SMALL.blob(1, BASE.digest)
OTHERS, OTHERS_BYTES = SMALL.blob(2, BASE.digest)

VOTE = SMALL.vote(ME, VIEW, name("a block"))
TIMEOUT = SMALL.timeout(ME, VIEW)
OFFER = SMALL.offer(ME, 1, OWN)
ACK = SMALL.ack(ME, SMALL.offer(PEER, 1, OTHERS))


class Violations(list[tuple[str, str]]):
    def __call__(self, check: str, sentence: str) -> None:
        self.append((check, sentence))


@pytest.fixture
def disk() -> Disk:
    """A disk on which all of the messages above are recorded, with what they promise."""
    initial = SMALL.durable()
    here = Disk(initial)
    assert initial.record is not None
    record = replace(initial.record, last_voted_view=VIEW, last_timeout_view=VIEW)
    here.apply(Persist(record=record, acks=(ACK,), offer=OFFER))
    for manifest, payload in (
        (BASE, SMALL.initial_payload),
        (OWN, OWN_BYTES),
        (OTHERS, OTHERS_BYTES),
    ):
        here.store_blob(manifest, payload, SMALL.federation.chunk_bytes)
    return here


@pytest.mark.parametrize("message", [VOTE, TIMEOUT, ACK, OFFER])
def test_a_recorded_statement_may_leave(disk: Disk, message: Message) -> None:
    violations = Violations()
    RecordCheck(ME, violations).sent(message, disk, ME, 0)
    assert violations == []


@pytest.mark.parametrize("message", [VOTE, TIMEOUT, ACK, OFFER])
def test_a_statement_that_leaves_before_its_record_is_detected(
    disk: Disk, message: Message
) -> None:
    violations = Violations()
    empty = Disk(SMALL.durable())
    empty.blobs = disk.blobs
    RecordCheck(ME, violations).sent(message, empty, ME, 0)
    assert [check for check, _ in violations] == [verdicts.NOTHING_BEFORE_ITS_RECORD]


@pytest.mark.parametrize(
    ("message", "lost"),
    [(ACK, OTHERS.digest), (OFFER, OWN.digest), (OFFER, BASE.digest)],
    ids=["an acknowledged update", "an offered update", "the base of an offered update"],
)
def test_a_promise_without_its_bytes_is_detected(
    disk: Disk, message: Message, lost: Digest
) -> None:
    disk.blobs[lost].synced = False
    violations = Violations()
    RecordCheck(ME, violations).sent(message, disk, ME, 0)
    assert [check for check, _ in violations] == [verdicts.NOTHING_BEFORE_ITS_RECORD]


@pytest.mark.parametrize("codec", list(Codec))
def test_an_ack_of_an_update_that_breaks_the_rules_is_detected(codec: Codec) -> None:
    """The judge has rules of its own; they agree with those that nodes check."""
    federation = Small(real=False, values=40, codec=codec).federation
    rng = np.random.default_rng(1)
    judged = set()
    for _ in range(100):
        payload = rng.bytes(payload_bytes(federation.schema, codec))
        payload = bytes(3) + payload[3:] if rng.random() < 0.5 else payload
        if codec in (Codec.FP32, Codec.BF16) and rng.random() < 0.5:
            bits = np.frombuffer(payload, "<u2") & 0x3FFF  # at most 2 in magnitude
            payload = bits.astype("<u2").tobytes()
        elif rng.random() < 0.5:
            payload = payload.replace(b"\x80", b"\x00")
        manifest = manifest_of(payload, federation.schema, codec, federation.chunk_bytes)
        here, violations = Disk(SMALL.durable()), Violations()
        here.store_blob(manifest, payload, federation.chunk_bytes)
        ack = SMALL.ack(ME, SMALL.offer(PEER, 1, manifest))
        AckedValues(federation, violations).acknowledged(ME, ack, here)
        obeys = validate(federation, payload) is None
        judged.add(obeys)
        assert [check for check, _ in violations] == ([] if obeys else [verdicts.ACKS_OBEY])

    assert judged == {True, False}


def test_everything_that_a_worker_does_takes_time_that_is_drawn() -> None:
    """Otherwise nothing could happen while it is under way."""
    cluster = cluster_of(4)
    node = cluster.nodes[0]
    train, check = Train(Round(1), BASE.digest), Validate(OTHERS)
    aggregate = Aggregate(Round(1), BASE.digest, (), name("closing"), 1, ())
    for work in (train, aggregate, check):
        times = [cluster._work_takes_s(node, work) for _ in range(100)]
        assert min(times) > 0
        assert len(set(times)) == 100
    assert sum(cluster._work_takes_s(node, check) for _ in range(1000)) == pytest.approx(
        1000 * 0.05 * cluster.conditions.work_s, rel=0.2
    )


def test_work_without_its_inputs_is_detected(disk: Disk) -> None:
    violations = Violations()
    check = InputsCheck(ME, violations)
    check.present(Validate(OTHERS), disk)
    assert violations == []
    disk.drop(OTHERS.digest)
    check.present(Validate(OTHERS), disk)
    assert [name for name, _ in violations] == [verdicts.INPUTS_IN_PLACE]


# --- Whole runs ------------------------------------------------------------------------------

BROKEN = Conditions(
    writes=WriteTimes(record_s=0.02, chunk_s=0.03, place_s=0.01, sync_s=0.2, drop_s=0.01),
    crash_rate=0.003,
    power_loss_share=0.5,
    disk_full_rate=0.002,
    sync_failure_rate=0.2,
    rot_rate=0.01,
    calm_after_s=60.0,
)


@pytest.mark.parametrize("seed", range(8))
def test_a_federation_on_slow_full_and_broken_disks_finishes(seed: int) -> None:
    cluster = cluster_of(4, rounds=4, seed=seed, conditions=BROKEN, chunk_bytes=256)
    cluster.run()
    assert cluster.conclude() == []
    assert cluster.rounds_closed == 4


@pytest.mark.parametrize("seed", range(3))
def test_a_liar_gains_nothing_from_the_others_broken_disks(seed: int) -> None:
    liars = {NodeId(1): KINDS["equivocator"]}
    cluster = cluster_of(
        4, rounds=3, seed=seed, conditions=BROKEN, byzantine=liars, chunk_bytes=256
    )
    cluster.run()
    assert cluster.conclude() == []


@pytest.mark.parametrize("seed", [0, 25, 38])
def test_a_federation_whose_updates_are_all_equal_finishes_on_broken_disks(seed: int) -> None:
    """Clients that change nothing: one blob is every member's update in every round."""
    slow = WriteTimes(record_s=0.02, chunk_s=0.3, place_s=1.0, sync_s=2.0, drop_s=0.5)
    broken = dataclasses.replace(BROKEN, writes=slow, disk_full_rate=0.004, calm_after_s=120.0)
    cluster = cluster_of(4, rounds=5, seed=seed, conditions=broken, chunk_bytes=256)
    cluster._training = lambda _node, _round, base: base
    cluster.run()
    assert cluster.conclude() == []
    assert cluster.rounds_closed == 5


def test_records_that_queue_up_behind_a_slow_disk_share_a_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups: list[int] = []
    add = Writes.add

    def watch(writes: Writes, write: Write) -> None:
        if isinstance(write, WriteRecords):
            groups.append(len(write.persists))
        add(writes, write)

    monkeypatch.setattr(Writes, "add", watch)
    slow = WriteTimes(record_s=1.0)
    cluster = cluster_of(4, rounds=2, conditions=Conditions(writes=slow))
    cluster.run()
    assert cluster.conclude() == []
    assert max(groups) > 2


def test_a_node_whose_sync_failed_fetches_the_blob_back_and_finishes() -> None:
    failures: list[str] = []

    def notice(_node: NodeId, notice: Notice) -> None:
        if isinstance(notice, WorkFailing):
            failures.append(notice.reason)

    conditions = Conditions(sync_failure_rate=0.3, calm_after_s=60.0)
    cluster = cluster_of(4, rounds=6, conditions=conditions, on_notice=notice)
    cluster.run()
    assert cluster.conclude() == []
    assert any("sync blob" in reason for reason in failures)


def test_a_node_whose_syncs_all_fail_does_not_use_up_the_lines_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = NodeId(3)
    monkeypatch.setattr(MachineFaults, "sync_fails", lambda _, node: node.id == broken)
    cluster = cluster_of(4, rounds=6, seed=3, values=1000, chunk_bytes=1024)
    cluster.run()

    received: Counter[NodeId] = Counter()
    for (_, target), sent in cluster.traffic.weights_bytes.items():
        received[target] += sent
    assert cluster.conclude() == []
    assert received[broken] < 10 * received[NodeId(0)], "once for each loss; at worst, 125 times"


def test_a_model_that_all_disks_lost_at_once_is_computed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One cause, a full array for instance, makes all syncs fail for two seconds."""
    lost: set[Digest] = set()
    lose = RoundClient.lost

    def watch(client: RoundClient, digest: Digest, now: float) -> None:
        model = client.model(client.round)
        if model is not None and model.digest == digest:
            lost.add(digest)
        lose(client, digest, now)

    def fails(faults: MachineFaults, _node: SimNode) -> bool:
        return 3.0 < faults._clock.now < 5.0

    monkeypatch.setattr(RoundClient, "lost", watch)
    monkeypatch.setattr(MachineFaults, "sync_fails", fails)
    cluster = cluster_of(4, rounds=3, seed=2)
    cluster.run()

    assert lost
    assert cluster.conclude() == []
    assert cluster.rounds_closed == 3


@pytest.mark.parametrize("restarted", [False, True])
def test_updates_of_the_round_of_grace_are_served_also_after_a_restart(restarted: bool) -> None:
    """A peer that lags by one round more than are kept still aggregates: with the ledger at round R
    its holders have all that they had of round R - tau."""
    cluster = cluster_of(4, rounds=6, tau=2)
    node = cluster.nodes[1]
    cluster.run(until=lambda: node.behaviour.participant.state.round == 2)
    held = {
        ref.digest
        for ref in node.behaviour.participant.state.closed[-1].updates
        if node.behaviour.participant.pool.has(ref.digest)
    }
    assert len(held) >= cluster.federation.committee.quorum
    cluster.run(until=lambda: node.behaviour.participant.state.round == 4)
    written_at = cluster.now + 0.3
    cluster.run(until=lambda: cluster.now >= written_at)
    assert node.behaviour.participant.state.round == 4
    if restarted:
        cluster.crash(node.id, downtime_s=0.1, power=False)
        cluster.run(until=lambda: node.alive)
    participant = node.behaviour.participant
    for digest in held:
        request = Received(PEER, ChunkRequest(digest, 0))
        assert ServeChunk(PEER, digest, 0) in participant.handle(request, cluster.now).send


def test_a_rotten_chunk_is_found_when_it_is_read_and_fetched_back() -> None:
    cluster = cluster_of(
        4, rounds=6, seed=3, conditions=Conditions(rot_rate=0.05, calm_after_s=60.0)
    )
    damaged: set[Digest] = set()

    def watch() -> bool:
        for node in cluster.nodes:
            damaged.update(d for d, blob in node.disk.blobs.items() if blob.damaged)
        return False

    cluster.run(until=watch)
    assert cluster.conclude() == []
    assert damaged


def test_a_slow_training_keeps_its_base_after_retention_is_over() -> None:
    """The others close many rounds meanwhile, and this node follows them."""
    slow = Conditions(work_s=0.2, work_sigma=0.1, work_factors=((NodeId(3), 400.0),))
    hasty = Timing(gst_lt_min_s=0.1, gst_lt_max_s=1.0)
    cluster = cluster_of(4, rounds=12, conditions=slow, timing=hasty)
    behind: list[Round] = []

    def watch() -> bool:
        base = cluster.nodes[3].driver._duty._readers
        held = cluster.nodes[3].behaviour.participant.pool.labels.values()
        if any(digest not in held for digest in base):
            behind.append(cluster.nodes[3].behaviour.participant.state.round)
        return False

    cluster.run(until=watch)
    assert behind, "retention was over for what the training still read"
    assert [v for v in cluster.conclude() if v.startswith(verdicts.INPUTS_IN_PLACE)] == []
