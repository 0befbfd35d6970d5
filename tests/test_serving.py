"""Serving chunks: bounded per peer, and read once for all peers."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest

from defl.errors import LocalFault, NoDescriptors
from defl.ids import Digest, NodeId, digest_of
from defl.messages import NotHeld
from defl.node.net.framing import Lane
from defl.node.net.send_queue import Frame
from defl.node.store.serving import FRAMES_KEPT_MAX, REQUESTS_PER_PEER_MAX, Serving
from defl.wire import encode
from support.transports import FRAME_BYTES_MAX, pair

BLOB = digest_of(b"blob")


class Reading:
    """A disk that counts its reads."""

    def __init__(self, size: int = 1) -> None:
        self.reads: list[int] = []
        self.fault: LocalFault | None = None
        self._size = size

    def __call__(self, _digest: Digest, index: int) -> memoryview:
        self.reads.append(index)
        if self.fault is not None:
            raise self.fault
        return memoryview(bytes([index]) * self._size)


def never(*details: object) -> None:
    raise AssertionError(f"nothing is rotten here: {details}")


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def reader_of(reading: Reading) -> Serving:
    """For tests of reading, without peers."""
    outlet = Outlet()
    return Serving(reading, never, outlet.send, outlet.drained)


async def settled() -> None:
    """Lets threads and tasks run until idle."""
    for _ in range(20):
        await asyncio.to_thread(lambda: None)


class Outlet:
    """A transport that holds frames until the test releases them."""

    def __init__(self) -> None:
        self.waiting: dict[NodeId, list[Frame]] = defaultdict(list)
        self.connected = True
        self._left = asyncio.Event()

    def send(self, peer: NodeId, frame: Frame) -> None:
        self.waiting[peer].append(frame)

    async def drained(self, peer: NodeId) -> bool:
        while self.waiting[peer] and self.connected:
            self._left.clear()
            await self._left.wait()
        return self.connected

    async def release(self, peer: NodeId) -> list[Frame]:
        frames = self.waiting.pop(peer, [])
        self._left.set()
        await settled()
        return frames

    async def hang_up(self) -> None:
        self.connected = False
        self._left.set()
        await settled()


class Served:
    """A serving node between these stubs of a disk and a transport."""

    def __init__(self) -> None:
        self.disk = Reading()
        self.outlet = Outlet()
        self.serving = Serving(self.disk, never, self.outlet.send, self.outlet.drained)
        self._tasks: list[asyncio.Task[None]] = []

    async def ask(self, peer: NodeId, *indexes: int) -> None:
        for index in indexes:
            if self.serving.ask(peer, BLOB, index):
                self._tasks.append(asyncio.create_task(self.serving.feed(peer)))
        await settled()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


GREEDY, MODEST = NodeId(1), NodeId(2)


def test_a_peer_that_never_reads_holds_one_chunk_and_delays_no_other_peer() -> None:
    async def scenario() -> None:
        here = Served()
        for _ in range(50):
            await here.ask(GREEDY, *range(100))
        assert len(here.outlet.waiting[GREEDY]) == 1
        assert here.disk.reads == [0]

        await here.ask(MODEST, 100, 101, 102)
        for index in (100, 101, 102):
            assert await here.outlet.release(MODEST) == [bytes([index])]
        assert here.disk.reads == [0, 100, 101, 102]
        await here.stop()

    run(scenario())


def test_requests_are_answered_in_order_as_the_queue_drains() -> None:
    async def scenario() -> None:
        here = Served()
        await here.ask(GREEDY, 3, 1, 2, 1)
        for index in (3, 1, 2):
            assert await here.outlet.release(GREEDY) == [bytes([index])]
        assert await here.outlet.release(GREEDY) == []  # a repeated request is answered once

        await here.ask(GREEDY, 1)
        assert await here.outlet.release(GREEDY) == [b"\x01"]
        await here.stop()

    run(scenario())


def test_queued_requests_per_peer_are_bounded() -> None:
    async def scenario() -> None:
        here = Served()
        await here.ask(GREEDY, *range(100))
        answers = [await here.outlet.release(GREEDY) for _ in range(100)]
        assert sum(map(len, answers)) == REQUESTS_PER_PEER_MAX
        await here.stop()

    run(scenario())


def test_requests_of_a_disconnected_peer_are_dropped() -> None:
    async def scenario() -> None:
        here = Served()
        await here.ask(GREEDY, *range(10))
        await here.outlet.hang_up()
        assert here.disk.reads == [0]

        here.outlet.connected = True
        await here.outlet.release(GREEDY)
        await here.ask(GREEDY, 7)
        assert await here.outlet.release(GREEDY) == [b"\x07"]
        await here.stop()

    run(scenario())


def test_a_dropped_chunk_is_answered_not_held_and_a_temporary_failure_is_not_answered() -> None:
    async def scenario() -> None:
        here = Served()
        here.disk.fault = LocalFault("not here")
        await here.ask(GREEDY, 1)
        assert await here.outlet.release(GREEDY) == [encode(NotHeld(BLOB))]

        here.disk.fault = NoDescriptors("too many files are open")
        await here.ask(GREEDY, 1)
        assert await here.outlet.release(GREEDY) == []

        here.disk.fault = None
        await here.ask(GREEDY, 1)
        assert await here.outlet.release(GREEDY) == [b"\x01"]
        await here.stop()

    run(scenario())


def test_a_request_repeated_during_a_read_that_fails_is_answered() -> None:
    async def scenario() -> None:
        here = Served()
        asked_again = threading.Event()

        def read_once_the_peer_has_asked_again(_digest: Digest, index: int) -> memoryview:
            if not asked_again.is_set():
                asked_again.wait()
                raise NoDescriptors("too many files are open")
            return memoryview(bytes([index]))

        here.serving._read = read_once_the_peer_has_asked_again
        assert here.serving.ask(GREEDY, BLOB, 1)
        feeding = asyncio.create_task(here.serving.feed(GREEDY))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not here.serving.ask(GREEDY, BLOB, 1)
        asked_again.set()
        await settled()
        assert await here.outlet.release(GREEDY) == [b"\x01"]
        await feeding

    run(scenario())


def test_a_real_peer_that_stops_reading_holds_two_chunks() -> None:
    """Beyond what the kernel and TLS buffer. When it reads again, it gets all of them."""
    size = FRAME_BYTES_MAX
    reading = asyncio.Event()

    async def read_later(_peer: NodeId, _lane: Lane, _frame: Frame) -> None:
        await reading.wait()

    async def scenario() -> None:
        async with pair(second={"on_frame": read_later}) as (a, b):
            disk = Reading(size)
            sent = a.transport.stats.traffic[b.me, Lane.WEIGHTS]
            serving = Serving(
                disk,
                never,
                partial(a.transport.send, lane=Lane.WEIGHTS),
                partial(a.transport.drained, lane=Lane.WEIGHTS),
            )
            for index in range(10):
                if serving.ask(b.me, BLOB, index):
                    feeding = asyncio.create_task(serving.feed(b.me))
            while a.transport.queued_bytes(b.me, Lane.WEIGHTS) == 0:
                await settled()
            for _ in range(20):
                await settled()
                assert len(disk.reads) * size - sent.bytes_out <= 2 * size
            assert len(disk.reads) < 10
            reading.set()
            await feeding
            await b.until(lambda: len(b.received) == 10)
            assert [frame[0] for _, _, frame in b.received] == list(range(10))

    run(scenario())


def test_peers_that_request_the_same_chunk_share_its_bytes() -> None:
    reading = Reading()

    async def scenario() -> None:
        serving = reader_of(reading)
        frames = await asyncio.gather(*(serving.frame(BLOB, 3) for _ in range(5)))
        later = await serving.frame(BLOB, 3)

        assert all(frame is later for frame in frames)
        assert later == b"\x03"

    run(scenario())
    assert reading.reads == [3]


def test_only_a_few_frames_stay_in_memory() -> None:
    reading = Reading()

    async def scenario() -> None:
        serving = reader_of(reading)
        for index in range(FRAMES_KEPT_MAX + 1):
            await serving.frame(BLOB, index)
        await serving.frame(BLOB, FRAMES_KEPT_MAX)
        await serving.frame(BLOB, 0)

    run(scenario())
    assert reading.reads == [*range(FRAMES_KEPT_MAX + 1), 0]


def test_a_chunk_that_failed_to_read_is_tried_again() -> None:
    reading = Reading()

    async def scenario() -> None:
        serving = reader_of(reading)
        reading.fault = LocalFault("not here")
        with pytest.raises(LocalFault):
            await serving.frame(BLOB, 1)
        reading.fault = None

        assert await serving.frame(BLOB, 1) == b"\x01"

    run(scenario())
