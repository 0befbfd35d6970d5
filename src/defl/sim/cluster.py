"""n participants on a virtual clock: the simulator's driver of the machine that node/ drives.

The cluster starts, ticks, kills and restarts its nodes, and judges the run. One seed determines all
randomness. Frames are real bytes that pass the real ingress; only the wire, the disk, the clock and
the training are simulated. `driver.py` is one process of these, `traffic.py` connects them. The
file is long because a scenario reads and changes one world: what comes next depends on all of it.
"""

import random
from collections.abc import Callable, Mapping
from functools import partial
from math import inf

from defl.budget import Budget
from defl.committee import Federation
from defl.contacts import id_of
from defl.crypto import Scheme, Signer
from defl.duty import Report
from defl.ids import NodeId
from defl.ingress import Ingress
from defl.messages import Manifest, Message
from defl.output import (
    Aggregate,
    ApproveChange,
    Durable,
    Event,
    Notice,
    Output,
    Propose,
    Question,
    Received,
    Tick,
    Train,
    Validate,
    Work,
)
from defl.participant import Participant
from defl.participant_parts import first_durable, present_epoch
from defl.sim import task
from defl.sim.checks import Checker, HonestNode
from defl.sim.conditions import Conditions
from defl.sim.disk import Disk
from defl.sim.driver import DriverWorld, Inputs, VirtualDriver
from defl.sim.durability import InputsCheck, RecordCheck
from defl.sim.machine_faults import MachineFaults
from defl.sim.network import Network
from defl.sim.processor import Processor, ProcessorWorld
from defl.sim.signer import LiarSafety
from defl.sim.sim_node import Behaviour, Honest, SimNode, Unruly, Wrap
from defl.sim.sim_progress import SimProgress
from defl.sim.traffic import ClusterTraffic
from defl.sim.transcript import Transcript
from defl.sim.virtual_clock import VirtualClock
from defl.unsent import Unsent
from defl.work import aggregate

# New contacts are connected after this long.
CONNECT_S = 0.05
# Each kind of work takes this part of a training's time, drawn anew for each piece of work. Nothing
# is done in no time: what arrives while work is under way must not rely on its result.
WORK_SHARES: dict[type[Work], float] = {Train: 1.0, Aggregate: 0.1, Validate: 0.05}


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
        self.events = 0
        self.crashes = 0
        self.signers = list(signers)
        self._scheme = scheme
        self._wraps = dict(byzantine or {})
        self._rng = random.Random(seed)
        self._clock = VirtualClock()
        self._transcript = transcript
        self._training = training or partial(task.train, seed)
        self._aggregating = aggregating
        self._on_notice = on_notice
        self.watchers: list[Callable[[SimNode, Report], None]] = []
        self.checker = Checker(federation, scheme, honest=self._is_honest)
        self.checker.quiet = not conditions.disturbing
        self._initial = initial
        committee = federation.committee
        self.nodes = [self._new_node(member) for member in committee.members]
        self.honest = [node for node in self.nodes if node.honest]
        self._progress = SimProgress(self.checker.facts, conditions, self.honest)
        network = Network(conditions, self._rng, self.is_calm)
        self.traffic = ClusterTraffic(self.nodes, self._clock, network, self.checker, transcript)
        self.faults = MachineFaults(
            committee,
            conditions,
            self._rng,
            self._clock,
            self.checker,
            liars=bool(self._wraps),
            is_calm=self.is_calm,
        )
        for node in self.nodes:
            self._boot(node)
        self._plan()

    def _is_honest(self, member: NodeId) -> bool:
        return member not in self._wraps

    def _new_node(self, member: NodeId) -> SimNode:
        manifest, payload = self._initial
        disk = Disk(first_durable(self.federation, manifest))
        disk.store_blob(manifest, payload, self.federation.chunk_bytes)
        skew = self.conditions.clock_skew
        node = SimNode(
            id=member,
            key=self.signers[member].public_key,
            behaviour=self._behaviour(member, disk.recovered()),
            ingress=Ingress(self.federation, self._scheme),
            disk=disk,
            honest=self._is_honest(member),
            rate=1.0 + self._rng.uniform(-skew, skew),
        )
        if node.honest and all(rollback.member != member for rollback in self.conditions.rollbacks):
            node.records = RecordCheck(member, self.checker.violate)
        return node

    def _boot(self, node: SimNode) -> None:
        """A new process has nothing in flight. Liars verify everything at no cost, so that they
        can repeat whatever exists."""
        node.ingress = self._ingress(node)
        participant = node.behaviour.participant
        node.contacts_seen = participant.contacts, participant.contacts.version
        self.checker.entered(node.id, participant, self._honest_disks)
        budget = Budget(participant.federation.committee) if node.honest else None
        cost_s = self.conditions.signature_s if node.honest else 0.0
        world = ProcessorWorld(
            clock=lambda: self.now,
            at=self._clock.at,
            wanted=partial(self._wanted, node),
            has_requested=node.behaviour.participant.has_requested,
            handle=node.handle,
            refused=self.traffic.refused,
        )
        node.processor = Processor(node.ingress, budget, cost_s, world)
        check = InputsCheck(node.id, self.checker.violate) if node.honest else None
        node.driver = VirtualDriver(
            node.disk, self.conditions.writes, self.federation.chunk_bytes, self._world(node), check
        )

    def _ingress(self, node: SimNode) -> Ingress:
        participant = node.behaviour.participant
        return Ingress(
            participant.federation,
            self._scheme,
            participant.closed,
            participant.contacts.role_of,
        )

    def _follow_epoch(self, node: SimNode) -> None:
        """After each decision: the node may be in another epoch, or have other contacts."""
        participant = node.behaviour.participant
        seen = participant.contacts, participant.contacts.version
        if seen == node.contacts_seen:
            return
        node.contacts_seen = seen
        if node.ingress.epoch != participant.epoch:
            node.ingress = self._ingress(node)
            self.checker.entered(node.id, participant, self._honest_disks)
            budget = Budget(participant.federation.committee) if node.honest else None
            node.processor.enter(node.ingress, budget)
        self._clock.after(CONNECT_S, partial(self._reconnect, node, node.incarnation))

    def _honest_disks(self) -> dict[NodeId, Disk]:
        return {node.id: node.disk for node in self.honest if not node.stopped}

    def _reconnect(self, node: SimNode, incarnation: int) -> None:
        if node.alive and node.incarnation == incarnation:
            self.traffic.reconnect(node)

    def _world(self, node: SimNode) -> DriverWorld:
        return DriverWorld(
            after=self._clock.after,
            rng=self._rng,
            decide=partial(self._decide, node),
            send=partial(self.traffic.send, node),
            report=partial(self._report, node),
            work_takes_s=partial(self._work_takes_s, node),
            work=partial(self._work, node, Unsent(self.federation.schema, self.federation.codec)),
            dies=partial(self.faults.dies, node),
            crash=partial(self.crash, node.id),
            is_over=lambda: node.honest and node.behaviour.participant.is_over,
            end=partial(self._end, node),
            written=partial(self.faults.written, node),
            sync_fails=partial(self.faults.sync_fails, node),
        )

    def _behaviour(self, member: NodeId, durable: Durable) -> Behaviour:
        federation = present_epoch(self.federation, durable)
        signer = self.signers[member]
        facts = federation, id_of(federation, signer.public_key), signer, durable
        if member in self._wraps:
            rng = random.Random(f"{self.seed}/{member}")
            return self._wraps[member](
                Participant(*facts, safety=LiarSafety), self.signers[member], rng
            )
        return Honest(Participant(*facts))

    def _plan(self) -> None:
        for node in self.nodes:
            start = partial(self._start, node, node.incarnation)
            self._clock.at(self._rng.random() * 0.1, start)
        for late in self.conditions.late_starts:
            self.crash(late.node, downtime_s=late.at_s, power=False)
        for cut in self.conditions.cuts:
            self._clock.at(cut.end_s, self.traffic.reconnect_all)
        for when in self.conditions.all_crash_at_s:
            self._clock.at(when, self._crash_all)
        for rollback in self.conditions.rollbacks:
            node = self.nodes[rollback.member]
            self.faults.keep_copies(node, rollback.writes_ago)
            self._clock.at(rollback.at_s, partial(self._roll_back, node))
        for kill in self.conditions.kills:
            self._clock.at(kill.at_s, partial(self.crash, kill.node))

    # --- Members come and go ---------------------------------------------------------------

    def add_machine(self, signer: Signer) -> SimNode:
        """A new machine, which has the federation's first file and is nobody's member yet."""
        self.signers.append(signer)
        self.checker.facts.add_machine(NodeId(len(self.nodes)), signer.public_key)
        node = self._new_node(NodeId(len(self.nodes)))
        self.nodes.append(node)
        if node.honest:
            self.honest.append(node)
        self._boot(node)
        self._clock.after(0.0, partial(self._start, node, node.incarnation))
        self._clock.after(CONNECT_S, partial(self._reconnect, node, node.incarnation))
        return node

    def stop(self, machine: NodeId) -> None:
        """The machine is switched off for good."""
        node = self.nodes[machine]
        self.crash(machine, downtime_s=inf, power=False)
        node.stopped = True
        self.checker.down(machine)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._clock.after(seconds, action)

    def operator(self, machine: NodeId, event: Propose | ApproveChange) -> None:
        """The operator of this machine asks for something."""
        if self.nodes[machine].alive:
            self.nodes[machine].handle(event)

    # --- Running ---------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self._clock.now

    def is_calm(self) -> bool:
        """Is it too late for random faults?"""
        return self._progress.is_calm(self.now)

    @property
    def rounds_closed(self) -> int:
        """By every honest member."""
        return self._progress.rounds_closed

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Run until all honest nodes are finished, `until` holds, or the run is stuck."""
        clock, progress = self._clock, self._progress
        limit = progress.events_max(len(self.nodes))
        while clock.planned and self.events < limit and clock.now <= progress.stuck_at:
            if until is not None and until():
                return
            self.step()
            if self.events % 64 == 0:
                limit = progress.events_max(len(self.nodes))
                self._notice_quiet()
                if progress.is_over:
                    return

    def _notice_quiet(self) -> None:
        """Once all faults are over, rounds must close within a bounded number of views."""
        if self.checker.quiet:
            return
        if self.is_calm() and self.now >= self.conditions.planned_trouble_s:
            self.checker.quiet = True
            self._disturbance_ends()

    def _disturbance_ends(self) -> None:
        participants = (node.behaviour.participant for node in self.honest)
        self.checker.disturbed(*max((p.epoch, p.replica.view) for p in participants))

    def step(self) -> None:
        self.events += 1
        self._clock.step()

    def conclude(self) -> list[str]:
        """Judge the whole run; returns the violations."""
        honest = [
            HonestNode(node.id, node.behaviour.participant, node.disk)
            for node in self.honest
            if not node.stopped or node.behaviour.participant.departed
        ]
        self.checker.conclude(honest, rounds_due=True)
        return self.checker.violations

    # --- One node --------------------------------------------------------------------------

    def _start(self, node: SimNode, incarnation: int) -> None:
        if node.incarnation == incarnation:
            node.handle(Tick())

    def _wanted(self, node: SimNode, peer: NodeId, message: Message) -> Message | Question | None:
        return node.behaviour.participant.wanted(peer, message) if node.honest else message

    def _decide(self, node: SimNode, event: Event) -> Output:
        if self.checker.rolled_back and isinstance(event, Received):
            self.checker.took_in(node.id, event.message, event.epoch)
        output = node.behaviour.handle(event, self._clock.now * node.rate)
        self._follow_epoch(node)
        self._set_tick(node, output.wake_at)
        if isinstance(output, Unruly):  # liars have no order of duty
            for target, frame in output.frames:
                self.traffic.transmit(node.id, target, frame, heavy=False)
        if output.committed or (output.persist and output.persist.snapshot):
            self._progress.count_rounds(self.now)
        if output.persist is not None or output.store:
            self.faults.harm_disk(node)
        return output

    def _report(self, node: SimNode, report: Report) -> None:
        self.checker.committed(node.id, report.committed)
        if report.committed and node.honest:
            self.checker.needs(node.behaviour.participant, self._honest_disks)
        for notice in report.notices:
            self.checker.notice(node.id, notice, self.now, node.behaviour.participant)
            if self._transcript is not None:
                self._transcript.notice(self.now, node.id, notice)
            if self._on_notice is not None:
                self._on_notice(node.id, notice)
        for watch in self.watchers:
            watch(node, report)

    def _set_tick(self, node: SimNode, wake_at: float | None) -> None:
        at = None if wake_at is None else max(self._clock.now, wake_at / node.rate)
        if at == node.tick_at:
            return
        node.tick_at = at
        if at is not None:
            self._clock.at(at + 1e-6, partial(self._tick, node, node.incarnation, at))

    def _tick(self, node: SimNode, incarnation: int, at: float) -> None:
        if node.alive and node.incarnation == incarnation and node.tick_at == at:
            node.tick_at = None
            node.handle(Tick())

    def _work_takes_s(self, node: SimNode, work: Work) -> float:
        return self.conditions.work_time(node.id, self._rng) * WORK_SHARES[type(work)]

    def _work(self, node: SimNode, unsent: Unsent, work: Work, inputs: Inputs) -> task.WorkDone:
        return task.done(
            self.federation,
            self._training,
            node.id,
            work,
            inputs,
            unsent,
            aggregating=self._aggregating,
        )

    # --- Crash and restart -----------------------------------------------------------------

    def crash(
        self, member: NodeId, *, downtime_s: float | None = None, power: bool | None = None
    ) -> None:
        """Kill a node's process; with `power` also lose what was not synced (None: by chance)."""
        node = self.nodes[member]
        if not node.alive:
            return
        self.crashes += downtime_s != inf
        self.checker.forgot(member)
        self.checker.down(member)
        self._stop_process(node)
        node.disk.full = False
        if power is None:
            power = self.faults.loses_power()
        if power:
            node.disk.lose_power()
            self.checker.lost_power(self._honest_disks())
        else:
            self._clock.after(CONNECT_S, partial(self._disconnect, node, node.incarnation))
        if self._transcript is not None:
            self._transcript.text(self.now, member, "loses power" if power else "is killed")
        if downtime_s is None:
            downtime_s = self.faults.downtime_s()
        if downtime_s < inf:
            self._clock.after(downtime_s, partial(self.restart, member))

    def _end(self, node: SimNode) -> None:
        """Its process ends by itself, as that of a real node does."""
        node.ended = True
        self._stop_process(node)
        self._clock.after(CONNECT_S, partial(self._disconnect, node, node.incarnation))

    def _stop_process(self, node: SimNode) -> None:
        node.alive = False
        node.incarnation += 1
        node.tick_at = None
        node.driver.die()
        node.processor.stop()

    def _disconnect(self, node: SimNode, incarnation: int) -> None:
        """A process that is killed ends its connections, a machine without power does not."""
        if node.incarnation == incarnation and not node.alive:
            self.traffic.disconnect(node)

    def _crash_all(self) -> None:
        for node in self.nodes:
            self.crash(node.id)

    def _roll_back(self, node: SimNode) -> None:
        if node.copies is None:
            return
        self.crash(node.id, power=False)
        node.disk = node.copies[0].copy()
        if self._transcript is not None:
            self._transcript.text(self.now, node.id, "has its disk rolled back")

    def restart(self, member: NodeId) -> None:
        node = self.nodes[member]
        if node.alive or node.stopped:
            return
        node.alive = True
        node.behaviour = self._behaviour(member, node.disk.recovered())
        self._boot(node)
        if self._transcript is not None:
            self._transcript.text(self.now, member, "restarts")
        participant = node.behaviour.participant
        place = participant.epoch, int(participant.replica.head.height)
        self.checker.restarted(member, place)
        self._disturbance_ends()
        self.checker.up(member)
        self._progress.count_rounds(self.now)
        node.handle(Tick())
        self.traffic.reconnect(node)
