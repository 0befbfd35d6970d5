"""Damage to a node's records is reported, and never brings back an older one."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from defl.errors import DiskFull, LocalFault
from defl.messages import Evidence
from defl.node.store.mark import Mark
from defl.node.store.records import DATABASE, MARK
from defl.node.store.storage import Storage
from defl.output import Persist
from support.stores import (
    SMALL,
    new_storage,
    record,
    reopened,
    spoil,
)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    with new_storage(tmp_path / "state") as opened:
        yield opened


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


def test_a_missing_safety_record_makes_the_node_an_observer_not_a_new_signer(
    storage: Storage,
) -> None:
    storage.records.persist(Persist(record=record(3)))
    storage.close()
    spoil(storage.folder, "DELETE FROM records WHERE kind = 'safety'")

    with Storage.open(storage.folder) as again:
        assert again.recovered().record is None


def test_a_file_that_is_not_a_database_is_reported(storage: Storage) -> None:
    storage.close()
    (storage.folder / DATABASE).write_bytes(b"garbage" * 1000)

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


def overwrite(folder: Path) -> None:
    (folder / DATABASE).write_bytes(b"garbage" * 1000)


def rotten_page(folder: Path) -> None:
    data = bytearray((folder / DATABASE).read_bytes())
    data[4096 + 100 : 8192] = bytes(4096 - 100)
    (folder / DATABASE).write_bytes(data)


def rotten_record(folder: Path) -> None:
    spoil(folder, "UPDATE records SET checksum = x'00' WHERE kind = 'safety'")


@pytest.mark.parametrize("damage", [overwrite, rotten_page, rotten_record])
def test_the_advice_for_damage_forbids_restoring_a_copy(
    storage: Storage, damage: Callable[[Path], None]
) -> None:
    storage.records.persist(Persist(record=record(1)))
    storage.close()
    damage(storage.folder)

    with pytest.raises(LocalFault) as fault, Storage.open(storage.folder) as again:
        again.recovered()

    assert "never restore an older copy" in str(fault.value)
    assert "defl node start --observer" in str(fault.value)


def log_after_a_kill(storage: Storage, at: float) -> Path:
    """A copy of the folder as a killed process leaves it, with a corrupt byte in SQLite's log."""
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
