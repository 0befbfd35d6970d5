"""The mark detects a database that lost writes, and never mistakes a crash for that."""

import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from defl.ids import NodeId
from defl.node.store import mark as mark_module
from defl.node.store.mark import Mark
from defl.node.store.records import DATABASE, MARK
from defl.node.store.storage import Storage
from defl.output import Durable, Event, Persist, Received, Tick
from defl.participant import Participant
from defl.recall import NOTHING_SEEN
from support.stores import SMALL, record, spoil
from test_storage import WRITER, python

VIEWS = 10


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    path = tmp_path / "state"
    Storage.create(path, SMALL.federation, (SMALL.initial, SMALL.initial_payload))
    with Storage.open(path, reserve_bytes=0) as opened:
        opened.recovered()
        yield opened


def copy_of(storage: Storage, name: str = "copy") -> Path:
    """A copy of the folder, as a killed process leaves it."""
    copy = storage.folder.with_name(name)
    shutil.copytree(storage.folder, copy)
    return copy


def written(storage: Storage) -> Path:
    for view in range(1, VIEWS + 1):
        storage.records.persist(Persist(record=record(view)))
    return copy_of(storage)


def reopened(folder: Path) -> tuple[Durable, tuple[str, ...]]:
    with Storage.open(folder, reserve_bytes=0) as again:
        return again.recovered(), again.faults


def cut_log(folder: Path, keep: float) -> None:
    log = folder / f"{DATABASE}-wal"
    os.truncate(log, int(log.stat().st_size * keep))


def zero_log(folder: Path, keep: float) -> None:
    log = folder / f"{DATABASE}-wal"
    data = log.read_bytes()
    kept = int(len(data) * keep)
    log.write_bytes(data[:kept] + bytes(len(data) - kept))


def delete_log(folder: Path) -> None:
    (folder / f"{DATABASE}-wal").unlink()


LOSSES: dict[str, Callable[[Path], None]] = {
    "log deleted": delete_log,
    "log emptied": lambda folder: cut_log(folder, 0.0),
    "log cut in the middle": lambda folder: cut_log(folder, 0.5),
    "last writes cut off": lambda folder: cut_log(folder, 0.85),
    "last write zeroed": lambda folder: zero_log(folder, 0.95),
    "end of the log zeroed": lambda folder: zero_log(folder, 0.6),
    "log of zeros": lambda folder: zero_log(folder, 0.0),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_log_makes_the_node_an_observer_and_it_stays_one(
    storage: Storage,
    loss: str,
) -> None:
    copy = written(storage)
    LOSSES[loss](copy)

    durable, _ = reopened(copy)

    assert durable.record is not None
    assert durable.record.last_voted_view < VIEWS
    assert "older than its high-water mark" in (durable.record.observing or "")
    assert reopened(copy)[0].record == durable.record


def statements_of(durable: Durable) -> set[str]:
    """The statements that a node with this state signs for a proposal and at its timeout."""
    participant = Participant(SMALL.federation, NodeId(0), SMALL.signers[0], durable)
    proposal = SMALL.proposal(SMALL.block((SMALL.agg(1, 1),)))
    events: list[tuple[Event, float]] = [
        (Tick(), 0.0),
        *((Received(NodeId(peer), NOTHING_SEEN), 0.1) for peer in (1, 2, 3)),
        (Received(proposal.block.header.author, proposal), 0.2),
        (Tick(), 1000.0),
    ]
    outputs = [participant.handle(event, now) for event, now in events]
    sent = [type(item.message).__name__ for output in outputs for item in output.send]
    return {"Vote", "Timeout"} & set(sent)


def test_a_node_that_lost_writes_signs_nothing(storage: Storage) -> None:
    storage.records.persist(Persist(record=replace(SMALL.durable().record, observing=None)))
    whole, cut = copy_of(storage, "whole"), copy_of(storage, "cut")
    delete_log(cut)

    assert statements_of(reopened(whole)[0]) == {"Vote", "Timeout"}
    assert statements_of(reopened(cut)[0]) == set()


def test_an_old_database_in_a_newer_folder_is_detected(
    storage: Storage,
) -> None:
    storage.records.persist(Persist(record=record(1)))
    storage.close()
    old = (storage.folder / DATABASE).read_bytes()
    with Storage.open(storage.folder, reserve_bytes=0) as again:
        again.records.persist(Persist(acks=(SMALL.ack(1, SMALL.offer(0, 1, SMALL.blob(1)[0])),)))
    (storage.folder / DATABASE).write_bytes(old)

    durable, _ = reopened(storage.folder)

    assert durable.record is not None
    assert "1 of its writes are lost" in (durable.record.observing or "")


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_at_any_time_is_not_mistaken_for_lost_writes(
    storage: Storage,
    seed: int,
) -> None:
    storage.close()
    folder = storage.folder
    writer = python(WRITER, folder)
    assert writer.stdout is not None
    last = random.Random(seed).randrange(5, 80)  # noqa: S311
    for line in writer.stdout:
        if int(line) == last:
            writer.send_signal(signal.SIGKILL)
    writer.communicate(timeout=30)

    durable, faults = reopened(folder)

    assert durable.record is not None
    assert (durable.record.observing, faults) == (None, ())


def test_a_crash_between_database_and_mark_is_not_mistaken_for_lost_writes(
    storage: Storage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When the mark is written, the database is already ahead."""
    storage.records.persist(Persist(record=record(1)))
    copies: list[Path] = []
    write = Mark.write

    def crash_before(mark: Mark, writes: int) -> None:
        copies.append(copy_of(storage, f"copy{writes}"))
        write(mark, writes)

    monkeypatch.setattr(Mark, "write", crash_before)
    storage.records.persist(Persist(record=record(2)))
    monkeypatch.undo()

    assert reopened(copies[0]) == (replace(SMALL.durable(), record=record(2)), ())


def test_a_power_cut_that_loses_marks_is_not_mistaken_for_lost_writes(
    storage: Storage,
) -> None:
    storage.records.persist(Persist(record=record(1)))
    old = (storage.folder / MARK).read_bytes()
    copy = written(storage)
    (copy / MARK).write_bytes(old)

    assert reopened(copy) == (replace(SMALL.durable(), record=record(VIEWS)), ())


@pytest.mark.parametrize("damage", [None, b"", b"rubbish", b"defl-mark-1 00000000000000000099 "])
def test_a_missing_or_damaged_mark_is_reported_once_and_stops_nothing(
    storage: Storage,
    damage: bytes | None,
) -> None:
    copy = written(storage)
    (copy / MARK).unlink()
    if damage is not None:
        (copy / MARK).write_bytes(damage)

    durable, faults = reopened(copy)

    assert durable.record == record(VIEWS)
    assert "missing or damaged" in "".join(faults)
    with Storage.open(copy, reserve_bytes=0) as again:
        again.records.persist(Persist(record=record(VIEWS + 1)))
    assert reopened(copy) == (replace(SMALL.durable(), record=record(VIEWS + 1)), ())


def test_a_state_without_a_mark_gets_one(
    storage: Storage,
) -> None:
    storage.close()
    spoil(storage.folder, "DELETE FROM records WHERE kind = 'writes'")
    (storage.folder / MARK).unlink()

    assert reopened(storage.folder) == (SMALL.durable(), ())
    with Storage.open(storage.folder, reserve_bytes=0) as again:
        again.records.persist(Persist(record=record(1)))
    mark = Mark(storage.folder / MARK)
    assert mark.read() == 1
    mark.close()


def test_marks_are_synced_once_a_second(
    storage: Storage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, syncs = 1000.0, list[float]()
    monkeypatch.setattr(mark_module.time, "monotonic", lambda: now)
    monkeypatch.setattr(Mark, "sync", lambda _: syncs.append(now))
    for step in range(1, 31):
        storage.records.persist(Persist(record=record(step)))
        now += 0.125

    assert syncs == [1000.0, 1001.0, 1002.0, 1003.0]
