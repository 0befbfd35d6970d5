"""n participants on a virtual clock: the simulator's driver of the machine that node/ drives.

One event heap, one seed for all randomness. Frames are real bytes that pass the real ingress; only
the wire, the disk, the clock and the training are simulated. `driver.py` is one process of these.
"""

import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import Protocol

from defl.budget import Budget
from defl.committee import Federation
from defl.crypto import Scheme, Signer
from defl.duty import Report
from defl.errors import PeerFault
from defl.ids import NodeId, View
from defl.ingress import Ingress
from defl.messages import Chunk, Manifest, Message, NotHeld
from defl.node.net.framing import HEADER_BYTES, Lane
from defl.output import (
    Connected,
    Durable,
    Envelope,
    Event,
    Notice,
    Output,
    Question,
    Received,
    ServeChunk,
    Tick,
    Train,
    Validate,
    Work,
)
from defl.participant import Participant, first_durable
from defl.sim import task
from defl.sim.checks import Checker
from defl.sim.conditions import Conditions
from defl.sim.disk import Disk
from defl.sim.driver import DriverWorld, Inputs, VirtualDriver
from defl.sim.durability import InputsCheck, RecordCheck
from defl.sim.network import Network
from defl.sim.processor import Processor, ProcessorWorld
from defl.sim.signer import LiarSafety
from defl.sim.transcript import Transcript
from defl.wire import encode
from defl.work import aggregate

# A run that needs more is stuck: no round of a calm federation takes a thousand events per pair.
EVENTS_PER_ROUND_AND_PAIR_MAX = 3000
# So is a run in which no round closed for this long after the last fault, on top of the longest
# time that a round may stay open: all back-offs have ended by then.
STUCK_AFTER_S = 3600.0
# Aggregating takes this part of a training's time.
AGGREGATION_SHARE = 0.1


class Behaviour(Protocol):
    """A node's behaviour: an honest participant, or a liar wrapped around one."""

    @property
    def participant(self) -> Participant: ...

    def handle(self, event: Event, now: float) -> Output: ...


class Honest:
    def __init__(self, participant: Participant) -> None:
        self.participant = participant

    def handle(self, event: Event, now: float) -> Output:
        return self.participant.handle(event, now)


class Unruly(Output, frozen=True):
    """A liar's output: messages, and frames that are not messages."""

    frames: tuple[tuple[NodeId, bytes], ...] = ()


Wrap = Callable[[Participant, Signer, random.Random], Behaviour]


@dataclass(slots=True)
class SimNode:
    id: NodeId
    behaviour: Behaviour
    ingress: Ingress
    disk: Disk
    honest: bool
    rate: float = 1.0  # of its clock
    alive: bool = True
    incarnation: int = 0
    tick_at: float | None = None  # on the world's clock
    copies: deque[Disk] | None = None  # of its disk after each of the last writes
    processor: Processor | None = None  # of the running process
    driver: VirtualDriver | None = None  # of the running process
    records: RecordCheck | None = None


class Cluster:
    def __init__(
        self,
        federation: Federation,
        signers: tuple[Signer, ...],
        scheme: Scheme,
        initial: tuple[Manifest, bytes],
        *,
        seed: int,
        conditions: Conditions = Conditions(),  # noqa: B008 - frozen
        byzantine: Mapping[NodeId, Wrap] | None = None,
        transcript: Transcript | None = None,
        training: task.Training | None = None,
        aggregating: task.Aggregating = aggregate,
        on_notice: Callable[[NodeId, Notice], None] | None = None,
    ) -> None:
        self.federation = federation
        self.conditions = conditions
        self.seed = seed
        self.now = 0.0
        self.events = 0
        self.messages: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        # From one node to another; the bytes of blobs in them are counted separately.
        self.frames_bytes: Counter[tuple[NodeId, NodeId, Lane]] = Counter()
        self.weights_bytes: Counter[tuple[NodeId, NodeId]] = Counter()
        self.crashes = 0
        self.faults_refused: Counter[str] = Counter()
        self.signers = signers
        self._wraps = dict(byzantine or {})
        self._rng = random.Random(seed)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._network = Network(conditions, self._rng)
        self._transcript = transcript
        self._training = training or partial(task.train, seed)
        self._aggregating = aggregating
        self._on_notice = on_notice
        self.checker = Checker(federation, scheme, honest=self._is_honest)
        self.checker.quiet = not conditions.disturbing
        self._initial = initial
        self.nodes = [self._new_node(member, scheme) for member in federation.committee.members]
        # A scenario's own network fault: True loses the message from one node to another.
        self.censor: Callable[[NodeId, NodeId, Message], bool] | None = None
        self._rounds_closed = 0
        self._progress_at = 0.0
        self._power_victims = self._choose_power_victims()
        committee = federation.committee
        self._rot_victims = frozenset(self._rng.sample(committee.members, committee.faults))
        self._plan()

    def _is_honest(self, member: NodeId) -> bool:
        return member not in self._wraps

    def _choose_power_victims(self) -> frozenset[NodeId]:
        """Members that may lose unsynced bytes in a random power cut.

        Every author syncs its own updates, so without liars all members may. A liar may withhold
        its own, and a rolled-back member has lost them; then f + 1 honest members hold them, and at
        most f of these may lose them.
        """
        members = self.federation.committee.members
        if not self._wraps and not self.conditions.rollbacks:
            return frozenset(members)
        return frozenset(self._rng.sample(members, self.federation.committee.faults))

    def _new_node(self, member: NodeId, scheme: Scheme) -> SimNode:
        manifest, payload = self._initial
        disk = Disk(first_durable(self.federation, manifest))
        disk.store_blob(manifest, payload, self.federation.chunk_bytes)
        skew = self.conditions.clock_skew
        node = SimNode(
            id=member,
            behaviour=self._behaviour(member, disk.recovered()),
            ingress=Ingress(self.federation, scheme),
            disk=disk,
            honest=self._is_honest(member),
            rate=1.0 + self._rng.uniform(-skew, skew),
        )
        if node.honest and all(rollback.member != member for rollback in self.conditions.rollbacks):
            node.records = RecordCheck(member, self.checker.violate)
        self._boot(node)
        return node

    def _boot(self, node: SimNode) -> None:
        """A new process has nothing in flight. Liars verify everything at no cost, so that they
        can repeat whatever exists."""
        budget = Budget(self.federation.committee) if node.honest else None
        cost_s = self.conditions.signature_s if node.honest else 0.0
        world = ProcessorWorld(
            clock=lambda: self.now,
            at=self._at,
            wanted=partial(self._wanted, node),
            handle=partial(self._handle_received, node),
            refused=self._refused,
        )
        if node.processor is not None:
            node.processor.stop()
        node.processor = Processor(node.ingress, budget, cost_s, world)
        check = InputsCheck(node.id, self.checker.violate) if node.honest else None
        node.driver = VirtualDriver(
            node.disk, self.conditions.writes, self.federation.chunk_bytes, self._world(node), check
        )

    def _world(self, node: SimNode) -> DriverWorld:
        return DriverWorld(
            at=lambda seconds, action: self._at(self.now + seconds, action),
            rng=self._rng,
            decide=partial(self._decide, node),
            send=partial(self._send, node),
            report=partial(self._report, node),
            work_takes_s=partial(self._work_takes_s, node),
            work=partial(self._work, node),
            dies=lambda: self._strikes(node, self.conditions.crash_rate),
            crash=lambda: self.crash(node.id),
            written=lambda: self._written(node),
            sync_fails=lambda: self._sync_fails(node),
        )

    def _behaviour(self, member: NodeId, durable: Durable) -> Behaviour:
        facts = self.federation, member, self.signers[member], durable
        if member in self._wraps:
            rng = random.Random(f"{self.seed}/{member}")
            return self._wraps[member](
                Participant(*facts, safety=LiarSafety), self.signers[member], rng
            )
        return Honest(Participant(*facts))

    def _plan(self) -> None:
        for node in self.nodes:
            self._at(self._rng.random() * 0.1, self._starter(node, node.incarnation))
        for cut in self.conditions.cuts:
            self._at(cut.end_s, self._reconnect_all)
        for when in self.conditions.all_crash_at_s:
            self._at(when, self._crash_all)
        for rollback in self.conditions.rollbacks:
            node = self.nodes[rollback.member]
            node.copies = deque([node.disk.copy()], maxlen=rollback.writes_ago + 1)
            self.checker.rolled_back.add(rollback.member)
            self._at(rollback.at_s, partial(self._roll_back, node))
        for kill in self.conditions.kills:
            self._at(kill.at_s, partial(self.crash, kill.node))

    # --- Running ---------------------------------------------------------------------------

    @property
    def honest(self) -> list[SimNode]:
        return [node for node in self.nodes if node.honest]

    @property
    def rounds_closed(self) -> int:
        """Rounds that every honest node has closed."""
        return self._rounds_closed

    def _count_rounds(self) -> None:
        closed = min(n.behaviour.participant.state.round for n in self.honest)
        if closed != self._rounds_closed:
            self._rounds_closed = closed
            self._progress_at = self.now

    @property
    def calm(self) -> bool:
        half = self.rounds_closed * 2 >= self.federation.rounds
        return half or self.now >= self.conditions.calm_after_s

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Run until all honest nodes are finished, `until` holds, or the run is stuck."""
        pairs = len(self.nodes) ** 2
        limit = EVENTS_PER_ROUND_AND_PAIR_MAX * pairs * (self.federation.rounds + 2)
        while self._heap and self.events < limit and not self._stuck():
            if until is not None and until():
                return
            self.step()
            if self.events % 64 == 0:
                self._notice_quiet()
                if self._all_finished():
                    return

    def _notice_quiet(self) -> None:
        """Once all faults are over, rounds must close within a bounded number of views."""
        over = self.calm and self.now >= self.conditions.planned_trouble_s
        if over and not self.checker.quiet:
            self.checker.quiet = True
            self.checker.disturbed(self._newest_view)

    @property
    def _newest_view(self) -> View:
        return max(node.behaviour.participant.replica.view for node in self.honest)

    def _stuck(self) -> bool:
        since = max(self._progress_at, self.conditions.last_trouble_s)
        return self.now > since + self.federation.timing.gst_lt_max_s + STUCK_AFTER_S

    def step(self) -> None:
        self.now, _, action = heappop(self._heap)
        self.events += 1
        action()

    def _all_finished(self) -> bool:
        return all(n.alive and n.behaviour.participant.finished for n in self.honest)

    def _at(self, when: float, action: Callable[[], None]) -> None:
        self._sequence += 1
        heappush(self._heap, (when, self._sequence, action))

    # --- One node --------------------------------------------------------------------------

    def _starter(self, node: SimNode, incarnation: int) -> Callable[[], None]:
        def start() -> None:
            if node.incarnation == incarnation:
                self.handle(node, Tick())

        return start

    def handle(self, node: SimNode, event: Event) -> None:
        if node.driver is not None:
            node.driver.handle(event)

    def _decide(self, node: SimNode, event: Event) -> Output:
        if self.checker.rolled_back and isinstance(event, Received):
            self.checker.took_in(node.id, event.message)
        output = node.behaviour.handle(event, self.now * node.rate)
        self._set_tick(node, output.wake_at)
        if isinstance(output, Unruly):  # liars have no order of duty
            for target, frame in output.frames:
                self._transmit(node.id, target, frame, heavy=False)
        if output.committed or (output.persist and output.persist.snapshot):
            self._count_rounds()
        if output.persist is not None or output.store:
            self._harm_disk(node)
        return output

    def _strikes(self, node: SimNode, rate: float) -> bool:
        return rate > 0 and node.honest and not self.calm and self._rng.random() < rate

    def _report(self, node: SimNode, report: Report) -> None:
        self.checker.committed(node.id, report.committed)
        for notice in report.notices:
            self.checker.notice(node.id, notice, self.now, node.behaviour.participant)
            if self._transcript is not None:
                self._transcript.notice(self.now, node.id, notice)
            if self._on_notice is not None:
                self._on_notice(node.id, notice)

    def _written(self, node: SimNode) -> None:
        if node.copies is not None:
            node.copies.append(node.disk.copy())

    def _set_tick(self, node: SimNode, wake_at: float | None) -> None:
        at = None if wake_at is None else max(self.now, wake_at / node.rate)
        if at == node.tick_at:
            return
        node.tick_at = at
        if at is None:
            return
        incarnation = node.incarnation

        def tick() -> None:
            if node.alive and node.incarnation == incarnation and node.tick_at == at:
                node.tick_at = None
                self.handle(node, Tick())

        self._at(at + 1e-6, tick)

    def _work_takes_s(self, node: SimNode, work: Work) -> float:
        if isinstance(work, Validate):
            return 0.0
        takes_s = self.conditions.work_time(node.id, self._rng)
        return takes_s if isinstance(work, Train) else takes_s * AGGREGATION_SHARE

    def _work(self, node: SimNode, work: Work, inputs: Inputs) -> task.WorkDone:
        return task.done(
            self.federation, self._training, node.id, work, inputs, aggregating=self._aggregating
        )

    def conclude(self) -> list[str]:
        """Judge the whole run; returns the violations."""
        honest = [(node.behaviour.participant, node.disk) for node in self.honest]
        self.checker.conclude(honest, rounds_due=True)
        return self.checker.violations

    # --- The network -----------------------------------------------------------------------

    def _send(self, node: SimNode, item: Envelope | ServeChunk) -> None:
        if isinstance(item, ServeChunk):
            message: Message = self._served(node, item)
            targets: tuple[NodeId, ...] = (item.to,)
        else:
            message = item.message
            targets = item.to if item.to is not None else self.federation.committee.members
        if node.honest:
            self.checker.sent(node.id, message)
            if node.records is not None:
                node.records.sent(message, node.disk)
        frame = encode(message)
        kind = type(message).__name__
        for target in targets:
            if target != node.id:
                self.messages[kind] += 1
                self.bytes[kind] += len(frame)
                lane = Lane.WEIGHTS if isinstance(message, Chunk) else Lane.CONTROL
                self.frames_bytes[node.id, target, lane] += len(frame) + HEADER_BYTES
                if isinstance(message, Chunk):
                    self.weights_bytes[node.id, target] += len(message.data)
                if self._transcript is not None:
                    self._transcript.message(self.now, node.id, target, message)
                censored = self.censor is not None and self.censor(node.id, target, message)
                if not censored and not self._network.censors(kind, node.id, target, self.now):
                    self._transmit(node.id, target, frame, heavy=isinstance(message, Chunk))
                else:
                    # A scenario's own fault may strike any member.
                    self.checker.away(*self.federation.committee.members)

    def _served(self, node: SimNode, item: ServeChunk) -> Message:
        data = node.driver.read_chunk(item.digest, item.index) if node.driver is not None else None
        if data is None:
            return NotHeld(item.digest)
        return Chunk(item.digest, item.index, memoryview(data))

    def _transmit(self, source: NodeId, target: NodeId, frame: bytes, *, heavy: bool) -> None:
        node = self.nodes[target]
        for when in self._network.arrivals(
            source, target, len(frame), heavy=heavy, now=self.now, calm=self.calm
        ):
            self._deliver_at(when, source, node, frame, heavy=heavy)

    def _deliver_at(
        self, when: float, source: NodeId, node: SimNode, frame: bytes, *, heavy: bool
    ) -> None:
        incarnation = node.incarnation

        def deliver() -> None:
            # A connection dies with either process.
            if node.alive and node.incarnation == incarnation:
                self.receive(node, source, frame, heavy=heavy)

        self._at(when, deliver)

    def receive(self, node: SimNode, source: NodeId, frame: bytes, *, heavy: bool = False) -> None:
        """A frame reaches the node; handled at once if signatures cost nothing."""
        if node.processor is not None:
            node.processor.receive(source, frame, heavy=heavy)

    def _wanted(self, node: SimNode, peer: NodeId, message: Message) -> Message | Question | None:
        return node.behaviour.participant.wanted(peer, message) if node.honest else message

    def _handle_received(self, node: SimNode, event: Event) -> None:
        if node.alive:
            self.handle(node, event)

    def _refused(self, fault: PeerFault) -> None:
        self.faults_refused[type(fault).__name__] += 1

    def _reconnect_all(self) -> None:
        for node in self.nodes:
            for peer in self.nodes:
                if peer is not node:
                    self._connect(node, peer.id)

    def _connect(self, node: SimNode, peer: NodeId) -> None:
        if node.alive:
            self.handle(node, Connected(peer))

    # --- Faults of one machine -------------------------------------------------------------

    def crash(
        self, member: NodeId, *, downtime_s: float | None = None, power: bool | None = None
    ) -> None:
        """Kill a node's process; with `power` also lose what was not synced (None: by chance)."""
        node = self.nodes[member]
        if not node.alive:
            return
        self.crashes += 1
        self.checker.forgot(member)
        self.checker.down(member)
        node.alive = False
        node.incarnation += 1
        node.tick_at = None
        if node.driver is not None:
            node.driver.die()
        node.disk.full = False
        if node.processor is not None:
            node.processor.stop()
        if power is None:
            power = self._rng.random() < self.conditions.power_loss_share
            power = power and member in self._power_victims
        if power:
            node.disk.lose_power()
        if self._transcript is not None:
            self._transcript.text(self.now, member, "loses power" if power else "is killed")
        if downtime_s is None:
            downtime_s = self._rng.expovariate(1.0) * self.conditions.downtime_s
        self._at(self.now + downtime_s, lambda: self.restart(member))

    def _roll_back(self, node: SimNode) -> None:
        if node.copies is None:
            return
        self.crash(node.id, power=False)
        node.disk = node.copies[0].copy()
        if self._transcript is not None:
            self._transcript.text(self.now, node.id, "has its disk rolled back")

    def _crash_all(self) -> None:
        for node in self.nodes:
            self.crash(node.id)

    def restart(self, member: NodeId) -> None:
        node = self.nodes[member]
        if node.alive:
            return
        node.alive = True
        self._boot(node)
        node.behaviour = self._behaviour(member, node.disk.recovered())
        if self._transcript is not None:
            self._transcript.text(self.now, member, "restarts")
        self.checker.restarted(member, node.behaviour.participant.replica.head.height)
        self.checker.disturbed(self._newest_view)
        self.checker.up(member)
        self._count_rounds()
        self.handle(node, Tick())
        for peer in self.nodes:
            # A connection needs both directions.
            cut = self._network.cuts(member, peer.id, self.now) or self._network.cuts(
                peer.id, member, self.now
            )
            if peer is not node and not cut:
                self._connect(peer, member)
                self._connect(node, peer.id)

    def _harm_disk(self, node: SimNode) -> None:
        if self._strikes(node, self.conditions.disk_full_rate):
            self._fill_disk(node)
        if node.id in self._rot_victims and self._strikes(node, self.conditions.rot_rate):
            blobs = node.disk.blobs
            chunks = [(digest, index) for digest in sorted(blobs) for index in blobs[digest].chunks]
            if chunks:
                digest, index = self._rng.choice(chunks)
                blobs[digest].rotten.add(index)
                self.checker.away(node.id)

    def _sync_fails(self, node: SimNode) -> bool:
        failed = self._strikes(node, self.conditions.sync_failure_rate)
        if failed:
            self.checker.away(node.id)
        return failed

    def _fill_disk(self, node: SimNode) -> None:
        if node.disk.full:
            return
        node.disk.full = True
        self.checker.down(node.id)
        incarnation = node.incarnation

        def room_again() -> None:
            if node.incarnation == incarnation:
                node.disk.full = False
                self.checker.up(node.id)

        self._at(self.now + self._rng.expovariate(1.0) * self.conditions.downtime_s, room_again)
