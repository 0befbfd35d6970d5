"""After a crash everything written is back, or the damage is reported; on real files."""

import errno
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from defl.consensus.safety import first_record
from defl.errors import DiskFull, LocalFault, UserError
from defl.ids import NodeId, Round, View
from defl.messages import Evidence, Manifest
from defl.node.store import blobs
from defl.node.store.mark import Mark
from defl.node.store.records import DATABASE, MARK
from defl.node.store.storage import Storage
from defl.output import Durable, Persist, SafetyRecord, StoreChunk
from defl.participant import Participant
from defl.sim.disk import Disk
from support.builders import Small, name

SMALL = Small(real=False)
CHUNK = SMALL.federation.chunk_bytes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    Storage.create(path, SMALL.federation, SMALL.initial, SMALL.initial_payload)
    return path


@pytest.fixture
def storage(folder: Path) -> Iterator[Storage]:
    with Storage.open(folder, reserve_bytes=0) as opened:
        opened.recovered()
        yield opened


def reopened(storage: Storage) -> Durable:
    """What a new process recovers."""
    storage.close()
    with Storage.open(storage.folder) as again:
        return again.recovered()


def record(view: int) -> SafetyRecord:
    first = first_record(SMALL.epoch, SMALL.genesis_qc)
    return replace(first, last_voted_view=View(view), high_qc=SMALL.qc(view, name(f"b{view}")))


def chunks_of(blob: tuple[Manifest, bytes]) -> list[StoreChunk]:
    manifest, payload = blob
    return [
        StoreChunk(manifest, index, payload[index * CHUNK : (index + 1) * CHUNK])
        for index in range(len(manifest.chunks))
    ]


def files(storage: Storage) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (storage.folder / "blobs").iterdir()}


# --- What comes back -------------------------------------------------------------------------


def test_a_new_storage_gives_a_participant_its_first_state(storage: Storage) -> None:
    durable = storage.recovered()

    assert durable == SMALL.durable()
    Participant(SMALL.federation, NodeId(0), SMALL.signers[0], durable)
    assert bytes(storage.blobs.read(SMALL.initial.digest)) == SMALL.initial_payload


def test_everything_that_was_persisted_comes_back(storage: Storage) -> None:
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
    # A file that was written over may still have the right bytes at places that were not written.
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
    return Persist(**{key: make() for key, make in some.items() if rng.random() < 0.4})


# --- Blobs -----------------------------------------------------------------------------------


def test_the_file_of_a_dropped_blob_is_reused_for_the_next_one(storage: Storage) -> None:
    first, second = chunks_of(SMALL.blob(1)), chunks_of(SMALL.blob(2))
    for chunk in first:
        storage.blobs.store_chunk(chunk)
    inode = storage.blobs.path(first[0].manifest.digest).stat().st_ino
    used = storage.bytes_used
    storage.blobs.drop(first[0].manifest.digest)

    for chunk in second:
        storage.blobs.store_chunk(chunk)

    path = storage.blobs.path(second[0].manifest.digest)
    assert path.stat().st_ino == inode
    assert path.read_bytes() == b"".join(chunk.data for chunk in second)
    assert storage.bytes_used == used


def test_a_file_is_not_overwritten_while_it_is_read(storage: Storage) -> None:
    first, second = chunks_of(SMALL.blob(1)), chunks_of(SMALL.blob(2))
    for chunk in first:
        storage.blobs.store_chunk(chunk)
    digest = first[0].manifest.digest

    with storage.blobs.reading((digest,)), storage.blobs.path(digest).open("rb") as opened:
        storage.blobs.drop(digest)
        for chunk in second:
            storage.blobs.store_chunk(chunk)

        assert opened.read() == b"".join(chunk.data for chunk in first)


def test_a_worker_can_take_a_spare_file_of_the_right_size(storage: Storage, tmp_path: Path) -> None:
    first = chunks_of(SMALL.blob(1))
    for chunk in first:
        storage.blobs.store_chunk(chunk)
    size = first[0].manifest.size
    storage.blobs.drop(first[0].manifest.digest)

    assert not storage.blobs.take_spare(size + 1, tmp_path / "output")
    assert storage.blobs.take_spare(size, tmp_path / "output")
    assert (tmp_path / "output").stat().st_size == size
    assert not storage.blobs.take_spare(size, tmp_path / "another")


def test_spare_files_are_gone_after_a_restart(storage: Storage) -> None:
    for chunk in chunks_of(SMALL.blob(1)):
        storage.blobs.store_chunk(chunk)
    storage.blobs.drop(SMALL.blob(1)[0].digest)

    storage.close()
    with Storage.open(storage.folder) as again:
        again.recovered()
        assert not list((storage.folder / "blobs").glob("*.new"))


def test_a_fetch_resumes_after_a_restart(storage: Storage) -> None:
    first, second = chunks_of(SMALL.blob(1))
    storage.blobs.store_chunk(second)

    storage.close()
    with Storage.open(storage.folder) as again:
        assert (first.manifest, frozenset({1})) in again.recovered().held
        assert again.blobs.read_chunk(first.manifest.digest, 1) == second.data
        again.blobs.store_chunk(first)
        assert bytes(again.blobs.read(first.manifest.digest)) == first.data + second.data
        assert again.faults == ()


def test_a_chunk_that_is_not_here_is_never_served(storage: Storage) -> None:
    first, second = chunks_of(SMALL.blob(1))
    storage.blobs.store_chunk(second)

    with pytest.raises(LocalFault, match="chunk 0 of blob"):
        storage.blobs.read_chunk(first.manifest.digest, 0)
    with pytest.raises(LocalFault, match="not here whole"):
        storage.blobs.read(first.manifest.digest)


@pytest.mark.parametrize("own", [True, False], ids=["own blob", "another's blob"])
def test_a_rotten_chunk_is_named_and_fetched_again(storage: Storage, own: bool) -> None:
    manifest, payload = SMALL.blob(1)
    if own:
        storage.blobs.store_blob(manifest, payload)
    else:
        for chunk in chunks_of((manifest, payload)):
            storage.blobs.store_chunk(chunk)
    path = storage.blobs.path(manifest.digest)
    storage.close()
    path.write_bytes(payload[:CHUNK] + b"\xff" + payload[CHUNK + 1 :])

    with Storage.open(storage.folder) as again:
        assert (manifest, frozenset({0})) in again.recovered().held
        (fault,) = again.faults
        assert manifest.digest.hex() in fault
        assert "chunk 1" in fault
        again.blobs.store_chunk(chunks_of((manifest, payload))[1])
        assert bytes(again.blobs.read(manifest.digest)) == payload


@pytest.mark.parametrize("length", [0, 1, CHUNK, CHUNK + 1])
def test_a_torn_blob_keeps_the_chunks_that_are_whole(storage: Storage, length: int) -> None:
    manifest, payload = SMALL.blob(1)
    storage.blobs.store_blob(manifest, payload)
    path = storage.blobs.path(manifest.digest)
    storage.close()
    path.write_bytes(payload[:length])

    with Storage.open(storage.folder) as again:
        held = dict(again.recovered().held)
        assert held.get(manifest, frozenset()) == frozenset(range(length // CHUNK))
        assert manifest.digest.hex() in "".join(again.faults)
        for chunk in chunks_of((manifest, payload)):
            again.blobs.store_chunk(chunk)
        assert bytes(again.blobs.read(manifest.digest)) == payload


def test_a_blob_with_a_corrupt_manifest_is_dropped_and_reported(storage: Storage) -> None:
    manifest, payload = SMALL.blob(1)
    storage.blobs.store_blob(manifest, payload)
    storage.blobs.path(manifest.digest).with_suffix(".manifest").write_bytes(b"\x95\x00")

    assert manifest not in dict(reopened(storage).held)
    assert [name for name in files(storage) if manifest.digest.hex() in name] == []


def test_leftovers_of_a_crash_are_deleted_at_start(storage: Storage) -> None:
    blob = SMALL.blob(1)[0].digest.hex()
    for leftover in (f"{blob}.blob.new", f"{blob}.manifest.new", f"{blob}.part"):
        (storage.folder / "blobs" / leftover).write_bytes(b"half")
    (storage.work / "output").write_bytes(b"half")

    assert reopened(storage) == SMALL.durable()
    assert len(files(storage)) == 2
    assert list(storage.work.iterdir()) == []


def test_a_mapped_blob_keeps_its_bytes_after_it_is_dropped(storage: Storage) -> None:
    manifest, payload = SMALL.blob(1)
    storage.blobs.store_blob(manifest, payload)
    used = storage.bytes_used
    with storage.blobs.reading((manifest.digest,)):
        mapped = storage.blobs.read(manifest.digest)
        storage.blobs.drop(manifest.digest)
        storage.blobs.drop(name("never held"))

        assert bytes(mapped) == payload
    assert storage.bytes_used == used - manifest.size
    assert manifest not in dict(reopened(storage).held)


def test_a_workers_file_is_moved_into_place_not_copied(storage: Storage) -> None:
    manifest, payload = SMALL.blob(1)
    output = storage.work / "output"
    output.write_bytes(payload)
    inode = output.stat().st_ino
    storage.blobs.place(manifest, output)

    assert storage.blobs.path(manifest.digest).stat().st_ino == inode
    assert not output.exists()
    assert bytes(storage.blobs.read(manifest.digest)) == payload


def test_own_blobs_are_synced_and_others_chunks_are_not(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    for chunk in chunks_of(SMALL.blob(1)):
        storage.blobs.store_chunk(chunk)
    assert synced == []

    manifest, payload = SMALL.blob(2)
    storage.blobs.store_blob(manifest, payload)
    digest = manifest.digest.hex()
    assert synced == [f"{digest}.blob", f"{digest}.manifest", "blobs"]


# --- Damage ----------------------------------------------------------------------------------


def spoil(folder: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(folder / DATABASE) as database:
        assert database.execute(statement, values).rowcount > 0
    database.close()


@pytest.mark.parametrize("kind", ["safety", "block", "ack", "offer", "model", "evidence"])
def test_a_corrupt_record_stops_the_node_and_is_named(storage: Storage, kind: str) -> None:
    blob, other = SMALL.blob(1)[0], SMALL.blob(2)[0]
    offer = SMALL.offer(1, 1, blob)
    evidence = Evidence(offer, SMALL.offer(1, 1, other))
    acks = (SMALL.ack(1, SMALL.offer(0, 1, blob)),)
    storage.records.persist(
        Persist(blocks=(SMALL.block(),), acks=acks, offer=offer, evidence=(evidence,))
    )
    storage.close()
    spoil(
        storage.folder,
        "UPDATE records SET data = CAST(substr(data, 2) || x'00' AS BLOB) WHERE kind = ?",
        kind,
    )
    with (
        Storage.open(storage.folder) as again,
        pytest.raises(LocalFault, match=f"the {kind} record .* is corrupt"),
    ):
        again.recovered()


def test_a_record_in_the_wrong_place_is_corrupt(storage: Storage) -> None:
    """An ack that moved to another slot would let a second one be signed."""
    storage.records.persist(Persist(acks=(SMALL.ack(1, SMALL.offer(0, 1, SMALL.blob(1)[0])),)))
    storage.close()
    spoil(storage.folder, "UPDATE records SET slot = x'920101' WHERE kind = 'ack'")

    with Storage.open(storage.folder) as again, pytest.raises(LocalFault, match="corrupt"):
        again.recovered()


def test_a_missing_safety_record_makes_an_observer_never_a_fresh_one(storage: Storage) -> None:
    storage.records.persist(Persist(record=record(3)))
    storage.close()
    spoil(storage.folder, "DELETE FROM records WHERE kind = 'safety'")

    with Storage.open(storage.folder) as again:
        assert again.recovered().record is None


def test_a_file_that_is_not_a_database_is_reported(storage: Storage) -> None:
    storage.close()
    (storage.folder / DATABASE).write_bytes(b"rubbish" * 1000)

    with pytest.raises(LocalFault, match=DATABASE):
        Storage.open(storage.folder)


def test_a_zeroed_page_of_the_database_is_detected(storage: Storage) -> None:
    for view in range(50):
        storage.records.persist(Persist(blocks=(SMALL.block((SMALL.agg(0, 1),), view=view + 1),)))
    storage.close()
    path = storage.folder / DATABASE
    data = bytearray(path.read_bytes())
    assert len(data) > 6 * 4096
    data[4 * 4096 : 5 * 4096] = bytes(4096)
    path.write_bytes(data)

    with pytest.raises(LocalFault), Storage.open(storage.folder) as again:
        again.recovered()


def rubbish(folder: Path) -> None:
    (folder / DATABASE).write_bytes(b"rubbish" * 1000)


def rotten_page(folder: Path) -> None:
    data = bytearray((folder / DATABASE).read_bytes())
    data[4096 + 100 : 8192] = bytes(4096 - 100)
    (folder / DATABASE).write_bytes(data)


def rotten_record(folder: Path) -> None:
    spoil(folder, "UPDATE records SET checksum = x'00' WHERE kind = 'safety'")


@pytest.mark.parametrize("damage", [rubbish, rotten_page, rotten_record])
def test_the_advice_for_damage_forbids_restoring_a_copy(
    storage: Storage, damage: Callable[[Path], None]
) -> None:
    storage.records.persist(Persist(record=record(1)))
    storage.close()
    damage(storage.folder)

    with pytest.raises(LocalFault) as fault, Storage.open(storage.folder) as again:
        again.recovered()

    assert "never put an older copy back" in str(fault.value)
    assert "defl node start --observer" in str(fault.value)


def log_after_a_kill(storage: Storage, at: float) -> Path:
    """A copy of the folder as a killed process leaves it, with a rotten byte in SQLite's log."""
    for view in range(1, 11):
        storage.records.persist(Persist(record=record(view)))
    copy = storage.folder.with_name("copy")
    shutil.copytree(storage.folder, copy)
    log = copy / f"{DATABASE}-wal"
    data = bytearray(log.read_bytes())
    data[int(at * (len(data) - 1))] ^= 0xFF
    log.write_bytes(data)
    return copy


def test_a_rotten_byte_in_the_log_never_brings_back_an_older_record(storage: Storage) -> None:
    copy = log_after_a_kill(storage, at=0.5)
    with pytest.raises(LocalFault, match="its log breaks off"):
        Storage.open(copy)


def test_a_torn_last_transaction_of_the_log_is_ignored(storage: Storage) -> None:
    """The mark follows a synced transaction, so it still counts the one before."""
    copy = log_after_a_kill(storage, at=1.0)
    mark = Mark(copy / MARK)
    mark.write(9)
    mark.close()
    with Storage.open(copy) as again:
        assert again.recovered().record == record(9)


def test_old_frames_that_a_checkpoint_left_are_not_damage(storage: Storage) -> None:
    storage.records._database.execute("PRAGMA wal_autocheckpoint = 20")
    storage.records.persist(Persist(blocks=tuple(SMALL.block(view=view) for view in range(1, 60))))
    for view in range(1, 31):
        storage.records.persist(Persist(record=record(view)))
        copy = storage.folder.with_name(f"copy{view}")
        shutil.copytree(storage.folder, copy)
        with Storage.open(copy) as again:
            assert again.recovered().record == record(view)


def test_a_lost_database_is_never_recreated(storage: Storage) -> None:
    storage.close()
    (storage.folder / DATABASE).unlink()
    new = (storage.folder, SMALL.federation, SMALL.initial, SMALL.initial_payload)

    with pytest.raises(LocalFault, match="record of what this node signed"):
        Storage.open(storage.folder)
    with pytest.raises(UserError, match="must not be made anew"):
        Storage.create(*new)

    Storage.create(*new, observer=True)
    with Storage.open(storage.folder) as again:
        durable = again.recovered()
    assert durable.record is None
    assert durable.models == ((Round(0), SMALL.initial),)


def test_a_folder_without_a_node_and_one_of_another_federation_are_refused(
    storage: Storage, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="defl node start"):
        Storage.open(tmp_path)
    with pytest.raises(UserError, match="must not be made anew"):
        Storage.create(storage.folder, SMALL.federation, SMALL.initial, SMALL.initial_payload)
    storage.close()
    with pytest.raises(UserError, match="is the state of federation"):
        Storage.open(storage.folder, chain=name("another"))
    Storage.open(storage.folder, chain=SMALL.chain).close()


# --- A full disk -----------------------------------------------------------------------------


def test_a_full_disk_refuses_records_until_there_is_room(storage: Storage) -> None:
    storage.records.persist(Persist(record=record(1)))
    database = storage.records._database
    pages = database.execute("PRAGMA page_count").fetchone()[0]
    database.execute(f"PRAGMA max_page_count = {pages}")
    blocks = tuple(SMALL.block((SMALL.upd(0, 1),), view=view) for view in range(1, 60))
    change = Persist(record=record(2), blocks=blocks)

    with pytest.raises(DiskFull):
        storage.records.persist(change)
    assert storage.recovered().record == record(1)
    assert storage.recovered().blocks == ()

    database.execute("PRAGMA max_page_count = 1000000")
    storage.records.persist(change)
    durable = reopened(storage)
    assert durable.record == record(2)
    assert durable.blocks == blocks


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_full_disk_leaves_no_partial_blob(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, code: int, writes: int
) -> None:
    before = files(storage)
    manifest, payload = SMALL.blob(1)
    turn = count()
    pwrite = os.pwrite

    def full(descriptor: int, data: memoryview, offset: int) -> int:
        if next(turn) >= writes:
            raise OSError(code, os.strerror(code))
        return pwrite(descriptor, data[:20], offset)

    output = storage.work / "output"
    output.write_bytes(payload)
    attempts: list[Callable[[], None]] = [
        lambda: storage.blobs.store_chunk(chunks_of((manifest, payload))[0]),
        lambda: storage.blobs.store_blob(manifest, payload),
        lambda: storage.blobs.place(manifest, output),
    ]
    for attempt in attempts:
        turn = count()
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            with pytest.raises(DiskFull):
                attempt()
        assert files(storage) == before
        with pytest.raises(LocalFault, match="not here"):
            storage.blobs.read_chunk(manifest.digest, 0)
    assert output.read_bytes() == payload
    for attempt in attempts:
        attempt()
    assert bytes(storage.blobs.read(manifest.digest)) == payload


def test_a_disk_that_is_full_at_the_first_chunk_leaves_nothing(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(storage)
    pwrite = os.pwrite

    def full(descriptor: int, data: memoryview, offset: int) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".part"):
            raise OSError(errno.ENOSPC, "full")
        return pwrite(descriptor, data, offset)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(DiskFull):
            storage.blobs.store_chunk(chunks_of(SMALL.blob(1))[0])
    assert files(storage) == before


def test_a_full_disk_during_a_fetch_keeps_the_chunks_already_stored(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = chunks_of(SMALL.blob(1))
    storage.blobs.store_chunk(first)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(DiskFull):
            storage.blobs.store_chunk(second)
    assert (first.manifest, frozenset({0})) in reopened(storage).held


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

# Persists record after record and says so after each; view i with ack i and blob i mod 5.
WRITER = """
import sys
from pathlib import Path
from test_storage import SMALL, acknowledged_step
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
