"""Live client objects in a simulated federation: only wire, disk and clock are simulated.

Clients are called in this process, in the order of the virtual clock. `LiveRun` drives the cluster
and records what its nodes notice; `LiveClients` calls the users' code and keeps its metrics.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from defl.aggregation.aggregate import AggregationResult
from defl.clients.protocol import Client, Metrics, Training
from defl.committee import Federation
from defl.errors import Diverged, WeightsError
from defl.founding import Founding
from defl.ids import Digest, NodeId, Round
from defl.output import Aggregate, ModelReady, Notice, OwnUpdateLate, RoundClosed
from defl.schema import Role, Row, Schema
from defl.sim.cluster import Cluster
from defl.sim.conditions import Conditions
from defl.sim.scenario import signers_of
from defl.sim.sim_node import Wrap
from defl.sim.task import Training as TrainRow
from defl.work import Blob, Read, aggregate, model_row

# --- Running -------------------------------------------------------------------------------------


@dataclass(slots=True)
class LiveRound:
    """One round: each fact as the first honest node noticed it."""

    closed_at_s: float | None = None  # on the virtual clock
    missing: tuple[NodeId, ...] = ()
    late_by: dict[NodeId, float] = field(default_factory=dict)  # seconds after the close
    weights: dict[NodeId, float] = field(default_factory=dict)  # from the rule; 0: left out
    reason: str = ""  # the rule's own words
    digest: Digest | None = None


class LiveRun:
    """One simulated federation, whose keys follow from the seed (scenario.py: signers_of).

    `on_model` is called for each model at each honest node.
    """

    def __init__(
        self,
        founding: Founding,
        train: TrainRow,
        *,
        seed: int,
        conditions: Conditions = Conditions(),  # noqa: B008 - frozen
        byzantine: Mapping[NodeId, Wrap] | None = None,
        on_model: Callable[[NodeId, Round], None] = lambda _node, _round: None,
    ) -> None:
        self.federation = founding.federation
        signers, scheme = signers_of(self.federation.committee.size, seed=seed, real=False)
        manifest, payload = founding.initial
        self.rounds: dict[Round, LiveRound] = {}
        self.models: dict[NodeId, tuple[Round, Digest]] = {}  # each honest node's newest
        self._on_model = on_model
        self._aggregated: dict[Aggregate, tuple[Blob, AggregationResult]] = {}
        memory = self.federation.schema.columns(Role.MEMORY)  # the last entry, if there is one
        self._own = memory[0].start if memory else self.federation.schema.values
        self.cluster = Cluster(
            self.federation,
            signers,
            scheme,
            (manifest, bytes(payload)),
            seed=seed,
            conditions=conditions,
            byzantine=byzantine,
            training=train,
            aggregating=self._aggregate,
            on_notice=self._notice,
        )

    def model_of(self, node: NodeId) -> Row:
        """The node's newest model, without what the aggregation rule remembers."""
        digest = self.models[node][1] if node in self.models else self.federation.initial
        return model_row(self.federation, self.cluster.nodes[node].disk.read(digest))[: self._own]

    def _round(self, number: Round) -> LiveRound:
        return self.rounds.setdefault(number, LiveRound())

    def _aggregate(
        self, federation: Federation, work: Aggregate, read: Read
    ) -> tuple[Blob, AggregationResult]:
        """Once per round, not once per node: the inputs are named by digest, and equal ones give
        equal bits."""
        if work not in self._aggregated:
            # Older rounds are over for all but a node that is far behind, which may compute again.
            self._aggregated = {w: r for w, r in self._aggregated.items() if w.round >= work.round}
            self._aggregated[work] = _, result = aggregate(federation, work, read)
            authors = (reference.author for reference in work.updates)
            record = self._round(work.round)
            record.weights = dict(zip(authors, result.weights, strict=True))
            record.reason = result.reason
        return self._aggregated[work]

    def _notice(self, node: NodeId, notice: Notice) -> None:
        if not self.cluster.nodes[node].honest:
            return
        match notice:
            case RoundClosed(round=number, missing=missing):
                record = self._round(number)
                if record.closed_at_s is None:
                    record.closed_at_s, record.missing = self.cluster.now, missing
            case OwnUpdateLate(round=number, late_s=late_s):
                self._round(number).late_by[node] = late_s
            case ModelReady(round=number, digest=digest):
                self.models[node] = (number, digest)
                self._round(number).digest = digest
                self._on_model(node, number)


# --- The clients ---------------------------------------------------------------------------------


class LiveClients:
    """Calls clients by their member's number; an error names the member and the round.

    A client's own exception leaves the simulation, with its traceback. A training that diverged is
    not the caller's mistake if others poisoned the model: then the member has no update, as on a
    real node.
    """

    def __init__(self, clients: Mapping[NodeId, Client], schema: Schema) -> None:
        self.training: dict[Round, dict[NodeId, Metrics]] = {}
        self.metrics: dict[Round, dict[NodeId, Metrics]] = {}
        self.diverged: dict[Round, dict[NodeId, str]] = {}
        self._clients = {node: Training(client, schema) for node, client in clients.items()}

    def train(self, node: NodeId, round_: Round, base: Row) -> Row | None:
        if node not in self._clients or node in self.diverged.get(round_, {}):
            return None
        try:
            with _calling("train", node, round_):
                row, metrics = self._clients[node].train(base, round_)
        except Diverged as error:
            self.diverged.setdefault(round_, {})[node] = str(error)
            return None
        self.training.setdefault(round_, {})[node] = metrics
        return row

    def evaluate(self, node: NodeId, round_: Round, row: Row) -> None:
        """Each model once, however often the node computes it."""
        metrics = self.metrics.setdefault(round_, {})
        if node not in metrics:
            with _calling("evaluate", node, round_):
                metrics[node] = self._clients[node].evaluate(row)


@contextmanager
def _calling(method: str, node: NodeId, round_: Round) -> Iterator[None]:
    place = f"node-{node}, round {round_}"
    try:
        yield
    except WeightsError as error:
        raise type(error)(f"{place}: {error}") from error
    except Exception as error:  # user code may raise anything; it is raised again, with its place
        error.add_note(f"raised by the {method} of client {node} ({place})")
        raise
