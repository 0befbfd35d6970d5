"""`defl.simulate`: live clients, the real protocol, a virtual clock, one process.

Arguments are checked here, and errors name them as the caller does; sim/live.py runs the
federation. The laboratory's attacks are imported only when one is named.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from defl.aggregation.rules import rule_named
from defl.clients.protocol import (
    Client,
    HasEpoch,
    Metrics,
    initial_row,
    roles_of,
    schema_of,
)
from defl.committee import DEFAULTS, Charter, Membership, Rules, Timing, faults_of, require_counts
from defl.errors import UserError, WeightsError
from defl.fields import WEIGHT_DEFAULT
from defl.founding import Founding, found
from defl.ids import NodeId, Round
from defl.progress import Progress, ProgressDisplay
from defl.results import MemberTraffic, Omission, OmissionReason, RoundRecord, Simulation
from defl.schema import Codec, Entry, Schema
from defl.sim.byzantine import KINDS
from defl.sim.conditions import Conditions
from defl.sim.live import LiveClients, LiveRound, LiveRun
from defl.sim.scenario import members_of, signers_of

if TYPE_CHECKING:
    from defl.lab.attacks.attack import Attack

E = TypeVar("E", bound=StrEnum)

METHODS = ("initial_weights", "train", "evaluate")
# Trainings of about equal length, as members of one federation plan them.
CONDITIONS = Conditions(work_s=1.0, work_sigma=0.1)


def simulate(
    clients: Sequence[Client],
    *,
    rounds: int,
    seed: int = 1,
    byzantine: Mapping[int, str] | None = None,
    aggregation: str = DEFAULTS.aggregation,
    faults_max: int | None = DEFAULTS.faults_max,
    weights: Sequence[int] | None = None,
    conditions: Conditions = CONDITIONS,
    rules: Rules | str = DEFAULTS.rules,
    timing: Timing = DEFAULTS.timing,
    codec: Codec | str = DEFAULTS.codec,
    evaluate: bool = True,
    progress: Progress = None,
) -> Simulation:
    """Train these clients together for some rounds, on a virtual clock in this process.

    Each client is one member (4 to 100); all start from the first one's `initial_weights`. The
    real protocol runs: consensus, certificates, the aggregation rule. The same clients and seed
    give the same result, if the clients themselves are deterministic. If no client states steps or
    epochs, all train as many steps as the median client's epoch has.

    byzantine    member -> the name of an attack on its updates ("sign_flip") or of a kind of
                 misbehaviour in the protocol ("equivocator"); an unknown name lists all of them
    aggregation  how updates become a model; an unknown name lists all rules
    faults_max   Byzantine updates that the rule tolerates; None: as many as consensus does
    weights      how much each client counts in the mean, 1 to 1000; the f heaviest get at most a
                 third together; None: all the same
    conditions   network, crashes and training times of the simulated world
    rules        "hotstuff" (three-chain) or "jolteon" (two-chain)
    timing       bounds on views and on waiting for slow members
    codec        how updates travel: "fp32", "bf16", "int8" or "int8_masked"
    evaluate     honest members evaluate the initial and every round's model, each on its own
                 data; False saves the time, and results have no metrics
    progress     None: one line in a terminal or notebook; True or False: always or never; a
                 function: called with each closed round's RoundRecord
    """
    started = perf_counter()
    if not isinstance(clients, Iterable) or isinstance(clients, Mapping):
        raise UserError(f"clients is a list of client objects, not a {type(clients).__name__}")
    clients = list(clients)
    schema = _common_schema(clients)
    for name, value in (("rounds", rounds), ("seed", seed)):
        if not isinstance(value, int):
            raise UserError(f"{name} is a whole number, not {value!r}")
    require_counts(len(clients), rounds)
    rule_named(aggregation)  # its error lists all rules
    byzantine = _checked_byzantine({} if byzantine is None else byzantine, len(clients))
    _check_world(conditions, timing, len(clients))
    draft = Charter(
        schema,
        aggregation=aggregation,
        faults_max=faults_max,
        rules=_option(Rules, rules),
        codec=_option(Codec, codec),
        timing=timing,
    )
    signers, _ = signers_of(len(clients), seed=seed, real=False)
    membership = Membership(
        rounds=rounds, members=members_of(signers, _checked_weights(weights, clients))
    )
    founding = found(draft, membership, initial_row(clients[0], schema))
    with ProgressDisplay(progress, rounds) as line:
        simulation = _LiveSimulation(
            _with_equal_steps(clients),
            schema,
            byzantine,
            founding,
            conditions,
            seed,
            evaluate,
            line,
        )
        simulation.run()
    return simulation.result(perf_counter() - started)


# --- Arguments -----------------------------------------------------------------------------------


def _common_schema(clients: Sequence[Client]) -> Schema:
    schemas = [_schema_of(number, client) for number, client in enumerate(clients)]
    for number, schema in enumerate(schemas):
        if schema != schemas[0]:
            raise WeightsError(
                f"clients[{number}] has a different model than clients[0]: "
                f"{_difference(schema, schemas[0])}; all members train one model"
            )
    require_counts(len(clients), rounds=1)
    return schemas[0]


def _schema_of(number: int, client: Client) -> Schema:
    if isinstance(client, type):
        raise UserError(f"clients[{number}] is the class {client.__name__}; pass instances of it")
    missing = [name for name in METHODS if not callable(getattr(client, name, None))]
    if missing:
        raise UserError(
            f"clients[{number}] is a {type(client).__name__} without {', '.join(missing)}; "
            f"a client has the methods {', '.join(METHODS)} (defl.Client)"
        )
    try:
        return schema_of(client.initial_weights(), roles_of(client))
    except WeightsError as error:
        raise WeightsError(f"clients[{number}]: {error}") from error


def _difference(schema: Schema, first: Schema) -> str:
    own = {entry.name: entry for entry in schema.entries}
    expected = {entry.name: entry for entry in first.entries}
    for name, entry in expected.items():
        if name not in own:
            return f"it has no entry {name!r}"
        if own[name] != entry:
            return f"entry {name!r} is {_described(own[name])}, not {_described(entry)}"
    extra = [name for name in own if name not in expected]
    if extra:
        return f"its entry {extra[0]!r} is not in the other"
    return "the same entries are in another order"


def _described(entry: Entry) -> str:
    return f"{entry.dtype} {list(entry.shape)} ({entry.role})"


def _option(options: type[E], value: str) -> E:
    if value not in set(options):
        raise UserError(f"there is no {value!r}; choose one of: {', '.join(options)}")
    return options(value)


def _checked_byzantine(byzantine: Mapping[int, str], members: int) -> dict[int, str]:
    example = f"for example byzantine={{{members - 1}: 'sign_flip'}}"
    if not isinstance(byzantine, Mapping):
        raise UserError(f"byzantine maps members to their attacks, {example}")
    for member, name in byzantine.items():
        if not isinstance(member, int) or not 0 <= member < members:
            raise UserError(
                f"byzantine names member {member!r}; members are numbered 0 to {members - 1}, "
                f"{example}"
            )
        if name not in KINDS:
            _attack_named(name)
    tolerated = faults_of(members)
    if len(byzantine) > tolerated:
        raise UserError(
            f"{members} members tolerate {tolerated} Byzantine ones, not {len(byzantine)}; "
            f"take at least {3 * len(byzantine) + 1} clients"
        )
    return dict(byzantine)


def _checked_weights(weights: Sequence[int] | None, clients: Sequence[Client]) -> list[int]:
    if weights is None:
        return [WEIGHT_DEFAULT] * len(clients)
    if not isinstance(weights, Sequence) or len(weights) != len(clients):
        raise UserError(f"weights is a list of {len(clients)} numbers, one per client")
    return list(weights)


def _with_equal_steps(clients: Sequence[Client]) -> Sequence[Client]:
    """Give all clients the median one's epoch, if each would train one epoch of its own.

    An epoch of a larger site has more steps, so its update is longer than the others'. If two
    clients are in the middle, the larger epoch counts: the shorter one trains too little.
    """
    ready_made = [client for client in clients if isinstance(client, HasEpoch)]
    epochs = [steps for client in ready_made if (steps := client.epoch_steps()) is not None]
    if len(epochs) < len(clients) or len(set(epochs)) == 1:
        return clients
    steps = statistics.median_high(epochs)
    return [client.with_steps(steps) for client in ready_made]


def _check_world(conditions: Conditions, timing: Timing, members: int) -> None:
    for name, value, kind in (("conditions", conditions, Conditions), ("timing", timing, Timing)):
        if not isinstance(value, kind):
            raise UserError(f"{name} is a defl.{kind.__name__}, not a {type(value).__name__}")
    named = {
        *conditions.slow,
        *(member for member, _ in conditions.work_factors),
        *(kill.node for kill in conditions.kills),
        *(rollback.member for rollback in conditions.rollbacks),
    }
    strangers = sorted(member for member in named if not 0 <= member < members)
    if strangers:
        raise UserError(
            f"conditions name member {strangers[0]}; members are numbered 0 to {members - 1}"
        )


def _attack_named(name: str) -> "Attack":
    from defl.lab.attacks.attacks import ATTACKS  # noqa: PLC0415 - only an attack needs the lab

    if name not in ATTACKS:
        raise UserError(
            f"no attack and no Byzantine kind is named {name!r}. Attacks on updates: "
            f"{', '.join(ATTACKS)}. Misbehaviour in the protocol: {', '.join(KINDS)}"
        )
    return ATTACKS[name]


def _poisoned(client: Client, name: str, *, seed: int, node: NodeId) -> Client:
    from defl.lab.experiments.poisoned import PoisonedClient  # noqa: PLC0415 - likewise

    return PoisonedClient(client, _attack_named(name), seed=seed, node=node)


# --- Running -------------------------------------------------------------------------------------


class _LiveSimulation:
    """One simulation, from its clients to its result."""

    def __init__(
        self,
        clients: Sequence[Client],
        schema: Schema,
        byzantine: Mapping[int, str],
        founding: Founding,
        conditions: Conditions,
        seed: int,
        evaluate: bool,
        line: ProgressDisplay,
    ) -> None:
        self._schema, self._seed, self._line = schema, seed, line
        self._federation = founding.federation
        self._names = [member.name for member in founding.federation.members]
        self._byzantine = byzantine
        self._honest = [NodeId(i) for i in range(len(clients)) if i not in byzantine]
        self._evaluating = evaluate
        self._shown = 0  # rounds
        by_node = {NodeId(i): client for i, client in enumerate(clients)}
        for member, name in byzantine.items():
            if name not in KINDS:
                node = NodeId(member)
                by_node[node] = _poisoned(by_node[node], name, seed=seed, node=node)
        self._clients = LiveClients(by_node, schema)
        self._run = LiveRun(
            founding,
            self._clients.train,
            seed=seed,
            conditions=conditions,
            byzantine={NodeId(i): KINDS[name] for i, name in byzantine.items() if name in KINDS},
            on_model=self._on_model,
        )

    def run(self) -> None:
        if self._evaluating:
            for node in self._honest:
                self._clients.evaluate(node, Round(0), self._run.model_of(node))
        self._run.cluster.run(until=self._cannot_close)
        if not self._cannot_close():
            self._run.cluster.conclude()
        self._show(self._run.cluster.rounds_closed)

    def _cannot_close(self) -> bool:
        """Do more than f members lack an update? Training again would not change that."""
        diverged = self._clients.diverged.get(self._open_round, {})
        return len(diverged) > self._federation.committee.faults

    @property
    def _open_round(self) -> Round:
        return Round(self._run.cluster.rounds_closed + 1)

    def _on_model(self, node: NodeId, number: Round) -> None:
        if self._evaluating and node in self._honest:
            self._clients.evaluate(node, number, self._run.model_of(node))
        if all(self._run.models.get(node, (0,))[0] >= number for node in self._honest):
            self._show(number)

    def _show(self, number: int) -> None:
        """Show each round once, when all honest members have its model, or at the end."""
        while self._shown < number:
            self._shown += 1
            self._line.closed(self._record(Round(self._shown)))

    # --- The result ------------------------------------------------------------------------

    def result(self, seconds: float) -> Simulation:
        run, cluster = self._run, self._run.cluster
        closed = range(1, cluster.rounds_closed + 1)
        row = run.model_of(self._honest[0])
        return Simulation(
            members=tuple(self._names),
            rounds=tuple(self._record(Round(number)) for number in closed),
            rounds_planned=self._federation.rounds,
            initial_metrics=self._by_name(self._clients.metrics.get(Round(0), {})),
            byzantine={self._names[member]: name for member, name in self._byzantine.items()},
            digests={
                name: run.models[NodeId(i)][1].hex() if NodeId(i) in run.models else None
                for i, name in enumerate(self._names)
            },
            traffic=self._traffic(),
            seconds=seconds,
            seed=self._seed,
            weights={name: a.copy() for name, a in self._schema.unflatten(row).items()},
            checks=cluster.checker.verdicts,
            violations=tuple(cluster.checker.violations),
            virtual_s=cluster.now,
            stopped=self._stopped(),
        )

    def _record(self, number: Round) -> RoundRecord:
        noticed = self._run.rounds.get(number, LiveRound())
        opened = self._run.rounds.get(Round(number - 1), LiveRound()).closed_at_s or 0.0
        return RoundRecord(
            number=number,
            digest=None if noticed.digest is None else noticed.digest.hex(),
            metrics=self._by_name(self._clients.metrics.get(number, {})),
            training=self._by_name(self._clients.training.get(number, {})),
            omissions=tuple(self._omissions(number, noticed)),
            seconds=None if noticed.closed_at_s is None else noticed.closed_at_s - opened,
        )

    def _omissions(self, number: Round, noticed: LiveRound) -> Iterator[Omission]:
        for member, name in enumerate(self._names):
            node = NodeId(member)
            if noticed.weights.get(node) == 0:
                yield Omission(name, OmissionReason.BY_RULE, noticed.reason)
            elif node in noticed.late_by:
                late = f"{noticed.late_by[node]:.1f} virtual seconds after the round closed"
                yield Omission(name, OmissionReason.LATE, late)
            elif node in noticed.missing:
                diverged = self._clients.diverged.get(number, {}).get(node, "")
                yield Omission(name, OmissionReason.NO_UPDATE, diverged)

    def _by_name(self, metrics: Mapping[NodeId, Metrics]) -> dict[str, Metrics]:
        """Honest members' metrics only: an attacker's claim is not a measurement."""
        return {self._names[node]: metrics[node] for node in self._honest if node in metrics}

    def _traffic(self) -> dict[str, MemberTraffic]:
        sent, received = Counter[NodeId](), Counter[NodeId]()
        for (source, target, _), size in self._run.cluster.traffic.frames_bytes.items():
            sent[source] += size
            received[target] += size
        return {
            name: MemberTraffic(sent[NodeId(i)], received[NodeId(i)])
            for i, name in enumerate(self._names)
        }

    def _stopped(self) -> str:
        if self._run.cluster.rounds_closed == self._federation.rounds:
            return ""
        open_round = self._open_round
        if not self._cannot_close():
            return f"round {open_round} did not close within hours of virtual time"
        diverged = self._clients.diverged[open_round]
        names = ", ".join(self._names[node] for node in sorted(diverged))
        return (
            f"round {open_round} cannot close, since {names} have no update: "
            f"{next(iter(diverged.values()))}"
        )
