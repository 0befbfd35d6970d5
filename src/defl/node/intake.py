"""Frames from peers on their way to the participant: checked, and no faster than it decides."""

from collections.abc import Awaitable
from inspect import isawaitable

from defl.errors import PeerFault
from defl.ids import NodeId
from defl.node.driver import Driver
from defl.node.net.send_queue import Frame
from defl.node.net.verifier import FrameVerifier
from defl.output import Event, ReceivedChunk


class Intake:
    def __init__(self, verifier: FrameVerifier, driver: Driver) -> None:
        self._verifier = verifier
        self._driver = driver

    def take(self, peer: NodeId, frame: Frame) -> Awaitable[None] | None:
        """The link that brought the frame is not read further until this is done: its next frame
        is judged after this one was handled."""
        try:
            event = self._verifier.admit(peer, frame)
        except PeerFault as fault:
            event = self._verifier.refuse(peer, frame, fault)
        behind = not self._driver.is_caught_up
        if behind or isawaitable(event) or isinstance(event, ReceivedChunk):
            return self._take_later(peer, frame, event)
        if event is not None:
            self._driver.feed(event)
        return None if self._driver.is_caught_up else self._driver.caught_up()

    async def _take_later(
        self, peer: NodeId, frame: Frame, admission: Event | Awaitable[Event | None] | None
    ) -> None:
        try:
            event = await admission if isawaitable(admission) else admission
        except PeerFault as fault:
            event = self._verifier.refuse(peer, frame, fault)
        await self._driver.caught_up()
        if isinstance(event, ReceivedChunk):
            await self._driver.chunk_room.acquire()
        if event is not None:
            self._driver.feed(event)
            await self._driver.caught_up()
