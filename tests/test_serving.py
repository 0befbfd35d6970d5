"""Chunks on their way out: bounded for each peer, and read once for all of them."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from defl.errors import LocalFault
from defl.ids import Digest, NodeId, digest_of
from defl.node.serving import CHUNKS_PER_PEER_MAX, FRAMES_KEPT_MAX, Serving

BLOB = digest_of(b"blob")


class Reading:
    """Stands for the disk, and counts."""

    def __init__(self) -> None:
        self.reads: list[int] = []
        self.held = True

    def __call__(self, _digest: Digest, index: int) -> memoryview:
        self.reads.append(index)
        if not self.held:
            raise LocalFault("not here")
        return memoryview(bytes([index]))


def never(*found: object) -> None:
    raise AssertionError(f"nothing is rotten here: {found}")


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_one_peer_gets_so_many_chunks_at_a_time_and_others_are_not_affected() -> None:
    serving = Serving(Reading(), never)
    greedy, modest = NodeId(1), NodeId(2)
    begun = [serving.begin(greedy) for _ in range(100)]

    assert sum(begun) == CHUNKS_PER_PEER_MAX
    assert serving.begin(modest)


def test_what_was_sent_makes_room_for_the_next() -> None:
    serving = Serving(Reading(), never)
    while serving.begin(NodeId(1)):
        pass
    serving.end(NodeId(1))

    assert serving.begin(NodeId(1))
    assert not serving.begin(NodeId(1))


def test_peers_that_ask_for_the_same_chunk_share_its_bytes() -> None:
    reading = Reading()

    async def scenario() -> None:
        serving = Serving(reading, never)
        frames = await asyncio.gather(*(serving.frame(BLOB, 3) for _ in range(5)))
        later = await serving.frame(BLOB, 3)

        assert all(frame is later for frame in frames)
        assert later == b"\x03"

    run(scenario())
    assert reading.reads == [3]


def test_only_a_few_frames_stay_in_memory() -> None:
    reading = Reading()

    async def scenario() -> None:
        serving = Serving(reading, never)
        for index in range(FRAMES_KEPT_MAX + 1):
            await serving.frame(BLOB, index)
        await serving.frame(BLOB, FRAMES_KEPT_MAX)
        await serving.frame(BLOB, 0)

    run(scenario())
    assert reading.reads == [*range(FRAMES_KEPT_MAX + 1), 0]


def test_a_chunk_that_was_not_there_is_looked_for_again() -> None:
    reading = Reading()

    async def scenario() -> None:
        serving = Serving(reading, never)
        reading.held = False
        with pytest.raises(LocalFault):
            await serving.frame(BLOB, 1)
        reading.held = True

        assert await serving.frame(BLOB, 1) == b"\x01"

    run(scenario())
