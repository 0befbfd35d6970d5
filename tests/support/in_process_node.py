"""For tests of whole nodes: a real node in the test's own process, and a scripted member.

The member has a real transport but no participant: it sends only what the test tells it to.
"""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from defl.ids import NodeId
from defl.messages import Message
from defl.node.net.framing import Lane
from defl.node.net.send_queue import Frame
from defl.node.net.transport import Transport
from defl.node.node import Node
from defl.node.setup.agreement import read_federation
from defl.node.setup.config import read_identity, read_node
from defl.node.startup import open_node
from defl.wire import chunk_frame_bytes_max, control_frame_bytes_max, decode, encode
from support.logs import log_to

LIMIT_S = 60.0
POLL_S = 0.01


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(POLL_S)


class InProcessNode:
    """A node with its log kept in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lines = io.StringIO()
        self.node: Node = open_node(folder, log_to(self._lines))

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._lines.getvalue().splitlines()]

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line["event"] == event]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the node until the block ends; an error that ended the node fails the test."""
        running = asyncio.create_task(self.node.run())
        try:
            await until(lambda: self.logged("started") or running.done())
            yield
        finally:
            self.node.stop()
            await running


class Member:
    """A member's transport without a participant behind it."""

    def __init__(self, folder: Path) -> None:
        config = read_node(folder)
        agreement = read_federation(folder / config.federation)
        identity = read_identity(folder, config.name)
        me = agreement.member(identity.public_key)
        assert me is not None
        self.me = me
        self.name = config.name
        self.federation = agreement.federation
        self.bytes_max = {
            Lane.CONTROL: control_frame_bytes_max(len(agreement.cards)),
            Lane.WEIGHTS: chunk_frame_bytes_max(self.federation.chunk_bytes),
        }
        self.received: list[tuple[NodeId, bytes]] = []
        self.transport = Transport(
            me=me,
            identity=identity,
            origin=self.federation.chain,
            epoch=self.federation.epoch,
            contacts={NodeId(i): card for i, card in enumerate(agreement.cards) if i != me},
            listen=config.listen_at,
            frame_bytes_max=self.bytes_max,
            on_frame=self._frame,
        )

    def _frame(self, peer: NodeId, _lane: Lane, frame: Frame) -> None:
        self.received.append((peer, bytes(frame)))

    def messages(self, kind: type[Message], sender: NodeId) -> Sequence[Message]:
        """The messages of one type received from one peer."""
        messages = [
            decode(frame, max(self.bytes_max.values()))
            for peer, frame in self.received
            if peer == sender
        ]
        return [message for message in messages if isinstance(message, kind)]

    def send(self, peer: NodeId, message: Message, lane: Lane = Lane.CONTROL) -> None:
        assert self.transport.send(peer, encode(message), lane)

    @asynccontextmanager
    async def connected(self, *peers: NodeId) -> AsyncIterator[None]:
        await self.transport.start()
        try:
            await until(lambda: all(self.transport.connected(peer) for peer in peers))
            yield
        finally:
            await self.transport.close()
