"""Without free file descriptors, whatever needs one waits, and the rest of the node keeps running.

The EMFILE errors are real: the limit of this process is set to the descriptors it has open.
"""

import asyncio
import contextlib
import io
import json
import os
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from defl.consensus.safety import first_record
from defl.duty import Completion, Persisted, PlaceBlob, WriteRecords
from defl.errors import NoDescriptors, WorkerFailed
from defl.ids import Digest, NodeId
from defl.lab.experiments.processes import Nodes
from defl.messages import Chunk, ChunkRequest, NotHeld
from defl.node.store import writing
from defl.node.store.blobs import Head
from defl.node.store.database import connect
from defl.node.store.storage import Storage
from defl.node.store.writing import Writing
from defl.output import Persist, StoreChunk
from support.builders import Small
from support.in_process_node import InProcessNode, Member, until
from support.logs import log_to
from support.transports import pair

SMALL = Small(real=False)
BLOB, BYTES = SMALL.blob(1)
CHUNKS = [
    StoreChunk(BLOB, index, BYTES[start : start + SMALL.federation.chunk_bytes])
    for index, start in enumerate(range(0, len(BYTES), SMALL.federation.chunk_bytes))
]


def unexpected(fault: BaseException) -> None:
    raise fault


@contextlib.contextmanager
def none_left() -> Iterator[Callable[[], None]]:
    """Yields a function that takes what others have closed since."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)  # the lowest free one
    os.close(free)
    taken: list[int] = []

    def take_all() -> None:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))

    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        take_all()
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        yield take_all
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    Storage.create(tmp_path / "state", SMALL.federation, (SMALL.initial, SMALL.initial_payload))
    with Storage.open(tmp_path / "state", reserve_bytes=0) as opened:
        opened.recovered()
        (opened.work / "update").write_bytes(BYTES)
        yield opened


@pytest.mark.parametrize("kind", ["a peer's chunk", "an own update"])
def test_a_write_waits_for_a_file_descriptor_and_loses_nothing(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(writing, "RETRY_S", 0.0)
    lines = io.StringIO()

    async def scenario() -> None:
        done: list[Completion] = []
        writes = Writing(storage, lambda _: storage.work / "update", log_to(lines))
        writes.start(done.append, fail=unexpected)
        begun = [PlaceBlob(BLOB)] if kind == "an own update" else CHUNKS
        with none_left():
            for write in begun:
                writes.begin(write)
            await until(lambda: writes.no_descriptors)
            assert not writes.disk_full
            # Records need no new file, so voting continues.
            record = first_record(SMALL.epoch, SMALL.genesis_qc)
            writes.begin(WriteRecords((Persist(record=record),)))
            await until(lambda: done)
            assert done == [Persisted()]
        await until(lambda: len(done) == 1 + len(begun))
        assert not writes.no_descriptors
        writes.close()

    asyncio.run(scenario())
    assert bytes(storage.blobs.read(BLOB.digest)) == BYTES
    begin, end = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert begin["event"].startswith("too many open files")
    assert end["event"] == "files can be opened again"


def reading_a_chunk(storage: Storage) -> None:
    storage.blobs.read_chunk(SMALL.initial.digest, 0)


def mapping_a_blob(storage: Storage) -> None:
    storage.blobs.read(SMALL.initial.digest)


def opening_a_database(storage: Storage) -> None:
    connect(storage.folder / "another.db").close()


@pytest.mark.parametrize(
    "attempt", [reading_a_chunk, mapping_a_blob, opening_a_database], ids=lambda a: a.__name__
)
def test_nothing_is_damaged_when_a_file_cannot_be_opened(
    storage: Storage, attempt: Callable[[Storage], None]
) -> None:
    with none_left(), pytest.raises(NoDescriptors):
        attempt(storage)
    attempt(storage)


@pytest.mark.usefixtures("on_both_loops")
def test_connections_wait_in_the_kernel_until_they_can_be_accepted() -> None:
    async def scenario() -> None:
        pauses = asyncio.Semaphore(0)

        async def pause(_: float) -> None:
            pauses.release()
            await asyncio.sleep(0)

        async with pair(second={"wait": pause}) as (_, b):
            with socket.socket() as caller:
                caller.setblocking(False)
                with none_left():
                    with contextlib.suppress(BlockingIOError):
                        caller.connect(b.transport.address)
                    for _ in range(3):
                        await pauses.acquire()
                    assert b.transport.unauthenticated == 0
                await b.until(lambda: b.transport.unauthenticated == 1)

    asyncio.run(scenario())


@pytest.mark.usefixtures("on_both_loops")
def test_a_node_without_descriptors_keeps_running_and_serves_the_chunk_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = Nodes(tmp_path / "federation", 4, 1, values=100_000, chunk_bytes=1024).local.nodes

    async def scenario() -> None:
        # The last member dials nobody at first: a dial that ends would leave a descriptor free.
        here, member = InProcessNode(folders[3]), Member(folders[1])
        victim, model = here.node.me, here.node.federation.initial
        read_chunk, refused = here.node.storage.blobs.read_chunk, []

        def reading(digest: Digest, index: int, head: Head) -> memoryview:
            try:
                return read_chunk(digest, index, head)
            except NoDescriptors as fault:
                refused.append(fault)
                raise

        def chunks_from(sender: NodeId) -> int:
            return len(member.messages(Chunk, sender=sender))

        monkeypatch.setattr(here.node.storage.blobs, "read_chunk", reading)
        # Its file comes and goes with each fact, and would leave a descriptor free.
        monkeypatch.setattr(here.node._facts, "append", lambda _: None)
        async with here.running(), member.connected(victim):
            await until(lambda: len(here.node.worker.pids) == 2)
            with none_left(), pytest.raises(WorkerFailed, match="cannot be started"):
                await here.node.worker._client._spawn()
            with none_left() as take_all:
                requests = 0

                def reading_refused() -> bool:
                    """The node may close a file and read a chunk with that descriptor. A chunk
                    that was read stays in memory, so each request is for another one."""
                    nonlocal requests
                    take_all()
                    if chunks_from(victim) == requests:
                        member.send(victim, ChunkRequest(model, requests))
                        requests += 1
                    return bool(refused)

                await until(reading_refused)
            member.send(victim, ChunkRequest(model, requests - 1))
            await until(lambda: chunks_from(victim) == requests)
            assert not member.messages(NotHeld, sender=victim)
        assert here.logged("stopped")
        assert not here.node.measures.peer_faults["node-1"]

    asyncio.run(scenario())


def test_connections_that_telemetry_cannot_accept_do_not_fill_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio alone writes 100 tracebacks a second, about a megabyte in half a minute; uvloop
    closes such a connection."""
    monkeypatch.setenv("DEFL_NODE", "0")
    folder = Nodes(tmp_path / "federation", 4, 3).local.nodes[0]

    async def scenario() -> InProcessNode:
        here = InProcessNode(folder)
        async with here.running():
            port = int((folder / "telemetry.port").read_text(encoding="ascii"))
            await until(lambda: len(here.node.worker.pids) == 2)
            with socket.socket() as caller:
                caller.setblocking(False)
                with none_left():
                    with contextlib.suppress(BlockingIOError):
                        caller.connect(("127.0.0.1", port))
                    await until(
                        lambda: here.logged("telemetry accepts no connection") or caplog.records
                    )
        return here

    here = asyncio.run(scenario())

    assert len(here.logged("telemetry accepts no connection")) == 1
    assert [record for record in caplog.records if record.name == "asyncio"] == []
