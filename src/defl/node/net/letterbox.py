"""Letterboxes: how a node that knows nobody any more hears of the members of today.

A node that slept while all others were replaced accepts none of their certificates. So every node
also takes calls that show no certificate, marked as such in their first record. Such a caller is a
*stranger*: it may hand in control frames, slowly, and be answered on the same connection. Nothing
proves who it is, so its frames must prove themselves. The caller does know whom it calls.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from defl.budget import TokenBucket
from defl.contacts import STRANGERS_FROM
from defl.ids import NodeId
from defl.node.net.framing import Handler, Link, Use
from defl.node.net.send_queue import Frame, SendQueue, Traffic


@dataclass(frozen=True, slots=True)
class LetterboxLimits:
    """Of one connection, on either side. The calls themselves have a rate too (AcceptLimits)."""

    letters_per_s: float = 4.0
    letters_burst: float = 4.0
    letter_bytes_per_s: float = 1e6
    letter_bytes_burst: float = 4e6
    letters_queued_max: int = 64
    letters_queued_bytes_max: int = 2 * 2**20  # one frame always fits
    letterbox_idle_s: float = 30.0


class LetterboxLink:
    """An open connection to or from a letterbox."""

    def __init__(
        self, link: Link, limits: LetterboxLimits, frame_bytes_max: int, handler: Handler
    ) -> None:
        now = asyncio.get_running_loop().time()
        self._link = link
        self._limits = limits
        self._traffic = Traffic()
        self._queue = SendQueue(self._traffic)
        link.open(
            Use(
                frame_bytes_max=frame_bytes_max,
                handler=handler,
                queue=self._queue,
                traffic=self._traffic,
                messages=TokenBucket(limits.letters_per_s, limits.letters_burst, now),
                volume=TokenBucket(limits.letter_bytes_per_s, limits.letter_bytes_burst, now),
                heartbeat=False,  # it ends when it is idle
            )
        )

    def send(self, frame: Frame) -> bool:
        limits = self._limits
        taken = self._queue.offer(
            frame, frames_max=limits.letters_queued_max, bytes_max=limits.letters_queued_bytes_max
        )
        if taken:
            self._link.pump_soon()
        return taken

    def abort(self) -> None:
        self._link.abort()

    async def until_idle(self) -> None:
        """Ends the connection when no frame has passed for a while; waits for its end."""
        frames, passed = -1, 0
        try:
            while not self._link.closed.done() and passed != frames:
                frames = passed
                await asyncio.wait([self._link.closed], timeout=self._limits.letterbox_idle_s)
                passed = self._traffic.frames_in + self._traffic.frames_out
        finally:
            self._link.abort()


class Letterbox:
    """The strangers that are connected to this node. The acceptor bounds their number."""

    def __init__(
        self,
        limits: LetterboxLimits,
        frame_bytes_max: int,
        on_frame: Callable[[NodeId, Frame], Awaitable[None] | None],
    ) -> None:
        self._limits = limits
        self._frame_bytes_max = frame_bytes_max
        self._on_frame = on_frame
        self._numbers = itertools.count(STRANGERS_FROM)  # none is used twice
        self._links: dict[NodeId, LetterboxLink] = {}

    def send(self, stranger: NodeId, frame: Frame) -> bool:
        """False if the stranger is gone or its queue is full."""
        link = self._links.get(stranger)
        return link is not None and link.send(frame)

    async def serve(self, link: Link) -> None:
        stranger = NodeId(next(self._numbers))
        opened = LetterboxLink(
            link,
            self._limits,
            self._frame_bytes_max,
            lambda frame: self._on_frame(stranger, frame),
        )
        self._links[stranger] = opened
        try:
            await opened.until_idle()
        finally:
            del self._links[stranger]
