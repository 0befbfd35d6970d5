"""A task that is learned in a few rounds: every node's data pull the model to the same point."""

import numpy as np

from defl.ids import NodeId, Round
from defl.lab.baselines import systems
from defl.lab.baselines.machine import Machine, Merge
from defl.lab.baselines.virtual import Training, Virtual
from defl.lab.experiments.cells import TIMING, Task
from defl.sim.scenario import federation_of, signers_of

POINT = 3.0
SAMPLES = 100


class PointClient:
    def __init__(self, node: NodeId, flipped: bool, values: int) -> None:
        self._node = node
        self._point = np.float32(-POINT if flipped else POINT)
        self._values = values

    def initial_weights(self):
        return {"w": np.zeros(self._values, dtype=np.float32)}

    def train(self, weights, round_):
        rng = np.random.default_rng([self._node, round_])
        noise = rng.standard_normal(self._values, dtype=np.float32) * np.float32(0.01)
        step = (self._point - weights["w"]) * np.float32(0.5)
        return {"w": weights["w"] + step + noise}, {"samples": SAMPLES}

    def evaluate(self, weights):
        return {"distance": float(np.abs(weights["w"] - POINT).mean())}


def points(values: int = 2000) -> Task:
    return Task(lambda node, flipped: PointClient(node, flipped, values))


def distance(row, rounds: int) -> float:
    """How far a model is from where honest training alone has brought it after so many rounds."""
    return float(np.abs(row - POINT * (1 - 0.5**rounds)).mean())


class World:
    """A baseline on virtual time whose machines a test can look at."""

    def __init__(
        self,
        profile: systems.Profile,
        nodes: int = 4,
        rounds: int = 4,
        *,
        seed: int = 1,
        values: int = 500,
        aggregation: str = "fed_avg",
        merges: dict[int, Merge] | None = None,
        real_signatures: bool = False,
    ) -> None:
        signers, scheme = signers_of(nodes + 1, seed=seed, real=real_signatures)
        self.federation, _ = federation_of(
            signers[:nodes], rounds=rounds, values=values, aggregation=aggregation, timing=TIMING
        )
        self.initial = np.zeros(values, dtype=np.float32)
        self.machines: list[Machine] = [
            systems.machine_of(
                profile,
                self.federation,
                NodeId(seat),
                systems.Keys(signers[seat], scheme, signers[-1].public_key),
                self.initial,
                seed=seed,
                merge=(merges or {}).get(seat),
            )
            for seat in range(systems.seats_of(profile, nodes))
        ]
        self.models: dict[tuple[int, int], np.ndarray] = {}
        self.virtual = Virtual(
            self.machines,
            systems.frames_of(profile, self.federation),
            {NodeId(i): _training(NodeId(i), values) for i in range(nodes)},
            seed=seed,
            on_model=lambda seat, model: self.models.update({(seat, model.round): model.row}),
        )

    def run(self) -> "World":
        self.virtual.run()
        return self

    def run_until_round(self, round_: int) -> None:
        self.virtual.run(until=lambda: any(made == round_ for _, made in self.models))

    def rounds_of(self, seat: int) -> int:
        return max((round_ for made, round_ in self.models if made == seat), default=0)


def _training(node: NodeId, values: int) -> Training:
    client = PointClient(node, False, values)

    def train(row, round_: Round):
        weights, _ = client.train({"w": row}, round_)
        return weights["w"], SAMPLES

    return train
