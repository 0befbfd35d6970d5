"""From a peer's frame to a verified event: filtered by what is wanted, paid for, verified.

The steps are those of PROTOCOL.md, "Ingress"; sim/processor.py takes the same ones on a virtual
clock. The link that brought a frame is not read further until the frame is done.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from defl.budget import Budget
from defl.committee import Federation
from defl.crypto import Ed25519Scheme
from defl.ids import NodeId
from defl.ingress import Ingress
from defl.messages import Message
from defl.node.net.framing import Frame
from defl.output import Event, Question

# Larger frames are decoded and hashed in a thread, so that votes do not wait for them.
THREAD_FRAME_BYTES = 64 * 2**10
# Up to this many signatures (0.5 ms) are verified on the loop: a thread switch would cost as much
# again.
LOOP_SIGNATURES_MAX = 4

# Participant.wanted
Wanted = Callable[[NodeId, Message], Message | Question | None]
Argument = TypeVar("Argument")
Result = TypeVar("Result")


class FrameVerifier:
    def __init__(self, federation: Federation, wanted: Wanted) -> None:
        self._wanted = wanted
        self._ingress = Ingress(federation, Ed25519Scheme())
        self._budget = Budget(federation.committee)
        self._thread = ThreadPoolExecutor(1, "defl-verifying")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def admit(self, peer: NodeId, frame: Frame) -> Event | None:
        """None if the participant wants nothing of the frame. Raises a PeerFault."""
        large = len(frame) > THREAD_FRAME_BYTES
        message = await _run(self._ingress.read, peer, frame, in_thread=large)
        wanted = self._wanted(peer, message)
        if wanted is None or isinstance(wanted, Question):
            return wanted
        examined = await _run(self._ingress.examine, peer, wanted, in_thread=large)
        few = examined.signatures <= LOOP_SIGNATURES_MAX
        for claims in examined.slices():
            await self._pay(peer, len(claims))
            if few:
                self._ingress.check(claims)
            else:
                # One thread takes the slices of all links in order of arrival, and a link has only
                # one in the queue: a long message delays the others by one slice at most.
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._thread, self._ingress.check, claims)
        return self._ingress.accept(examined)

    async def _pay(self, peer: NodeId, signatures: int) -> None:
        """Waits while the peer's budget is spent."""
        wait_s = self._budget.spend(peer, signatures, asyncio.get_running_loop().time())
        if wait_s > 0:
            await asyncio.sleep(wait_s)


async def _run(
    step: Callable[[NodeId, Argument], Result], peer: NodeId, argument: Argument, *, in_thread: bool
) -> Result:
    if in_thread:
        return await asyncio.to_thread(step, peer, argument)
    return step(peer, argument)
