"""One accuracy: a system, an attack and a division of the data, trained in the simulator.

A cell's settings are its key; its result depends on them and on the data alone.
"""

from pathlib import Path
from statistics import mean

import msgspec
import numpy as np
from msgspec import Struct

from defl.clients.extras import install_command
from defl.clients.protocol import Client, Metrics, Roles, roles_of
from defl.errors import UserError
from defl.ids import NodeId, Round
from defl.lab.experiments.cells import Cell, Task, run_cell
from defl.lab.experiments.paper.checkpoints import CheckpointFolder
from defl.lab.experiments.paper.merges import WatchedMerge
from defl.lab.experiments.threats import ClientFactory, attacked
from defl.lab.models.learning import Learning
from defl.lab.partition import divide
from defl.schema import Array, Role, Row, Weights

JUDGED = NodeId(0)  # never attacked


class AccuracyResult(Struct, frozen=True, tag="accuracy"):
    accuracy: float
    rounds_closed: int
    samples: tuple[int, ...]  # of each node
    left_out: tuple[float, ...] = ()  # share of rounds, by node; watched merges only


class AccuracyCell(Struct, frozen=True, tag="accuracy"):
    system: str
    nodes: int
    byzantine: int
    threat: str
    alpha: float | None  # None: i.i.d.
    learning: Learning
    rounds: int
    rounds_judged: int
    seed: int
    rule: str | None = None  # None: the system's own
    merge: str | None = None  # FL's server uses this watched merge (merges.py)

    @property
    def effort(self) -> float:
        """Proportional to the time that it takes."""
        return float(self.nodes * self.rounds * self.learning.steps)

    def run(self, folder: Path | None) -> AccuracyResult:
        from defl.lab.models.learner import learner_of, reproducible  # noqa: PLC0415 - slow, extra

        reproducible()
        learner = learner_of(self.learning, folder)
        rng = np.random.default_rng([self.seed, self.nodes])
        parts = divide(learner.samples.train_labels, self.nodes, self.alpha, rng)
        sizes = tuple(len(part) for part in parts)

        def client(node: NodeId, flipped: bool) -> Client:
            return learner.client(parts[node], seed=self.seed, node=node, flipped=flipped)

        if not self.learning.checkpoints:
            return self.judged(client, sizes)
        checkpoints = CheckpointFolder(msgspec.json.encode(self))
        result = self.judged(
            lambda node, flipped: checkpoints.client(client(node, flipped), node), sizes
        )
        checkpoints.remove()
        return result

    def judged(self, factory: ClientFactory, sizes: tuple[int, ...]) -> AccuracyResult:
        witnesses: list[Witness] = []

        def watched(node: NodeId, flipped: bool) -> Client:
            client = factory(node, flipped)
            if node != JUDGED:
                return client
            witnesses.append(Witness(client))
            return witnesses[-1]

        task = Task(watched)
        cell = Cell(
            self.system,
            self.nodes,
            self.rounds,
            threats=attacked(self.nodes, self.threat, self.byzantine),
            seed=self.seed,
            aggregation=self.rule,
        )
        accuracies: list[float] = []

        def on_model(round_: Round, row: Row) -> None:
            if round_ > self.rounds - self.rounds_judged:
                accuracies.append(witnesses[-1].accuracy(task.schema.unflatten(row)))

        merge = self.merge and WatchedMerge(self.merge, task.schema, self.nodes, self.seed)
        merges = {NodeId(self.nodes): merge} if merge else None
        result = run_cell(cell, task, on_model, merges=merges)
        if not accuracies:
            raise UserError(f"only {result.rounds_closed} of {self.rounds} rounds closed: {cell}")
        return AccuracyResult(
            mean(accuracies), result.rounds_closed, sizes, merge.left_out if merge else ()
        )


def prepare(learning: Learning, folder: Path | None) -> None:
    """Report missing data and fill the caches once, before many processes need them."""
    try:
        from defl.lab.models.learner import learner_of  # noqa: PLC0415 - slow, extra
    except ImportError as error:
        raise UserError(f"models need torch: {install_command('paper')}") from error
    learner_of(learning, folder)


class Witness:
    """The judged node's client, which also evaluates models as that node would use them.

    Batch norm statistics stay local, so each model is evaluated with the node's own.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.initial_weights = client.initial_weights
        self.evaluate = client.evaluate
        self._local = self._local_entries(client.initial_weights())

    def roles(self) -> Roles:
        return roles_of(self._client)

    def train(self, weights: Weights, round_: Round, /) -> tuple[Weights, Metrics]:
        trained, metrics = self._client.train(weights, round_)
        self._local = self._local_entries(trained)
        return trained, metrics

    def accuracy(self, shared: Weights) -> float:
        return self._client.evaluate({**self._local, **shared})["accuracy"]

    def _local_entries(self, weights: Weights) -> dict[str, Array]:
        roles = self.roles()
        return {name: array for name, array in weights.items() if roles.get(name) == Role.LOCAL}
