"""One simulated federation from its options to its report.

The report holds what was measured and the checks' verdicts; everything in it but the wall time
and the memory follows from the seed.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

from defl.committee import DEFAULTS, Charter, faults_of
from defl.errors import UserError
from defl.fields import MEMBERS_MAX
from defl.ids import NodeId
from defl.node.setup.requirements import require_conditions
from defl.sim.byzantine import KINDS
from defl.sim.checks import views_to_close_max
from defl.sim.cluster import Cluster
from defl.sim.conditions import Conditions
from defl.sim.epoch_facts import Boundary
from defl.sim.scenario import VALUES, cluster_of
from defl.sim.transcript import Transcript

# Progress is reported a few dozen times a second.
EVENTS_PER_PROGRESS = 256


@dataclass(frozen=True, slots=True)
class Options:
    nodes: int = 4
    rounds: int = 5
    seed: int = 1
    byzantine: tuple[tuple[str, int], ...] = ()  # kind, how many
    charter: Charter = DEFAULTS  # its schema does not count
    values: int = VALUES  # of the model
    conditions: Conditions = field(default_factory=Conditions)
    real_signatures: bool = False

    def __post_init__(self) -> None:
        if not 4 <= self.nodes <= MEMBERS_MAX:
            raise UserError(f"a federation has 4 to {MEMBERS_MAX} nodes, not {self.nodes}")
        if self.rounds < 1:
            raise UserError(f"a simulation needs at least one round, not {self.rounds}")
        for kind, count in self.byzantine:
            if kind not in KINDS:
                raise UserError(
                    f"no Byzantine kind is named {kind!r}; there are: {', '.join(KINDS)}"
                )
            if count < 1:
                raise UserError(f"{kind}:{count} asks for no node at all; the count is 1 or more")
        if self.values < 1:
            raise UserError(f"a model has at least one value, not {self.values}")
        faults = faults_of(self.nodes)
        liars = sum(count for _, count in self.byzantine)
        rolled_back = {rollback.member for rollback in self.conditions.rollbacks}
        if liars + len(rolled_back) > faults:
            raise UserError(
                f"{self.nodes} nodes tolerate {faults} faulty ones, not {liars} Byzantine and "
                f"{len(rolled_back)} rolled back; "
                f"take at least {3 * (liars + len(rolled_back)) + 1} nodes"
            )
        if rolled_back & set(placed(self)):
            raise UserError("a Byzantine node cannot be rolled back too: name another member")


@dataclass(slots=True)
class Stock:
    """What nodes keep at some moment: flat over any number of rounds."""

    round: int
    disk_bytes: int  # blobs, blocks and snapshots of all honest nodes
    memory_bytes: int | None  # of this process; None where the system does not report it


@dataclass(slots=True)
class SimReport:
    options: Options
    rounds_closed: int
    views: int
    blocks_committed: int
    virtual_s: float
    events: int
    messages: dict[str, int]
    bytes: dict[str, int]
    refused: dict[str, int]
    evidence: dict[str, int]
    crashes: int
    boundaries: list[Boundary]
    views_per_round_max: int
    largest: dict[str, int]
    stock: list[Stock]
    checks: dict[str, bool]
    violations: list[str]
    wall_s: float

    @property
    def rounds(self) -> int:
        """The last round, as agreed in the newest epoch."""
        return self.boundaries[-1].rounds if self.boundaries else self.options.rounds

    @property
    def ok(self) -> bool:
        return all(self.checks.values())

    @property
    def _members_max(self) -> int:
        return max(self.options.nodes, *(b.members for b in self.boundaries), 0)

    def as_json(self) -> dict[str, Any]:
        options = self.options
        return {
            "nodes": options.nodes,
            "rules": options.charter.rules.value,
            "aggregation": options.charter.aggregation,
            "codec": options.charter.codec.value,
            "chunk_bytes": options.charter.chunk_bytes,
            "values": options.values,
            "seed": options.seed,
            "byzantine": dict(options.byzantine),
            "rounds": self.rounds,
            "rounds_closed": self.rounds_closed,
            "views": self.views,
            "blocks_committed": self.blocks_committed,
            "virtual_s": round(self.virtual_s, 3),
            "virtual_s_per_round": round(self.virtual_s / max(1, self.rounds_closed), 3),
            "views_per_round_max": self.views_per_round_max,
            "views_per_round_bound": views_to_close_max(self._members_max),
            "events": self.events,
            "messages": self.messages,
            "bytes": self.bytes,
            "refused": self.refused,
            "evidence": self.evidence,
            "crashes": self.crashes,
            "epochs": len(self.boundaries) + 1,
            "boundaries": [asdict(boundary) for boundary in self.boundaries],
            "largest_buffers": self.largest,
            "stock": [
                {"round": s.round, "disk_bytes": s.disk_bytes, "memory_bytes": s.memory_bytes}
                for s in self.stock
            ],
            "checks": self.checks,
            "violations": self.violations,
            "wall_s": round(self.wall_s, 3),
        }


def simulate(
    options: Options,
    *,
    transcript: Transcript | None = None,
    memory: Callable[[], int | None] = lambda: None,
    progress: Callable[[int, int], None] = lambda _closed, _rounds: None,
) -> SimReport:
    started = perf_counter()
    cluster = cluster_of(
        options.nodes,
        rounds=options.rounds,
        seed=options.seed,
        conditions=options.conditions,
        byzantine={member: KINDS[kind] for member, kind in placed(options).items()},
        real_signatures=options.real_signatures,
        transcript=transcript,
        charter=options.charter,
        values=options.values,
    )
    require_conditions(cluster.federation, strict=False)
    stock: list[Stock] = []
    due = _stock_rounds(options.rounds)

    def watch() -> bool:
        closed = cluster.rounds_closed
        if due and closed >= due[0]:
            del due[0]
            stock.append(Stock(closed, _disk_bytes(cluster), memory()))
        if cluster.events % EVENTS_PER_PROGRESS == 0:
            progress(closed, options.rounds)
        return False

    cluster.run(until=watch)
    cluster.conclude()
    return _report(options, cluster, stock, perf_counter() - started)


def placed(options: Options) -> dict[NodeId, str]:
    """Which member is which liar: spread evenly, so that liars lead at different times."""
    kinds = [kind for kind, count in options.byzantine for _ in range(count)]
    step = options.nodes / max(1, len(kinds))
    return {NodeId(int(i * step) + 1): kind for i, kind in enumerate(kinds)}


def _stock_rounds(rounds: int) -> list[int]:
    """A tenth of the way, half of it, and the end."""
    return sorted({max(1, rounds // 10), max(1, rounds // 2), rounds})


def _disk_bytes(cluster: Cluster) -> int:
    return sum(node.disk.stored_bytes for node in cluster.honest)


def _report(options: Options, cluster: Cluster, stock: list[Stock], wall_s: float) -> SimReport:
    participants = [node.behaviour.participant for node in cluster.honest]
    evidence: Counter[str] = Counter()
    for participant in participants:
        for proof in participant.evidence:
            evidence[f"member {proof.first.author}: two {type(proof.first).__name__}s"] += 1
    newest = max(participant.epoch for participant in participants)
    replicas = [participant.replica for participant in participants if participant.epoch == newest]
    height = max(replica.head.height for replica in replicas)
    views = max(replica.view for replica in replicas)
    ended = [last for epoch, last in cluster.checker.last_committed.items() if epoch < newest]
    return SimReport(
        options=options,
        rounds_closed=cluster.rounds_closed,
        views=views + sum(view for _, view in ended),
        blocks_committed=height + sum(height for height, _ in ended),
        virtual_s=max(cluster.checker.closed_at.values(), default=cluster.now),
        events=cluster.events,
        messages=dict(sorted(cluster.traffic.messages.items())),
        bytes=dict(sorted(cluster.traffic.bytes.items())),
        refused=dict(sorted(cluster.traffic.faults_refused.items())),
        evidence=dict(sorted(evidence.items())),
        crashes=cluster.crashes,
        boundaries=cluster.checker.facts.boundaries,
        views_per_round_max=cluster.checker.views_per_round_max,
        largest=dict(sorted(cluster.checker.largest.items())),
        stock=stock,
        checks=cluster.checker.verdicts,
        violations=list(cluster.checker.violations),
        wall_s=wall_s,
    )
