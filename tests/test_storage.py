"""Everything written survives a crash, and one process at a time holds a state."""

import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from defl.errors import DiskFull, LocalFault, UserError
from defl.ids import NodeId, Round
from defl.messages import Evidence
from defl.node.store import blobs
from defl.node.store.records import DATABASE
from defl.node.store.storage import Storage
from defl.output import Durable, Persist
from defl.participant import Participant
from defl.sim.disk import Disk
from support.builders import name
from support.stores import CHUNK, SMALL, chunks_of, create_state, new_storage, record, reopened
from support.switches import SWITCH


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return create_state(tmp_path / "state")


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    with new_storage(tmp_path / "state") as opened:
        yield opened


# --- Recovery --------------------------------------------------------------------------------


def test_a_new_storage_gives_a_participant_its_first_state(storage: Storage) -> None:
    durable = storage.recovered()

    assert durable == SMALL.durable()
    Participant(SMALL.federation, NodeId(0), SMALL.signers[0], durable)
    assert bytes(storage.blobs.read(SMALL.initial.digest)) == SMALL.initial_payload


def test_everything_persisted_is_recovered(storage: Storage) -> None:
    block = SMALL.block((SMALL.upd(0, 1), SMALL.agg(2, 1)))
    blob, other = SMALL.blob(1), SMALL.blob(2)
    offer = SMALL.offer(1, 1, blob[0])
    change = Persist(
        record=record(7),
        blocks=(block, SMALL.block(view=2, parent=block)),
        snapshot=SMALL.snapshot(),
        acks=(SMALL.ack(1, SMALL.offer(0, 1, blob[0])),),
        offer=offer,
        model=(Round(1), other[0]),
        evidence=(Evidence(offer, SMALL.offer(1, 1, other[0])),),
    )
    storage.records.persist(change)

    durable = reopened(storage)
    assert durable.record == change.record
    assert [block.id for block in durable.blocks] == [change.blocks[1].id]
    assert durable.snapshot == change.snapshot
    assert (durable.acks, durable.offers) == (change.acks, (offer,))
    assert durable.models == ((Round(0), SMALL.initial), change.model)
    assert durable.evidence == change.evidence


@pytest.mark.parametrize("seed", range(8))
def test_storage_keeps_and_forgets_like_the_simulated_disk(folder: Path, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    disk = Disk(SMALL.durable())
    disk.store_blob(SMALL.initial, SMALL.initial_payload, CHUNK)
    storage = Storage.open(folder)
    storage.recovered()
    for step in range(30):
        changes = [random_persist(rng, 3 * step + i) for i in range(rng.randint(1, 3))]
        for change in changes:
            disk.apply(change)
        storage.records.persist(*changes)
        for chunk in rng.sample(chunks_of(SMALL.blob(rng.randrange(4))), k=1):
            disk.store_chunk(chunk)
            storage.blobs.store_chunk(chunk)
        if rng.random() < 0.3:
            gone = SMALL.blob(rng.randrange(4))[0].digest
            disk.drop(gone)
            storage.blobs.drop(gone)

    actual, expected = reopened(storage), disk.recovered()
    held = dict(actual.held)
    assert set(held) == set(dict(expected.held))
    # An overwritten file may still have valid bytes where nothing was written.
    assert all(held[manifest] >= chunks for manifest, chunks in expected.held)
    assert replace_held(actual) == replace_held(expected)


def replace_held(durable: Durable) -> Durable:
    return replace(durable, held=())


def random_persist(rng: random.Random, step: int) -> Persist:
    blob = SMALL.blob(rng.randrange(4))[0]
    round_ = rng.randrange(1, 6)
    author = rng.randrange(4)
    parent = SMALL.genesis
    blocks = []
    for view in range(1, rng.randrange(1, 5)):
        parent = SMALL.block((SMALL.agg(author, round_),), view=view, parent=parent)
        blocks.append(parent)
    some: dict[str, Callable[[], Any]] = {
        "record": lambda: record(step + 1),
        "blocks": lambda: tuple(blocks),
        "snapshot": SMALL.snapshot,
        "acks": lambda: (SMALL.ack(1, SMALL.offer(author, round_, blob)),),
        "offer": lambda: SMALL.offer(1, round_, blob),
        "model": lambda: (Round(round_), blob),
        "evidence": lambda: (
            Evidence(SMALL.offer(1, step, blob), SMALL.offer(1, step, SMALL.blob(9)[0])),
        ),
        "forget_round": lambda: Round(rng.randrange(4)),
    }
    chosen = {key: make() for key, make in some.items() if rng.random() < 0.4}
    if rng.random() < 0.1:  # never without the next epoch's record
        chosen |= {"record": record(step + 1), "switch": SWITCH}
    return Persist(**chosen)


# --- Ownership -------------------------------------------------------------------------------


def test_a_lost_database_is_never_recreated(storage: Storage) -> None:
    storage.close()
    (storage.folder / DATABASE).unlink()
    new = (storage.folder, SMALL.federation, (SMALL.initial, SMALL.initial_payload))

    with pytest.raises(LocalFault, match="record of what this node signed"):
        Storage.open(storage.folder)
    with pytest.raises(UserError, match="must not be recreated"):
        Storage.create(*new)

    Storage.create(*new, observing="it was lost")
    with Storage.open(storage.folder) as again:
        durable = again.recovered()
    assert durable.record is not None
    assert durable.record.observing == "it was lost"
    assert durable.models == ((Round(0), SMALL.initial),)


def test_a_folder_without_a_node_and_one_of_another_federation_are_refused(
    storage: Storage, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="defl node start"):
        Storage.open(tmp_path)
    with pytest.raises(UserError, match="must not be recreated"):
        Storage.create(storage.folder, SMALL.federation, (SMALL.initial, SMALL.initial_payload))
    storage.close()
    with pytest.raises(UserError, match="is the state of federation"):
        Storage.open(storage.folder, chain=name("another"))
    Storage.open(storage.folder, chain=SMALL.chain).close()


def test_the_reserve_stops_blobs_before_records(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.close()
    free = 0

    class Disk:
        f_frsize = 1

        @property
        def f_bavail(self) -> int:
            return free

    monkeypatch.setattr(blobs.os, "statvfs", lambda _: Disk())
    with Storage.open(storage.folder, reserve_bytes=100_000) as again:
        again.recovered()
        free = 60_000
        with pytest.raises(DiskFull, match="reserve"):
            again.blobs.store_blob(*SMALL.blob(1))
        with pytest.raises(DiskFull, match="reserve"):
            again.blobs.store_chunk(chunks_of(SMALL.blob(1))[0])
        again.records.persist(Persist(record=record(4)))
        free = 25_000
        with pytest.raises(DiskFull, match="reserve"):
            again.records.persist(Persist(record=record(5)))
        free = 200_000
        again.blobs.store_blob(*SMALL.blob(1))
        assert again.recovered().record == record(4)


# --- Other processes -------------------------------------------------------------------------

OPENER = """
import sys
from pathlib import Path
from defl.errors import UserError
from defl.node.store.storage import Storage
try:
    Storage.open(Path(sys.argv[1])).close()
except UserError as error:
    sys.exit(f"refused: {error}")
"""

# Persists records in a loop and prints a line after each; view i with ack i and blob i mod 5.
WRITER = """
import sys
from pathlib import Path
from test_storage import acknowledged_step
from defl.node.store.storage import Storage
storage = Storage.open(Path(sys.argv[1]))
storage.recovered()
for step in range(1, 100_000):
    acknowledged_step(storage, step)
    sys.stdout.write(f"{step}\\n")
    sys.stdout.flush()
"""


def acknowledged_step(storage: Storage, step: int) -> None:
    blob = SMALL.blob(step % 5)
    storage.records.persist(
        Persist(record=record(step), acks=(SMALL.ack(1, SMALL.offer(0, step, blob[0])),))
    )
    if step % 2:
        storage.blobs.store_blob(*blob)
    else:
        for chunk in chunks_of(blob):
            storage.blobs.store_chunk(chunk)
        storage.blobs.drop(SMALL.blob((step + 2) % 5)[0].digest)


def python(code: str, folder: Path) -> "subprocess.Popen[str]":
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_a_second_process_on_the_same_folder_is_refused(storage: Storage) -> None:
    second = python(OPENER, storage.folder)
    _, errors = second.communicate(timeout=30)
    assert second.returncode == 1
    assert f"in use by another process (pid {os.getpid()})" in errors

    storage.close()
    third = python(OPENER, storage.folder)
    assert third.communicate(timeout=30) == ("", "")
    assert third.returncode == 0


@pytest.mark.parametrize("acknowledged", [1, 17, 60])
def test_a_killed_process_loses_nothing_that_it_acknowledged(
    folder: Path, acknowledged: int
) -> None:
    writer = python(WRITER, folder)
    assert writer.stdout is not None
    last = 0
    for line in writer.stdout:
        last = int(line)
        if last == acknowledged:
            writer.send_signal(signal.SIGKILL)
    _, errors = writer.communicate(timeout=30)
    assert writer.returncode == -signal.SIGKILL, errors

    with Storage.open(folder) as storage:
        durable = storage.recovered()
        assert storage.faults == ()
        assert durable.record is not None
        assert durable.record.last_voted_view in (last, last + 1)
        assert durable.record == record(durable.record.last_voted_view)
        assert [ack.round for ack in durable.acks] == [
            Round(step) for step in range(1, durable.record.last_voted_view + 1)
        ]
        held = {manifest.digest: chunks for manifest, chunks in durable.held}
        assert held[SMALL.blob(last % 5)[0].digest] == {0, 1}
        acknowledged_step(storage, last + 2)
