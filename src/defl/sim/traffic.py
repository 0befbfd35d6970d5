"""The traffic between simulated nodes: connections, frames on their way, and what they add up to.

A frame is sent once its node's duty allows it. `network.py` says when it arrives; censors lose it
before that.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

from defl.errors import PeerFault
from defl.ids import NodeId
from defl.messages import Chunk, Message, NotHeld
from defl.node.net.framing import HEADER_BYTES, Lane
from defl.output import Connected, Envelope, ServeChunk
from defl.sim.checks import Checker
from defl.sim.network import Network
from defl.sim.sim_node import SimNode
from defl.sim.transcript import Transcript
from defl.sim.virtual_clock import VirtualClock
from defl.wire import encode


class ClusterTraffic:
    def __init__(
        self,
        nodes: list[SimNode],
        clock: VirtualClock,
        network: Network,
        checker: Checker,
        transcript: Transcript | None,
    ) -> None:
        self.messages: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        # From one node to another; the bytes of blobs in them are counted separately.
        self.frames_bytes: Counter[tuple[NodeId, NodeId, Lane]] = Counter()
        self.weights_bytes: Counter[tuple[NodeId, NodeId]] = Counter()
        self.faults_refused: Counter[str] = Counter()
        # A scenario's own network fault: True loses the message from one node to another.
        self.censor: Callable[[NodeId, NodeId, Message], bool] | None = None
        self._nodes = nodes
        self._members = tuple(node.id for node in nodes)
        self._clock = clock
        self._network = network
        self._checker = checker
        self._transcript = transcript

    # --- Frames ----------------------------------------------------------------------------

    def send(self, node: SimNode, item: Envelope | ServeChunk) -> None:
        if isinstance(item, ServeChunk):
            message: Message = _served(node, item)
            targets: tuple[NodeId, ...] = (item.to,)
        else:
            message = item.message
            targets = item.to if item.to is not None else self._members
        if node.honest:
            self._checker.sent(node.id, message)
            if node.records is not None:
                node.records.sent(message, node.disk)
        others = [target for target in targets if target != node.id]
        if others:
            self._send_to(others, node.id, message)

    def _send_to(self, targets: list[NodeId], source: NodeId, message: Message) -> None:
        frame = encode(message)
        kind = type(message).__name__
        heavy = isinstance(message, Chunk)
        lane = Lane.WEIGHTS if heavy else Lane.CONTROL
        weights_bytes = len(message.data) if isinstance(message, Chunk) else 0
        self.messages[kind] += len(targets)
        self.bytes[kind] += len(targets) * len(frame)
        for target in targets:
            self.frames_bytes[source, target, lane] += len(frame) + HEADER_BYTES
            if heavy:
                self.weights_bytes[source, target] += weights_bytes
            if self._transcript is not None:
                self._transcript.message(self._clock.now, source, target, message)
            if self._is_censored(kind, source, target, message):
                # A scenario's own fault may strike any member.
                self._checker.away(*self._members)
            else:
                self.transmit(source, target, frame, heavy=heavy)

    def _is_censored(self, kind: str, source: NodeId, target: NodeId, message: Message) -> bool:
        if self.censor is not None and self.censor(source, target, message):
            return True
        return self._network.censors(kind, source, target, self._clock.now)

    def transmit(self, source: NodeId, target: NodeId, frame: bytes, *, heavy: bool) -> None:
        node = self._nodes[target]
        for when in self._network.arrivals(
            source, target, len(frame), heavy=heavy, now=self._clock.now
        ):
            self._clock.at(when, partial(_deliver, node, node.incarnation, source, frame, heavy))

    def refused(self, fault: PeerFault) -> None:
        self.faults_refused[type(fault).__name__] += 1

    # --- Connections -----------------------------------------------------------------------

    def reconnect_all(self) -> None:
        for node in self._nodes:
            for peer in self._nodes:
                if peer is not node:
                    _connect(node, peer)

    def reconnect(self, node: SimNode) -> None:
        """The node is back: it and everybody whom it reaches learn of each other."""
        now = self._clock.now
        for peer in self._nodes:
            # A connection needs both directions.
            cut = self._network.cuts(node.id, peer.id, now) or self._network.cuts(
                peer.id, node.id, now
            )
            if peer is not node and not cut:
                _connect(peer, node)
                _connect(node, peer)


def _served(node: SimNode, item: ServeChunk) -> Message:
    data = node.driver.read_chunk(item.digest, item.index)
    if data is None:
        return NotHeld(item.digest)
    return Chunk(item.digest, item.index, memoryview(data))


def _deliver(node: SimNode, incarnation: int, source: NodeId, frame: bytes, heavy: bool) -> None:
    # A connection dies with the process that it leads to.
    if node.alive and node.incarnation == incarnation:
        node.processor.receive(source, frame, heavy=heavy)


def _connect(node: SimNode, peer: SimNode) -> None:
    if node.alive:
        node.handle(Connected(peer.id))
