"""The traffic between simulated nodes: connections, frames on their way, and what they add up to.

A frame is sent once its node's duty allows it. `network.py` says when it arrives; censors lose it
before that.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

from defl.contacts import STRANGERS_FROM
from defl.errors import PeerFault
from defl.ids import NodeId
from defl.messages import Chunk, Message, NotHeld
from defl.node.net.framing import HEADER_BYTES, Lane
from defl.output import Connected, Disconnected, Envelope, ServeChunk, ServeHandover
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
        self._nodes = nodes  # new ones may join
        self._machines = {node.key: node.id for node in nodes}
        self._clock = clock
        self._network = network
        self._checker = checker
        self._transcript = transcript

    # --- Frames ----------------------------------------------------------------------------

    def send(self, node: SimNode, item: Envelope | ServeChunk | ServeHandover) -> None:
        epoch = 0
        participant = node.behaviour.participant
        match item:
            case ServeChunk(to=to):
                message: Message = _served(node, item)
                targets: tuple[NodeId, ...] = (to,)
            case ServeHandover(to=to, epoch=ended):
                message, targets = node.disk.handovers[ended], (to,)
            case Envelope():
                message, epoch = item.message, item.epoch
                members = participant.federation.committee.members
                targets = item.to if item.to is not None else members
        if node.honest:
            self._checker.sent(node.id, message, epoch, node.disk)
            if node.records is not None:
                me = self._checker.facts.member_of(node.id, epoch)
                node.records.sent(message, node.disk, me, epoch)
        machines = [self.machine(node, target) for target in targets if target != participant.me]
        others = [machine for machine in machines if machine is not None]
        if others:
            self._send_to(others, node.id, message, epoch)

    def machine(self, node: SimNode, peer: NodeId) -> NodeId | None:
        """Whom the node means by this number."""
        if peer >= STRANGERS_FROM:
            return NodeId(peer - STRANGERS_FROM)
        key = node.behaviour.participant.contacts.key_of(peer)
        if len(self._machines) != len(self._nodes):
            self._machines = {other.key: other.id for other in self._nodes}
        return self._machines.get(key) if key is not None else None

    def _send_to(self, targets: list[NodeId], source: NodeId, message: Message, epoch: int) -> None:
        frame = encode(message, epoch)
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
                self._checker.away(*(node.id for node in self._nodes))
            else:
                self.transmit(source, target, frame, heavy=heavy)

    def _is_censored(self, kind: str, source: NodeId, target: NodeId, message: Message) -> bool:
        if self.censor is not None and self.censor(source, target, message):
            return True
        return self._network.censors(kind, source, target, self._clock.now)

    def transmit(self, source: NodeId, target: NodeId, frame: bytes, *, heavy: bool) -> None:
        node, sender = self._nodes[target], self._nodes[source]
        for when in self._network.arrivals(
            source, target, len(frame), heavy=heavy, now=self._clock.now
        ):
            deliver = partial(_deliver, node, node.incarnation, sender, frame, heavy)
            if heavy and self._network.has_line(target):
                deliver = partial(self._receive, target, len(frame), deliver)
            self._clock.at(when, deliver)

    def _receive(self, target: NodeId, size: int, deliver: Callable[[], None]) -> None:
        """A chunk has reached the target's line."""
        self._clock.at(self._network.received(target, size, self._clock.now), deliver)

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

    def disconnect(self, node: SimNode) -> None:
        """The node's process is dead, and everybody hears of it."""
        for other in self._nodes:
            peer = other.behaviour.participant.contacts.peer_of(node.key)
            if other.alive and other is not node and peer is not None:
                other.handle(Disconnected(peer))


def _served(node: SimNode, item: ServeChunk) -> Message:
    data = node.driver.read_chunk(item.digest, item.index)
    if data is None:
        return NotHeld(item.digest)
    return Chunk(item.digest, item.index, memoryview(data))


def _deliver(node: SimNode, incarnation: int, sender: SimNode, frame: bytes, heavy: bool) -> None:
    # A connection dies with the process that it leads to.
    if node.alive and node.incarnation == incarnation:
        peer = node.behaviour.participant.contacts.peer_of(sender.key)
        stranger = NodeId(STRANGERS_FROM + sender.id)
        node.processor.receive(stranger if peer is None else peer, frame, heavy=heavy)


def _connect(node: SimNode, other: SimNode) -> None:
    participant = node.behaviour.participant
    peer = participant.contacts.peer_of(other.key)
    if node.alive and other.alive and peer is not None:
        node.handle(Connected(peer, other.behaviour.participant.epoch))
