"""Hands frames to the node. A peer's fault is counted and goes no further."""

from collections import Counter
from collections.abc import Awaitable, Callable

from defl.errors import PeerFault
from defl.ids import NodeId
from defl.node.net.framing import Lane
from defl.node.net.refusal import Refusal
from defl.node.net.send_queue import Frame

OnFrame = Callable[[NodeId, Lane, Frame], Awaitable[None] | None]


class Delivery:
    def __init__(self, on_frame: OnFrame, refusals: Counter[Refusal]) -> None:
        self._on_frame = on_frame
        self._refusals = refusals

    def deliver(self, peer: NodeId, lane: Lane, frame: Frame) -> Awaitable[None] | None:
        try:
            result = self._on_frame(peer, lane, frame)
        except PeerFault:
            self._refusals[Refusal.FAULT] += 1
            return None
        return None if result is None else self._delivered(result)

    async def _delivered(self, result: Awaitable[None]) -> None:
        try:
            await result
        except PeerFault:
            self._refusals[Refusal.FAULT] += 1
