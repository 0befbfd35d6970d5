"""Bytes that changed on the disk are never served, and are fetched again."""

import asyncio
import errno
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from defl.errors import ChunkRotten, LocalFault
from defl.ids import Digest, NodeId, Round
from defl.lab.experiments.processes import Nodes
from defl.messages import Chunk, ChunkRequest, NotHeld
from defl.node.net.framing import Lane
from defl.node.store import blobs
from defl.node.store.serving import Serving
from defl.node.store.storage import Storage
from defl.output import ChunkLost, Envelope, ServeChunk, StoreChunk, Tick
from defl.participant import Participant
from support.benches import PoolBench, acks_sent, chunk_requests, sent
from support.builders import Small, nodes
from support.in_process_node import InProcessNode, Member, until

SMALL = Small(real=False)  # a blob has two chunks: 256 and 144 bytes
CHUNK = SMALL.federation.chunk_bytes
AUTHOR, OTHER = NodeId(1), NodeId(2)
BLOB, BYTES = SMALL.blob(1)


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    """Holds one blob whose chunks are all old enough to be hashed again."""
    monkeypatch.setattr(blobs, "SOUND_FOR_S", 0.0)
    Storage.create(tmp_path / "state", SMALL.federation, (SMALL.initial, SMALL.initial_payload))
    with Storage.open(tmp_path / "state", reserve_bytes=0) as opened:
        opened.recovered()
        opened.blobs.store_blob(BLOB, BYTES)
        yield opened


def rot(path: Path, at: int) -> None:
    """Flip one bit."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def never(*_: object) -> NoReturn:
    raise AssertionError("no peer is served here")


def held(storage: Storage) -> frozenset[int]:
    return dict(storage.blobs.held)[BLOB]


# --- The disk --------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["a bit", "cut off"])
def test_a_rotten_chunk_is_discarded_instead_of_read(storage: Storage, damage: str) -> None:
    path = storage.blobs.path(BLOB.digest)
    if damage == "a bit":
        rot(path, CHUNK)
    else:
        os.truncate(path, CHUNK + 1)

    with pytest.raises(ChunkRotten, match=f"blob {BLOB.digest.hex()} is corrupt in chunk 1"):
        storage.blobs.read_chunk(BLOB.digest, 1)

    assert held(storage) == {0}
    assert storage.blobs.read_chunk(BLOB.digest, 0) == BYTES[:CHUNK]
    with pytest.raises(LocalFault, match="not complete here"):
        storage.blobs.path(BLOB.digest)
    with pytest.raises(LocalFault, match="is not held") as again:
        storage.blobs.read_chunk(BLOB.digest, 1)
    assert not isinstance(again.value, ChunkRotten), "it is reported once"


def test_a_discarded_chunk_can_be_stored_again(storage: Storage) -> None:
    for index in (0, 1):
        rot(storage.blobs._path(BLOB.digest, "part" if index else "blob"), index * CHUNK)
        with pytest.raises(ChunkRotten):
            storage.blobs.read_chunk(BLOB.digest, index)
    assert held(storage) == frozenset()

    for index in (1, 0):
        data = BYTES[index * CHUNK : (index + 1) * CHUNK]
        storage.blobs.store_chunk(StoreChunk(BLOB, index, data))

    assert bytes(storage.blobs.read(BLOB.digest)) == BYTES
    assert storage.blobs.read_chunk(BLOB.digest, 1) == BYTES[CHUNK:]


def test_a_discarded_chunk_is_missing_after_a_restart_too(storage: Storage) -> None:
    rot(storage.blobs.path(BLOB.digest), 0)
    with pytest.raises(ChunkRotten):
        storage.blobs.read_chunk(BLOB.digest, 0)
    storage.close()

    with Storage.open(storage.folder) as again:
        assert (BLOB, frozenset({1})) in again.recovered().held


def test_a_chunk_that_the_disk_cannot_read_is_rotten(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(ChunkRotten):
        storage.blobs.read_chunk(BLOB.digest, 0)


def test_an_error_unrelated_to_the_chunk_does_not_discard_it(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short_of_memory(*_: object) -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", short_of_memory)
        with pytest.raises(LocalFault, match="cannot read chunk 0"):
            storage.blobs.read_chunk(BLOB.digest, 0)
    assert storage.blobs.read_chunk(BLOB.digest, 0) == BYTES[:CHUNK]


def test_a_blob_rewritten_during_a_read_is_kept(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(*_: object) -> int:
        storage.blobs.drop(BLOB.digest)
        storage.blobs.store_blob(BLOB, BYTES)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", meanwhile)
        with pytest.raises(LocalFault) as fault:
            storage.blobs.read_chunk(BLOB.digest, 0)
    assert not isinstance(fault.value, ChunkRotten)
    assert bytes(storage.blobs.read(BLOB.digest)) == BYTES


def test_a_stale_blob_is_checked_once_before_work_uses_it(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert storage.blobs.stale([BLOB.digest]) == [BLOB.digest]
    monkeypatch.setattr(blobs, "SOUND_FOR_S", 3600.0)
    assert storage.blobs.stale([BLOB.digest]) == []
    monkeypatch.setattr(blobs, "SOUND_FOR_S", 0.0)
    rot(storage.blobs.path(BLOB.digest), CHUNK)
    with pytest.raises(ChunkRotten) as rotten:
        storage.blobs.check([BLOB.digest])
    assert (rotten.value.digest, rotten.value.index) == (BLOB.digest, 1)
    assert pickle.loads(pickle.dumps(rotten.value)).index == 1  # noqa: S301 - our own bytes


def test_only_old_chunks_are_hashed_before_they_are_served(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[bytes] = []

    def hashing(data: memoryview) -> Digest:
        hashed.append(bytes(data))
        return BLOB.chunks[0]

    monkeypatch.setattr(blobs, "digest_of", hashing)
    monkeypatch.setattr(blobs, "SOUND_FOR_S", 3600.0)
    storage.blobs.read_chunk(BLOB.digest, 0)
    assert hashed == []
    monkeypatch.setattr(blobs, "SOUND_FOR_S", 0.0)
    storage.blobs.read_chunk(BLOB.digest, 0)
    assert hashed == [BYTES[:CHUNK]]


def test_a_rotten_chunk_is_never_served_and_is_reported_once(
    storage: Storage,
) -> None:
    rot(storage.blobs.path(BLOB.digest), 0)
    reported: list[tuple[bytes, int]] = []

    async def scenario() -> None:
        serving = Serving(
            storage.blobs.read_chunk,
            lambda rotten: reported.append((rotten.digest, rotten.index)),
            send=never,
            drained=never,
        )
        asking = [serving.frame(BLOB.digest, 0) for _ in range(5)]
        answers = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(answer, LocalFault) for answer in answers)
        with pytest.raises(LocalFault):
            await serving.frame(BLOB.digest, 0)
        assert await serving.frame(BLOB.digest, 1) == BYTES[CHUNK:]

    asyncio.run(scenario())
    assert reported == [(BLOB.digest, 0)]


# --- The pool --------------------------------------------------------------------------------


def test_a_lost_chunk_is_fetched_again_and_not_served_meanwhile() -> None:
    bench = PoolBench(SMALL)
    (ack,) = bench.acknowledge(AUTHOR, 1, BLOB, BYTES).acks
    del bench.disk.blobs[BLOB.digest].chunks[1]

    bench.pool.refetch(BLOB.digest, (1,))

    assert {chunk for _, chunk in chunk_requests(bench.settle())} == {1}
    assert not bench.pool.has(BLOB.digest)
    assert sent(bench.receive(OTHER, ChunkRequest(BLOB.digest, 1)), NotHeld)
    assert bench.receive(OTHER, ChunkRequest(BLOB.digest, 0)).send == [
        ServeChunk(OTHER, BLOB.digest, 0)
    ]
    assert acks_sent(bench.chunk(3, BLOB.digest, 1, BYTES[256:])) == [ack]
    assert bench.pool.has(BLOB.digest)
    assert bench.disk.read(BLOB.digest) == BYTES


def test_a_chunk_lost_during_a_fetch_is_fetched_again() -> None:
    bench = PoolBench(SMALL)
    bench.pool.need((Round(1), AUTHOR), BLOB.digest, nodes(1, 2))
    bench.receive(AUTHOR, SMALL.offer(1, 1, BLOB))
    bench.chunk(1, BLOB.digest, 0, BYTES[:256])

    bench.pool.refetch(BLOB.digest, (0,))

    assert {chunk for _, chunk in chunk_requests(bench.settle())} == {0, 1}
    bench.deliver(2, BLOB, BYTES)
    assert bench.pool.has(BLOB.digest)


def test_a_lost_chunk_of_a_dropped_blob_is_not_fetched() -> None:
    bench = PoolBench(SMALL)

    bench.pool.refetch(BLOB.digest, (0,))

    assert bench.settle().send == []
    assert bench.pool.stored["fetches"] == 0


def test_a_participant_requests_a_chunk_that_its_driver_lost() -> None:
    me = Participant(SMALL.federation, NodeId(0), SMALL.signers[0], SMALL.durable())
    me.handle(Tick(), 0.0)

    output = me.handle(ChunkLost(SMALL.initial.digest, 1), 0.0)

    questions = [item.message for item in output.send if isinstance(item, Envelope)]
    assert ChunkRequest(SMALL.initial.digest, 1) in questions


# --- A node ----------------------------------------------------------------------------------


def test_a_node_does_not_train_from_a_rotten_model_but_fetches_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "SOUND_FOR_S", 0.0)
    folders = Nodes(tmp_path / "federation", 4, 1, chunk_bytes=1024).local.nodes

    async def scenario() -> None:
        here, member = InProcessNode(folders[2]), Member(folders[1])
        victim, model = here.node.me, here.node.federation.initial
        path = here.node.storage.blobs.path(model)
        good = path.read_bytes()[:1024]
        rot(path, 500)
        async with here.running(), member.connected(victim):
            await until(lambda: here.logged("damage found"))
            await until(
                lambda: ChunkRequest(model, 0) in member.messages(ChunkRequest, sender=victim)
            )
            assert not here.logged("trained")
            member.send(victim, Chunk(model, 0, memoryview(good)), Lane.WEIGHTS)
            await until(lambda: here.logged("trained"))

    asyncio.run(scenario())


def test_a_node_logs_a_rotten_chunk_and_fetches_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "SOUND_FOR_S", 0.0)
    folders = Nodes(tmp_path / "federation", 4, 1, chunk_bytes=1024).local.nodes

    async def scenario() -> None:
        here, member = InProcessNode(folders[2]), Member(folders[1])
        victim, model = here.node.me, here.node.federation.initial
        path = here.node.storage.blobs.path(model)
        good = path.read_bytes()[1024:2048]
        rot(path, 1500)
        async with here.running(), member.connected(victim):
            member.send(victim, ChunkRequest(model, 1))
            await until(lambda: member.messages(NotHeld, sender=victim))
            assert not member.messages(Chunk, sender=victim)
            (line,) = here.logged("damage found")
            assert f"{model.hex()} is corrupt in chunk 1" in line["what"]

            await until(
                lambda: ChunkRequest(model, 1) in member.messages(ChunkRequest, sender=victim)
            )
            member.send(victim, Chunk(model, 1, memoryview(good)), Lane.WEIGHTS)
            await until(lambda: here.node.participant.pool.has(model))
            await until(path.exists)
            member.send(victim, ChunkRequest(model, 1))
            await until(lambda: member.messages(Chunk, sender=victim))
            (chunk,) = member.messages(Chunk, sender=victim)
            assert isinstance(chunk, Chunk)
            assert chunk.data == good
        assert not here.node.measures.peer_faults

    asyncio.run(scenario())
