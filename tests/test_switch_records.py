"""At a boundary one write replaces what belongs to the old epoch; handovers are kept for ever."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from defl.errors import LocalFault
from defl.ids import NodeId, Round
from defl.messages import Handover
from defl.node.store.storage import Storage
from defl.output import Durable, Persist
from defl.participant import Participant
from defl.participant_parts import present_epoch
from defl.sim.disk import Disk
from support.stores import SMALL, new_storage, record, reopened, spoil
from support.switches import AFTER, BEFORE, BOUNDARY, HANDOVER, NEXT, SWITCH, ack


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    with new_storage(tmp_path / "state") as opened:
        yield opened


def assert_boundary(durable: Durable) -> None:
    assert durable.switch == SWITCH
    assert durable.record == BOUNDARY.record
    assert (durable.blocks, durable.snapshot) == ((), None)
    assert durable.acks == BOUNDARY.acks
    assert durable.offers == (BOUNDARY.offer,)
    assert durable.attestations == ()
    assert durable.models == ((Round(0), SMALL.initial), BOUNDARY.model)


def test_the_new_epoch_replaces_what_belongs_to_the_old_one(storage: Storage) -> None:
    storage.records.persist(Persist(snapshot=SMALL.snapshot()))
    storage.records.persist(BEFORE)
    proof = tuple(SMALL.attestation(author, 3, SMALL.initial.digest) for author in (0, 1, 2))
    storage.records.persist(Persist(attestations=proof))
    assert storage.recovered().blocks
    assert storage.recovered().attestations == proof
    storage.records.persist(BOUNDARY)

    durable = reopened(storage)

    assert_boundary(durable)
    federation = present_epoch(SMALL.federation, durable)
    assert federation.chain == NEXT.chain
    participant = Participant(federation, NodeId(1), SMALL.signers[1], durable)
    assert (participant.epoch, participant.replica.observing) == (1, None)


def test_a_boundary_in_the_middle_of_a_group_of_writes(storage: Storage) -> None:
    """What was decided before it goes, what was decided after it stays, in one transaction."""
    late = Persist(acks=(ack(3),), evidence=())
    storage.records.persist(BEFORE, BOUNDARY, late, AFTER)
    disk = Disk(SMALL.durable())
    for persist in (BEFORE, BOUNDARY, late, AFTER):
        disk.apply(persist)

    durable = reopened(storage)

    assert replace(durable, held=()) == disk.recovered()
    assert durable.record == AFTER.record
    assert durable.acks == (*BOUNDARY.acks, ack(3))


def test_every_handover_is_kept_and_can_be_read_alone(storage: Storage) -> None:
    later = _handover_of(1)
    assert storage.records.handover(0) is None
    storage.records.persist(BEFORE, BOUNDARY)
    membership = replace(SWITCH.membership, epoch=2)
    storage.records.persist(
        Persist(record=record(1), switch=replace(SWITCH, membership=membership, handover=later))
    )
    storage.records.persist(Persist(forget_round=Round(1000)))

    assert storage.records.handover(0) == HANDOVER
    assert storage.records.handover(1) == later
    assert storage.records.handover(2) is None
    assert list(storage.records.handovers()) == [HANDOVER, later]
    durable = reopened(storage)
    assert durable.switch is not None
    assert durable.switch.handover == later


def _handover_of(epoch: int) -> Handover:
    block = HANDOVER.snapshot.block
    return Handover(replace(HANDOVER.snapshot, block=replace(block, epoch=epoch)))


@pytest.mark.parametrize("kind", ["epoch", "handover"])
def test_a_corrupt_record_of_a_boundary_stops_the_node(storage: Storage, kind: str) -> None:
    storage.records.persist(BEFORE, BOUNDARY)
    storage.close()
    spoil(storage.folder, "UPDATE records SET checksum = x'00' WHERE kind = ?", kind)

    with (
        Storage.open(storage.folder) as again,
        pytest.raises(LocalFault, match=f"the {kind} record .* is corrupt"),
    ):
        again.recovered()


def test_a_lost_handover_stops_the_node(storage: Storage) -> None:
    storage.records.persist(BOUNDARY)
    storage.close()
    spoil(storage.folder, "DELETE FROM records WHERE kind = 'handover'")

    with (
        Storage.open(storage.folder) as again,
        pytest.raises(LocalFault, match="lost the handover"),
    ):
        again.recovered()


def test_the_state_stays_that_of_the_origin(storage: Storage) -> None:
    storage.records.persist(BOUNDARY)
    storage.close()

    Storage.open(storage.folder, chain=SMALL.federation.chain).close()


# Each boundary is written in its own process, which kills itself before its k-th SQL statement.
# Prints whether the state is then of the old or of the new epoch, for each k.
KILLER = """
import itertools, json, os, shutil, signal, sys
from pathlib import Path
from defl.node.store.storage import Storage
from support.switches import BEFORE, BOUNDARY, AFTER
from test_switch_records import assert_boundary, assert_old_epoch

def write(folder, kill_at):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    storage = Storage.open(folder, reserve_bytes=0)
    statements = itertools.count()
    def before(statement):
        if next(statements) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
    storage.records._database.set_trace_callback(before)
    storage.records.persist(BEFORE, BOUNDARY)
    os._exit(0)

template = Path(sys.argv[1])
results = []
for step in itertools.count():
    folder = template.with_name(f"state{step}")
    shutil.copytree(template, folder)
    code = write(folder, step)
    with Storage.open(folder) as storage:
        durable = storage.recovered()
        (assert_old_epoch if durable.switch is None else assert_boundary)(durable)
        results.append((code, durable.switch is not None))
        assert (storage.records.handover(0) is None) == (durable.switch is None)
        storage.records.persist(BEFORE, BOUNDARY)
        assert_boundary(storage.recovered())
    shutil.rmtree(folder)
    if code == 0:
        break
print(json.dumps(results))
"""


def assert_old_epoch(durable: Durable) -> None:
    assert durable.record == record(1)
    assert durable.acks == (ack(1),)


def test_a_kill_at_any_step_leaves_the_old_epoch_or_the_new_one(storage: Storage) -> None:
    storage.records.persist(Persist(record=record(1), acks=(ack(1),)))
    storage.close()

    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(storage.folder)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert len(results) > 15  # it was killed before that many statements
    assert results[-1] == [0, True]
    assert results[:-1] == [[-9, False]] * (len(results) - 1)
