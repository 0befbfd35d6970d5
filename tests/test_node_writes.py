"""When a node writes: records before messages leave, models and status as the disk permits."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from defl.errors import LocalFault
from defl.ids import Round
from defl.lab.experiments.processes import Nodes
from defl.node import node as driver
from defl.node.files import PORT_FILE, STATUS_FILE
from defl.node.report.model_file import shared_row, write_model
from defl.node.report.results import MODEL
from defl.node.store.records import Records
from defl.node.store.storage import Storage
from defl.output import ModelReady, Output, Persist
from support.in_process_node import InProcessNode, until


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InProcessNode:
    """A node without peers, so that no round closes; failed writes are retried at once."""
    monkeypatch.setattr(driver, "RETRY_S", 0.0)
    return InProcessNode(Nodes(tmp_path / "federation", 4, 1, chunk_bytes=1024).local.nodes[0])


def test_a_final_status_that_cannot_be_written_leaves_nothing_open(here: InProcessNode) -> None:
    (here.folder / STATUS_FILE).mkdir()  # where no file can be written

    async def scenario() -> tuple[int, ...]:
        async with here.running():
            await until(lambda: len(here.node.worker.pids) == 2)
            address, pids = here.node.transport.address, here.node.worker.pids
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        return pids

    for pid in asyncio.run(scenario()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not (here.folder / PORT_FILE).exists()
    Storage.open(here.folder / "state").close()
    assert [line["what"] for line in here.logged("not written")] == [STATUS_FILE]
    assert here.logged("stopped")


def test_a_model_that_cannot_be_written_is_retried(here: InProcessNode) -> None:
    """Events after it are still reported."""
    model = here.folder / MODEL
    model.mkdir()
    notice = ModelReady(Round(0), here.node.federation.initial)

    async def scenario() -> None:
        async with here.running():
            here.node._notices.put_nowait(notice)
            await until(lambda: here.logged("not written"))
            assert not here.logged("model ready")
            model.rmdir()
            await until(lambda: here.logged("model ready"))
            here.node._notices.put_nowait(notice)
            await until(lambda: len(here.logged("model ready")) == 2)

    asyncio.run(scenario())
    assert model.stat().st_size > 0
    assert {line["what"] for line in here.logged("not written")} == {"ModelReady"}


def test_a_model_that_cannot_be_written_is_superseded_by_a_newer_one(here: InProcessNode) -> None:
    (here.folder / MODEL).mkdir()
    old, new = (ModelReady(Round(r), here.node.federation.initial) for r in (0, 1))

    async def scenario() -> None:
        async with here.running():
            here.node._notices.put_nowait(old)
            await until(lambda: here.logged("not written"))
            here.node._notices.put_nowait(new)
            await until(here.node._notices.empty)
            (here.folder / MODEL).rmdir()
            await until(lambda: here.logged("model ready"))

    asyncio.run(scenario())
    assert [line["round"] for line in here.logged("model ready")] == [1]


def test_a_model_that_the_disk_refuses_is_a_local_fault(here: InProcessNode) -> None:
    federation = here.node.federation
    row, _ = shared_row(here.folder.parent / "initial.safetensors", federation.schema)
    here.node.storage.close()

    with pytest.raises(LocalFault, match="cannot be written"):
        write_model(here.folder / "missing" / MODEL, federation.schema, row, {})


def test_records_queued_while_the_disk_is_busy_are_written_in_one_batch(
    here: InProcessNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = here.node
    written: list[int] = []  # records in each write
    free = threading.Event()
    done: list[tuple[Output, int]] = []  # what was performed, after how many writes
    persist = Records.persist

    def slow(records: Records, *persists: Persist) -> None:
        free.wait()
        persist(records, *persists)
        written.append(len(persists))

    monkeypatch.setattr(Records, "persist", slow)
    monkeypatch.setattr(node, "_perform", lambda output: done.append((output, len(written))))
    record = node.storage.recovered().record
    first, second, third = (Output(persist=Persist(record=record), wake_at=t) for t in (1, 2, 3))
    plain = Output(wake_at=4.0)

    async def scenario() -> None:
        performing = asyncio.create_task(node._perform_all())
        for output in (plain, first):
            node._outputs.put_nowait(output)
        await until(node._outputs.empty)
        assert done == [(plain, 0)]  # without a record of its own it does not wait
        for last in (second, plain, third, None):
            node._outputs.put_nowait(last)
        free.set()
        await performing

    asyncio.run(scenario())
    assert written == [1, 2]
    assert done[1:] == [(first, 1), (second, 2), (plain, 2), (third, 2)]
    node.writing.close()
    node.storage.close()
