"""From a peer's frame to a verified event: filtered by what is wanted, paid for, verified.

The steps are those of PROTOCOL.md, "Ingress"; sim/processor.py takes the same ones on a virtual
clock. The link that brought a frame is not read further until the frame is done.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from inspect import isawaitable

from defl.budget import Budget
from defl.committee import Committee
from defl.errors import PeerFault
from defl.ids import NodeId
from defl.ingress import Examined, Ingress
from defl.messages import Chunk, Message
from defl.node.net.send_queue import Frame
from defl.node.work.checked_values import CheckedValues
from defl.output import Event, Faulted, OtherEpoch, Question
from defl.wire import says_chunk

# Larger frames are decoded and hashed in a thread, so that votes do not wait for them.
THREAD_FRAME_BYTES = 64 * 2**10
# Up to this many signatures (0.5 ms) are verified on the loop: a thread switch would cost as much
# again.
LOOP_SIGNATURES_MAX = 4

# Participant.wanted and Participant.has_requested
Wanted = Callable[[NodeId, Message], Message | Question | None]
HasRequested = Callable[[NodeId, Chunk], bool]


class FrameVerifier:
    def __init__(
        self,
        committee: Committee,
        ingress: Ingress,
        wanted: Wanted,
        has_requested: HasRequested,
        checked: CheckedValues,
    ) -> None:
        self._wanted = wanted
        self._has_requested = has_requested
        self._checked = checked
        self._ingress = ingress
        self._budget = Budget(committee)
        self._thread = ThreadPoolExecutor(1, "defl-verifying")

    def enter(self, committee: Committee, ingress: Ingress) -> None:
        """Another epoch begins."""
        self._ingress = ingress
        self._budget = Budget(committee)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def admit(self, peer: NodeId, frame: Frame) -> Event | Awaitable[Event | None] | None:
        """None if the participant wants nothing of the frame; an awaitable if the frame takes a
        thread or the peer is over its budget. Raises a PeerFault, at once or when awaited."""
        wait_s = self._budget.wait_s(peer, self._now)
        return self._admit_after(wait_s, peer, frame) if wait_s > 0 else self._admit(peer, frame)

    def refuse(self, peer: NodeId, frame: Frame, fault: PeerFault) -> Faulted:
        """Charge the peer for a frame that was a fault, and report it."""
        self._budget.charge(peer, None, len(frame), self._now)
        return Faulted(peer, str(fault))

    async def _admit_after(self, wait_s: float, peer: NodeId, frame: Frame) -> Event | None:
        await asyncio.sleep(wait_s)
        admission = self._admit(peer, frame)
        return await admission if isawaitable(admission) else admission

    def _admit(self, peer: NodeId, frame: Frame) -> Event | Awaitable[Event | None] | None:
        if len(frame) > THREAD_FRAME_BYTES and not says_chunk(frame):
            return self._admit_large(peer, frame)
        message = self._ingress.read(peer, frame)  # does not touch a chunk's data
        self._charge(peer, frame, message)
        if isinstance(message, OtherEpoch):
            return message
        wanted = self._wanted(peer, message)
        if wanted is None or isinstance(wanted, Question):
            return wanted
        if isinstance(wanted, Chunk):
            return self._admit_chunk(peer, wanted)
        return self._verify(self._ingress.examine(peer, wanted), self._ingress)

    async def _admit_large(self, peer: NodeId, frame: Frame) -> Event | None:
        ingress = self._ingress
        message = await asyncio.to_thread(ingress.read, peer, frame)
        self._charge(peer, frame, message)
        if ingress is not self._ingress or isinstance(message, OtherEpoch):
            return message if isinstance(message, OtherEpoch) else None
        wanted = self._wanted(peer, message)
        if wanted is None or isinstance(wanted, Question):
            return wanted
        verified = self._verify(await asyncio.to_thread(ingress.examine, peer, wanted), ingress)
        return await verified if isawaitable(verified) else verified

    async def _admit_chunk(self, peer: NodeId, chunk: Chunk) -> Event:
        examined, valid = await asyncio.to_thread(self._examine_chunk, peer, chunk)
        if valid and examined.chunk_digest is not None:
            self._checked.add(examined.chunk_digest)
        return self._ingress.accept(examined)

    def _examine_chunk(self, peer: NodeId, chunk: Chunk) -> tuple[Examined, bool]:
        """Both read every byte, in one visit to a thread."""
        return self._ingress.examine(peer, chunk), self._checked.are_valid(chunk.data)

    def _verify(self, examined: Examined, ingress: Ingress) -> Event | Awaitable[Event]:
        """By the facts of the epoch in which the frame came."""
        claims = examined.claims
        if len(claims) > LOOP_SIGNATURES_MAX:
            return self._verify_slices(examined, ingress)
        if claims:  # so few that the peer may pay for them before its next frame
            self._pay(examined.peer, len(claims))
            ingress.check(claims)
        return ingress.accept(examined)

    async def _verify_slices(self, examined: Examined, ingress: Ingress) -> Event:
        """One thread takes the slices of all links in order of arrival, and a link has only one in
        the queue: a long message delays the others by one slice at most."""
        loop = asyncio.get_running_loop()
        for claims in examined.slices():
            await asyncio.sleep(self._pay(examined.peer, len(claims)))
            await loop.run_in_executor(self._thread, ingress.check, claims)
        return ingress.accept(examined)

    def _pay(self, peer: NodeId, signatures: int) -> float:
        """The seconds that the peer must wait, since its budget is spent."""
        return self._budget.spend(peer, signatures, self._now)

    def _charge(self, peer: NodeId, frame: Frame, message: Message | OtherEpoch) -> None:
        """Charge a frame; a chunk that this node requested of the peer is free."""
        if isinstance(message, OtherEpoch):
            self._budget.charge(peer, None, len(frame), self._now)
        elif not isinstance(message, Chunk) or not self._has_requested(peer, message):
            self._budget.charge(peer, message, len(frame), self._now)

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()
