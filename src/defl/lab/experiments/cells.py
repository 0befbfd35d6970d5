"""One run of one system on virtual time: the same task, threats and counts for all four.

DeFL runs in sim/, the baselines in lab/baselines/virtual.py. Training, aggregation and every byte
are real; only network, disk and clock are simulated. A cell's result is a function of its settings
and clients.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from defl.clients.protocol import Client, Training, initial_row, roles_of, schema_of
from defl.committee import DEFAULTS, Charter, Federation, Membership, Rules, Timing
from defl.errors import UserError, WeightsError
from defl.founding import Founding, found
from defl.ids import NodeId, Round
from defl.lab.baselines import systems
from defl.lab.baselines.machine import SAMPLES_MAX, SAMPLES_METRIC, Merge, SeatModelReady
from defl.lab.baselines.virtual import Virtual, VirtualTraffic
from defl.lab.experiments.threats import NONE, ClientFactory, Threat, client_of, threat_named
from defl.schema import Codec, Row, Schema
from defl.sim.byzantine import KINDS
from defl.sim.cluster import Cluster
from defl.sim.conditions import Conditions
from defl.sim.live import LiveRun
from defl.sim.scenario import members_of, signers_of

DEFL = "defl"
# A system's name in tables, and the aggregation rule that the paper gives it.
SYSTEMS: dict[str, str] = {
    "fl": "fed_avg",
    "fl_multi_krum": "multi_krum",
    "swarm": "fed_avg",
    "biscotti": "multi_krum",
    DEFL: "multi_krum",
}

# Members train for about equally long here, so rounds do not wait long for a slow attacker.
TIMING = Timing(
    view_base_s=1.0, view_cap_s=30.0, gst_lt_min_s=4.0, gst_lt_max_s=120.0, grace_s=120.0
)
# Downtime of a node that does not come back.
FOR_GOOD_S = 1e9

OnModel = Callable[[Round, Row], None]


@dataclass(frozen=True)
class Task:
    """What the federation learns: the agreed first weights and each node's client."""

    factory: ClientFactory

    @cached_property
    def _first(self) -> tuple[Schema, Row]:
        client = self.factory(NodeId(0), False)
        schema = schema_of(client.initial_weights(), roles_of(client))
        return schema, initial_row(client, schema)

    @property
    def schema(self) -> Schema:
        return self._first[0]

    @property
    def initial(self) -> Row:
        return self._first[1]


@dataclass(frozen=True)
class Cell:
    system: str
    nodes: int
    rounds: int
    threats: Mapping[NodeId, str] = field(default_factory=dict)  # the others are honest
    seed: int = 1
    aggregation: str | None = None  # None: as in SYSTEMS
    profile: systems.Profile | None = None  # None: what the paper measured
    tau: int = DEFAULTS.tau
    codec: Codec = DEFAULTS.codec
    chunk_bytes: int = DEFAULTS.chunk_bytes
    rules: Rules = DEFAULTS.rules
    timing: Timing = TIMING
    conditions: Conditions = field(default_factory=Conditions)
    # Seats to kill as soon as the judged node has this round's model.
    dead: Mapping[NodeId, Round] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.system not in SYSTEMS:
            raise UserError(f"unknown system {self.system!r}; choose one of: {', '.join(SYSTEMS)}")
        if self.system != DEFL and self.codec == Codec.INT8_MASKED:
            raise UserError(f"only DeFL's members send masked updates, not {self.system}'s")
        for node in self.threats:
            if not 0 <= node < self.nodes:
                raise UserError(f"node {node} is attacked, but there are {self.nodes} nodes")
            if self.threat(node).liar is not None and self.system != DEFL:
                raise UserError(
                    f"{self.threat(node).name} is a lie that only DeFL's nodes can tell"
                )

    def threat(self, node: NodeId) -> Threat:
        return threat_named(self.threats[node]) if node in self.threats else NONE

    @property
    def judged(self) -> NodeId:
        """The node whose model counts: the first honest one."""
        return next(NodeId(i) for i in range(self.nodes) if NodeId(i) not in self.threats)


@dataclass(frozen=True, slots=True)
class CellResult:
    rounds_closed: int  # at the judged node
    model: Row  # its last one
    traffic: tuple[VirtualTraffic, ...]  # of each seat; a server or ordering service comes last
    stored: tuple[int, ...]  # bytes on each seat's disk at the end
    weights_stored: tuple[int, ...]  # of which weights; the rest is log, chain and records
    virtual_s: float

    @property
    def weights_sent(self) -> int:
        return sum(seat.weights_sent for seat in self.traffic)


def run_cell(
    cell: Cell,
    task: Task,
    on_model: OnModel = lambda _round, _row: None,
    *,
    merges: Mapping[NodeId, Merge] | None = None,
) -> CellResult:
    """`on_model` hears each round's model at the judged node; `merges` makes lying mergers."""
    founding = _founding(cell, task)
    clients = _clients(cell, task)
    if cell.system == DEFL:
        return _run_defl(cell, task, founding, clients, on_model)
    return _run_baseline(cell, task, founding.federation, clients, on_model, merges or {})


def _founding(cell: Cell, task: Task) -> Founding:
    signers, _ = signers_of(cell.nodes, seed=cell.seed, real=False)
    draft = Charter(
        task.schema,
        tau=cell.tau,
        rules=cell.rules,
        aggregation=cell.aggregation or SYSTEMS[cell.system],
        codec=cell.codec,
        chunk_bytes=cell.chunk_bytes,
        timing=cell.timing,
    )
    membership = Membership(rounds=cell.rounds, members=members_of(signers))
    return found(draft, membership, task.initial)


class _Client:
    """A node's client as both simulators call it."""

    def __init__(self, client: Client, schema: Schema) -> None:
        self._training = Training(client, schema)

    def __call__(self, row: Row, round_: Round) -> tuple[Row, int] | None:
        try:
            trained, metrics = self._training.train(row, round_)
        except WeightsError:
            return None  # an attack destroyed the model: the node has no update
        return trained, min(SAMPLES_MAX, max(1, int(metrics.get(SAMPLES_METRIC, 1))))


def _clients(cell: Cell, task: Task) -> dict[NodeId, _Client]:
    nodes = map(NodeId, range(cell.nodes))
    return {
        node: _Client(
            client_of(cell.threat(node), task.factory, seed=cell.seed, node=node),
            task.schema,
        )
        for node in nodes
        if not cell.threat(node).silent
    }


class _Watch:
    """The judged node's newest model."""

    def __init__(self, initial: Row, on_model: OnModel) -> None:
        self.round, self.row = Round(0), initial
        self._on_model = on_model

    def model(self, round_: Round, row: Row) -> None:
        self.round, self.row = round_, row
        self._on_model(round_, row)


# --- The baselines -------------------------------------------------------------------------


def _run_baseline(
    cell: Cell,
    task: Task,
    federation: Federation,
    clients: Mapping[NodeId, _Client],
    on_model: OnModel,
    merges: Mapping[NodeId, Merge],
) -> CellResult:
    profile = cell.profile or systems.PAPER[cell.system.removesuffix("_multi_krum")]
    signers, scheme = signers_of(cell.nodes + 1, seed=cell.seed, real=False)
    machines = [
        systems.machine_of(
            profile,
            federation,
            NodeId(seat),
            systems.Keys(signers[seat], scheme, signers[-1].public_key),
            task.initial,
            seed=cell.seed,
            merge=merges.get(NodeId(seat)),
        )
        for seat in range(systems.seats_of(profile, cell.nodes))
    ]
    watch = _Watch(task.initial, on_model)

    def learned(seat: NodeId, model: SeatModelReady) -> None:
        if seat == cell.judged:
            watch.model(model.round, model.row)
            for victim, round_ in cell.dead.items():
                if round_ == model.round:
                    world.kill(victim)

    world = Virtual(
        machines,
        systems.frames_of(profile, federation),
        clients,
        seed=cell.seed,
        conditions=cell.conditions,
        on_model=learned,
    )
    for node in range(cell.nodes):
        if cell.threat(NodeId(node)).silent:
            world.kill(NodeId(node))
    world.run()
    ended = world.now
    world.drain()
    return CellResult(
        rounds_closed=watch.round,
        model=watch.row,
        traffic=tuple(seat.traffic for seat in world.seats),
        stored=tuple(seat.stored_bytes for seat in world.seats),
        weights_stored=tuple(seat.weights_stored for seat in world.seats),
        virtual_s=ended,
    )


# --- DeFL ----------------------------------------------------------------------------------


def _run_defl(
    cell: Cell,
    task: Task,
    founding: Founding,
    clients: Mapping[NodeId, _Client],
    on_model: OnModel,
) -> CellResult:
    kinds = {node: _liar(cell.threat(node)) for node in cell.threats}
    watch = _Watch(task.initial, on_model)

    def train(node: NodeId, round_: Round, base: Row) -> Row | None:
        trained = clients[node](base, round_) if node in clients else None
        return None if trained is None else trained[0]

    def learned(node: NodeId, round_: Round) -> None:
        if node == cell.judged:
            watch.model(round_, run.model_of(node))
            for victim, last_round in cell.dead.items():
                if last_round == round_:
                    cluster.crash(victim, downtime_s=FOR_GOOD_S, power=False)

    run = LiveRun(
        founding,
        train,
        seed=cell.seed,
        conditions=cell.conditions,
        byzantine={node: KINDS[kind] for node, kind in kinds.items() if kind is not None},
        on_model=learned,
    )
    cluster = run.cluster
    cluster.run(until=lambda: _over(cluster, cell))
    if violations := cluster.checker.violations:
        raise AssertionError(f"{cell}: {violations}")
    disks = [node.disk for node in cluster.nodes]
    return CellResult(
        rounds_closed=watch.round,
        model=watch.row,
        traffic=_traffic(cluster),
        stored=tuple(disk.stored_bytes for disk in disks),
        weights_stored=tuple(
            sum(len(data) for blob in disk.blobs.values() for data in blob.chunks.values())
            for disk in disks
        ),
        virtual_s=cluster.now,
    )


def _liar(threat: Threat) -> str | None:
    return "silent" if threat.silent else threat.liar


def _over(cluster: Cluster, cell: Cell) -> bool:
    """Every living node has the last model."""
    living = [node for node in cluster.honest if node.alive or node.id not in cell.dead]
    return all(node.behaviour.participant.finished for node in living)


def _traffic(cluster: Cluster) -> tuple[VirtualTraffic, ...]:
    traffic = tuple(VirtualTraffic() for _ in cluster.nodes)
    for (source, target, lane), size in cluster.traffic.frames_bytes.items():
        traffic[source].sent[lane] += size
        traffic[target].received[lane] += size
    for (source, target), size in cluster.traffic.weights_bytes.items():
        traffic[source].weights_sent += size
        traffic[target].weights_received += size
    return traffic
