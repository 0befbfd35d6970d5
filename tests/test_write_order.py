"""A node's own blobs are in place before their use, and synced before anything relies on them."""

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from defl.errors import LocalFault
from defl.node.report.log import Log
from defl.node.store.storage import Storage
from defl.node.store.writing import Writing
from support.builders import Small

SMALL = Small(real=False)
AGGREGATE, UPDATE = SMALL.blob(1), SMALL.blob(2)
KINDS = ("blob", "manifest")


class Syncs:
    """The names of synced files; each sync blocks until the test releases it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.go_on = threading.Event()
        self.failing = False
        self._fsync = os.fsync

    def __call__(self, descriptor: int) -> None:
        self.go_on.wait()
        if self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._fsync(descriptor)
        self.done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    Storage.create(tmp_path / "state", SMALL.federation, SMALL.initial, SMALL.initial_payload)
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


def test_an_update_waits_for_the_sync_of_its_aggregate_and_training_does_not(
    storage: Storage, syncs: Syncs
) -> None:
    async def scenario() -> None:
        writing = Writing(storage, Log())
        await writing.place_aggregate(AGGREGATE[0], storage.work / "aggregate")
        assert bytes(storage.blobs.read(AGGREGATE[0].digest)) == AGGREGATE[1]
        assert syncs.done == []

        placed = asyncio.create_task(writing.place_update(UPDATE[0], storage.work / "update"))
        await asyncio.sleep(0)
        assert not placed.done()
        syncs.go_on.set()
        await placed
        writing.close()

    asyncio.run(scenario())
    expected = [f"{blob[0].digest.hex()}.{kind}" for blob in (AGGREGATE, UPDATE) for kind in KINDS]
    assert [synced for synced in syncs.done if synced != "blobs"] == expected
    assert syncs.done[-1] == "blobs"  # the folder, with the new names


def test_no_update_is_placed_after_the_sync_of_its_aggregate_failed(
    storage: Storage, syncs: Syncs
) -> None:
    syncs.failing = True
    syncs.go_on.set()

    async def scenario() -> None:
        writing = Writing(storage, Log())
        await writing.place_aggregate(AGGREGATE[0], storage.work / "aggregate")
        for _ in range(2):
            with pytest.raises(LocalFault, match="sync blob"):
                await writing.place_update(UPDATE[0], storage.work / "update")
        writing.close()

    asyncio.run(scenario())
    assert (storage.work / "update").exists()
    with pytest.raises(LocalFault, match="not complete here"):
        storage.blobs.path(UPDATE[0].digest)
