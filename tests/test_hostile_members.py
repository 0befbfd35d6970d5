"""Garbage of legal length from a member with a valid key: it is counted and has no other effect.

Member 2 is the node under test, members 0 and 3 are honest nodes in their own processes, and
member 1 is Byzantine. Three of four are a quorum, so rounds close without it. The garbage comes
before the honest members start: only so is the memory that it takes measured alone.
"""

import asyncio
import gc
import tracemalloc
from pathlib import Path
from random import Random

import pytest

from defl.committee import Timing
from defl.crypto import Ed25519Scheme
from defl.errors import PeerFault
from defl.ids import NodeId
from defl.ingress import Ingress
from defl.lab.experiments.processes import Nodes
from defl.messages import (
    Blocks,
    Chunk,
    ChunkRequest,
    Evidence,
    ManifestAnswer,
    ManifestRequest,
    NotHeld,
    Snapshot,
    StoreAck,
)
from defl.node.net.framing import Lane
from defl.node.net.transport import Refusal
from defl.wire import encode
from support.in_process_node import InProcessNode, Member, until

pytestmark = pytest.mark.usefixtures("on_both_loops")

TIMING = Timing(view_base_s=0.3, gst_lt_min_s=1.0, gst_lt_max_s=10.0, grace_s=0.5)
ROUNDS = 8  # they take longer than the corrupted messages
ANSWERS = (Blocks, Snapshot, StoreAck, ManifestAnswer, Chunk, NotHeld)


def random_frame(rng: Random, longest: int) -> bytes:
    """Short frames are as likely as long ones."""
    return rng.randbytes(int(longest ** rng.random()))


def flipped(rng: Random, frame: bytes) -> bytes:
    changed = bytearray(frame)
    for _ in range(rng.randint(1, 3)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


class Fuzz:
    """Sends frames from the bad member to the node, and counts those that the node must refuse."""

    def __init__(self, member: Member, here: InProcessNode, seed: int) -> None:
        self.member = member
        self.victim = here.node.me
        self._node = here.node
        self._rng = Random(seed)  # noqa: S311
        self._judge = Ingress(member.federation, Ed25519Scheme())
        self.refused = 0
        self.bytes = 0

    async def garbage(self, frames: int) -> None:
        for _ in range(frames):
            for lane in Lane:
                await self._send(random_frame(self._rng, self.member.bytes_max[lane]), lane)
        await self.counted()

    async def corrupted_messages(self, frames: int) -> None:
        """Recent messages of other members, and valid requests, with bits flipped."""
        model = self.member.federation.initial
        own = [ManifestRequest(model), ChunkRequest(model, 0), NotHeld(model)]
        own.append(Chunk(model, 0, memoryview(self._rng.randbytes(1024))))
        for _ in range(frames):
            heard = [frame for _, frame in self.member.received]
            frame = self._rng.choice([*heard, *map(encode, own)])
            for lane in Lane:
                await self._send(flipped(self._rng, frame), lane)
        await self.counted()

    async def counted(self) -> None:
        """Waits until all refused frames are counted; the node may ignore some of the others."""
        faults = self._node.measures.peer_faults
        await until(lambda: faults[self.member.name] >= self.refused)

    async def _send(self, frame: bytes, lane: Lane) -> None:
        try:
            self._judge.read(self.member.me, frame)
        except PeerFault:
            self.refused += 1
        self.bytes += len(frame)
        await until(lambda: self.member.transport.send(self.victim, frame, lane))
        await asyncio.sleep(0)


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("seed", range(2))
def test_garbage_from_a_member_is_counted_and_rounds_still_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setenv("DEFL_NODE", "2")
    nodes = Nodes(tmp_path / "federation", 4, ROUNDS, timing=TIMING, chunk_bytes=1024)

    async def scenario() -> None:
        here, member = InProcessNode(nodes.local.nodes[2]), Member(nodes.local.nodes[1])
        node = here.node
        fuzz = Fuzz(member, here, seed)
        async with here.running(), member.connected(node.me):
            await fuzz.garbage(100)
            tracemalloc.start()
            before, sent = traced(), fuzz.bytes
            await fuzz.garbage(400)
            assert fuzz.refused == 2 * (100 + 400), (
                "this seed gives a valid message: choose another"
            )
            assert traced() - before < 1_000_000 < (fuzz.bytes - sent) / 5
            tracemalloc.stop()
            assert node.measures.peer_faults == {member.name: fuzz.refused}
            for kind in ANSWERS:
                assert not member.messages(kind, sender=node.me)

            nodes.start(0, 3)
            await until(lambda: all(map(member.transport.connected, (NodeId(0), NodeId(3)))))
            await fuzz.corrupted_messages(300)
            assert not node.participant.finished, "the messages were meant for a training node"
            assert node.transport.connected(member.me), "legal lengths close no connection"
            await until(lambda: node.participant.finished)
            assert not member.messages(Evidence, sender=node.me)
        assert set(node.measures.peer_faults) == {member.name}
        assert not node.transport.stats.refusals[Refusal.FRAME]
        assert not node.transport.stats.reconnects[member.me]
        assert node.participant.state.round == ROUNDS
        assert node.participant.model is not None
        model = node.participant.model.hex()
        await until(lambda: not nodes.any_running)
        assert [nodes.status(honest).model for honest in (0, 3)] == [model, model]

    try:
        asyncio.run(scenario())
    finally:
        nodes.close()
