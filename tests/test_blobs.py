"""Blobs as files: reused, resumed after a restart, and intact after a crash or on a full disk."""

import errno
import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from defl.errors import DiskFull, LocalFault
from defl.node.store.storage import Storage
from support.builders import name
from support.stores import (
    CHUNK,
    SMALL,
    chunks_of,
    new_storage,
    reopened,
)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    with new_storage(tmp_path / "state") as opened:
        yield opened


def files(storage: Storage) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (storage.folder / "blobs").iterdir()}


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


def test_a_missing_chunk_is_never_served(storage: Storage) -> None:
    first, second = chunks_of(SMALL.blob(1))
    storage.blobs.store_chunk(second)

    with pytest.raises(LocalFault, match="chunk 0 of blob"):
        storage.blobs.read_chunk(first.manifest.digest, 0)
    with pytest.raises(LocalFault, match="not complete here"):
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
    (storage.work / "output-7").write_bytes(b"half")

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


def test_an_equal_blob_that_is_placed_again_leaves_the_first_where_it_is(
    storage: Storage,
) -> None:
    """The first is synced and may be offered; in its place the copy could be lost."""
    manifest, payload = SMALL.blob(1)
    storage.blobs.store_blob(manifest, payload)
    inode = storage.blobs.path(manifest.digest).stat().st_ino
    output = storage.work / "output"
    output.write_bytes(payload)
    storage.blobs.place(manifest, output)
    assert storage.blobs.path(manifest.digest).stat().st_ino == inode
    assert not output.exists()


def test_a_blob_that_lacks_a_rotten_chunk_can_be_synced(storage: Storage) -> None:
    """Else the training that read it would count as failed."""
    manifest, payload = SMALL.blob(1)
    first, *_ = chunks_of((manifest, payload))
    storage.blobs.store_chunk(first)
    storage.blobs.sync(manifest.digest)


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


# --- A full disk -----------------------------------------------------------------------------


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
        with pytest.raises(LocalFault, match="not held"):
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
