"""A node's own blobs on a real disk: in place before their use, synced before they are relied on.

The order is duty.py's; here it meets real threads and files.
"""

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from defl.duty import (
    Action,
    Completion,
    Deliver,
    DropBlob,
    Duty,
    PlaceBlob,
    SyncBlob,
    Worked,
)
from defl.errors import DiskFull, LocalFault
from defl.ids import NO_DIGEST, Round
from defl.messages import Manifest
from defl.node.report.log import Log
from defl.node.store.blobs import Blobs
from defl.node.store.storage import Storage
from defl.node.store.writing import Writing
from defl.output import (
    Aggregate,
    Aggregated,
    BlobLost,
    Event,
    Output,
    Train,
    Trained,
    Work,
    WorkFailed,
)
from support.builders import Small
from support.in_process_node import until

SMALL = Small(real=False)
AGGREGATE, UPDATE = SMALL.blob(1), SMALL.blob(2)
KINDS = ("blob", "manifest")


def unexpected(fault: BaseException) -> None:
    raise fault


class Syncs:
    """The names of synced files; each sync blocks until the test releases it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.go_on = threading.Event()
        self.failing: int | None = None  # the error of the next sync
        self._fsync = os.fsync

    def __call__(self, descriptor: int) -> None:
        self.go_on.wait()
        code, self.failing = self.failing, None
        if code is not None:
            raise OSError(code, os.strerror(code))
        self._fsync(descriptor)
        self.done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    Storage.create(tmp_path / "state", SMALL.federation, (SMALL.initial, SMALL.initial_payload))
    with Storage.open(tmp_path / "state", reserve_bytes=0) as opened:
        opened.recovered()
        (opened.work / "aggregate").write_bytes(AGGREGATE[1])
        (opened.work / "update").write_bytes(UPDATE[1])
        yield opened


@pytest.fixture
def syncs(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> Syncs:
    watched = Syncs()
    monkeypatch.setattr(os, "fsync", watched)
    return watched


class Trainer:
    """A duty whose writes are real; it has aggregated a model and trained an update from it."""

    def __init__(self, storage: Storage) -> None:
        files = {
            AGGREGATE[0].digest: storage.work / "aggregate",
            UPDATE[0].digest: storage.work / "update",
        }
        self._duty = Duty()
        self.delivered: list[Event] = []
        self.writing = Writing(storage, lambda manifest: files[manifest.digest], Log())
        self.writing.start(self.complete, fail=unexpected)

    def complete(self, completion: Completion) -> None:
        self._do(self._duty.done(completion))

    def work(self, work: Work, result: Aggregated | Trained) -> None:
        assert self._duty.take(Output(work=(work,))) == [work]
        self.complete(Worked(work, result))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Deliver):
                self.delivered.append(action.event)
            elif isinstance(action, PlaceBlob | SyncBlob | DropBlob):
                self.writing.begin(action)


AGGREGATE_WORK = Aggregate(Round(1), SMALL.initial.digest, (), NO_DIGEST, 1)
TRAIN_WORK = Train(Round(2), AGGREGATE[0].digest)


def test_an_update_waits_for_the_sync_of_its_aggregate_and_training_does_not(
    storage: Storage, syncs: Syncs
) -> None:
    async def scenario() -> None:
        trainer = Trainer(storage)
        aggregated, trained = Aggregated(Round(1), AGGREGATE[0]), Trained(Round(2), UPDATE[0])
        trainer.work(AGGREGATE_WORK, aggregated)
        await until(lambda: trainer.delivered)
        assert trainer.delivered == [aggregated]
        assert bytes(storage.blobs.read(AGGREGATE[0].digest)) == AGGREGATE[1]
        assert syncs.done == []

        trainer.work(TRAIN_WORK, trained)
        await asyncio.sleep(0)
        assert trainer.delivered == [aggregated]
        syncs.go_on.set()
        await until(lambda: trainer.delivered == [aggregated, trained])
        trainer.writing.close()

    asyncio.run(scenario())
    expected = [f"{blob[0].digest.hex()}.{kind}" for blob in (AGGREGATE, UPDATE) for kind in KINDS]
    assert [synced for synced in syncs.done if synced != "blobs"] == expected
    assert syncs.done[-1] == "blobs"  # the folder, with the new names


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_after_a_failed_sync_the_update_is_not_offered_and_the_suspect_blob_is_gone(
    storage: Storage, syncs: Syncs, code: int
) -> None:
    """The system reports a failure once, so not even that of a full disk is worth another try."""
    syncs.failing = code
    syncs.go_on.set()

    async def scenario() -> list[Event]:
        trainer = Trainer(storage)
        trainer.work(AGGREGATE_WORK, Aggregated(Round(1), AGGREGATE[0]))
        trainer.work(TRAIN_WORK, Trained(Round(2), UPDATE[0]))
        await until(lambda: len(trainer.delivered) == 3)
        trainer.writing.close()
        return trainer.delivered

    delivered = asyncio.run(scenario())
    assert BlobLost(AGGREGATE[0].digest) in delivered
    (failed,) = (event for event in delivered if isinstance(event, WorkFailed))
    assert (failed.work, failed.made) == (TRAIN_WORK, UPDATE[0].digest)
    assert "sync blob" in failed.reason
    with pytest.raises(LocalFault, match="not complete here"):
        storage.blobs.path(AGGREGATE[0].digest)


def test_a_result_that_cannot_be_placed_leaves_no_file(storage: Storage) -> None:
    (storage.work / "update").write_bytes(b"too short")

    async def scenario() -> list[Event]:
        trainer = Trainer(storage)
        trainer.work(TRAIN_WORK, Trained(Round(2), UPDATE[0]))
        await until(lambda: trainer.delivered)
        trainer.writing.close()
        return trainer.delivered

    (failed,) = asyncio.run(scenario())
    assert isinstance(failed, WorkFailed)
    assert not (storage.work / "update").exists()


def test_a_write_that_a_full_disk_delays_is_given_up_when_the_node_stops(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_blobs: Blobs, _manifest: Manifest, _payload: Path) -> None:
        raise DiskFull("no room")

    monkeypatch.setattr(Blobs, "place", full)
    monkeypatch.setattr("defl.node.store.writing.RETRY_S", 0.0)
    errors: list[dict[str, object]] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: errors.append(context))
        trainer = Trainer(storage)
        trainer.work(TRAIN_WORK, Trained(Round(2), UPDATE[0]))
        await until(lambda: trainer.writing.disk_full)
        trainer.writing.close()
        for _ in range(3):  # the next attempt is due at once
            await asyncio.sleep(0)

    asyncio.run(scenario())
    assert errors == []
