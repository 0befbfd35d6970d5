"""When a node writes: records before messages leave, models and status as the disk permits."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from defl.duty import OUTPUTS_MAX
from defl.errors import LocalFault
from defl.ids import Digest, NodeId, Round
from defl.lab.experiments.processes import Nodes
from defl.messages import Message, NotHeld
from defl.node.files import PORT_FILE, STATUS_FILE
from defl.node.net.framing import Lane
from defl.node.report import notices
from defl.node.report.model_file import shared_row, write_model
from defl.node.report.results import MODEL
from defl.node.store.records import Records
from defl.node.store.storage import Storage
from defl.output import Envelope, Event, ModelReady, Output, Persist, Tick
from support.in_process_node import InProcessNode, Member, until


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InProcessNode:
    """A node without peers, so that no round closes; failed writes are retried at once."""
    monkeypatch.setattr(notices, "RETRY_S", 0.0)
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
            here.node._notices.put(notice)
            await until(lambda: here.logged("not written"))
            assert not here.logged("model ready")
            model.rmdir()
            await until(lambda: here.logged("model ready"))
            here.node._notices.put(notice)
            await until(lambda: len(here.logged("model ready")) == 2)

    asyncio.run(scenario())
    assert model.stat().st_size > 0
    assert {line["what"] for line in here.logged("not written")} == {"ModelReady"}


def test_a_model_that_cannot_be_written_is_superseded_by_a_newer_one(here: InProcessNode) -> None:
    (here.folder / MODEL).mkdir()
    old, new = (ModelReady(Round(r), here.node.federation.initial) for r in (0, 1))

    async def scenario() -> None:
        async with here.running():
            here.node._notices.put(old)
            await until(lambda: here.logged("not written"))
            here.node._notices.put(new)
            await until(here.node._notices._waiting.empty)
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


def test_records_decided_while_the_disk_is_busy_are_written_in_one_batch(
    here: InProcessNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []  # records in each write
    free = threading.Event()
    persist = Records.persist

    def slow(records: Records, *persists: Persist) -> None:
        free.wait()
        persist(records, *persists)
        written.append(len(persists))

    monkeypatch.setattr(Records, "persist", slow)
    record = here.node.storage.recovered().record
    sent: list[Message] = []
    monkeypatch.setattr(here.node, "_send_message", lambda item: sent.append(item.message))
    hello, world = (Envelope(None, NotHeld(Digest(bytes([n]) * 32))) for n in (1, 2))
    decided = [
        Output(send=(hello,)),
        *(Output(persist=Persist(record=record), send=(world,)) for _ in range(3)),
    ]

    def decide(_event: Event, _now: float) -> Output:
        return decided.pop(0) if decided else Output()

    monkeypatch.setattr(here.node.participant, "handle", decide)

    async def scenario() -> None:
        async with here.running():
            for _ in range(4):
                here.node._driver.feed(Tick())
            await until(lambda: not decided)
            assert sent == [hello.message]  # without a record of its own it does not wait
            free.set()
            await until(lambda: len(sent) == 4)

    asyncio.run(scenario())
    assert written == [1, 2]


def test_a_peer_that_reconnects_while_the_disk_is_busy_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = Nodes(tmp_path / "federation", 4, 1, chunk_bytes=1024).local.nodes
    here, sender = InProcessNode(folders[1]), NodeId(0)
    free = threading.Event()
    monkeypatch.setattr(Records, "persist", lambda _records, *_persists: free.wait())
    record = Persist(record=here.node.storage.recovered().record)
    monkeypatch.setattr(here.node.participant, "handle", lambda _event, _now: Output(record))
    received = here.node.transport.stats.traffic[sender, Lane.CONTROL]

    async def reconnect() -> None:
        before = received.frames_in
        member = Member(folders[sender])
        async with member.connected(here.node.me):
            member.send(here.node.me, NotHeld(Digest(bytes(32))))
            await until(lambda: received.frames_in > before)
        await until(lambda: not here.node.transport.connected(sender))

    def frames_waiting() -> int:
        return sum("_delivered" in repr(task.get_coro()) for task in asyncio.all_tasks())

    async def reconnect_again_and_again() -> None:
        driver = here.node._driver
        for _ in range(OUTPUTS_MAX + 2):
            driver.feed(Tick())
        assert not driver.is_caught_up
        await reconnect()
        events, frames = len(driver._events), frames_waiting()
        for _ in range(3):
            await reconnect()
        assert len(driver._events) == events
        assert frames_waiting() == frames

    async def scenario() -> None:
        async with here.running():
            try:
                await reconnect_again_and_again()
            finally:
                free.set()

    asyncio.run(scenario())


def test_a_record_that_cannot_be_written_ends_the_node(
    here: InProcessNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_records: Records, *_persists: Persist) -> None:
        raise LocalFault("the disk is gone")

    record = here.node.storage.recovered().record
    monkeypatch.setattr(Records, "persist", broken)
    decided = Output(persist=Persist(record=record))
    monkeypatch.setattr(here.node.participant, "handle", lambda _event, _now: decided)
    with pytest.raises(LocalFault, match="the disk is gone"):
        asyncio.run(here.node.run())


def test_an_error_in_the_machine_ends_the_node_whoever_fed_the_event(
    here: InProcessNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_event: Event, _now: float) -> Output:
        raise AssertionError("this cannot be")

    async def scenario() -> None:
        running = asyncio.create_task(here.node.run())
        await until(lambda: here.logged("started"))
        monkeypatch.setattr(here.node.participant, "handle", broken)
        here.node._driver.feed(Tick())
        await running

    with pytest.raises(AssertionError, match="this cannot be"):
        asyncio.run(scenario())
