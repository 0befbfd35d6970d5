"""Bytes sent and stored by each system, counted in the simulator with trivial training.

Payload bytes depend only on nodes, rounds and model size, so the clients learn nothing and T = 50
rounds of ten nodes take seconds.
"""

from pathlib import Path

import numpy as np
from msgspec import Struct

from defl.clients.numpy import FunctionClient
from defl.clients.protocol import Metrics
from defl.ids import NodeId, Round
from defl.lab.baselines import blockchain
from defl.lab.experiments import analysis
from defl.lab.experiments.analysis import Predicted
from defl.lab.experiments.cells import DEFL, Cell, CellResult, Task, run_cell
from defl.lab.experiments.paper.settings import NODES
from defl.schema import Weights

VALUES = 20_000
SIZE_BYTES = 4 * VALUES
ROUNDS = (5, 20, 50)
BISCOTTI_LEADER = "biscotti_leader"  # only the leader sends the block
FORMULAS = {
    "fl": analysis.fl,
    "swarm": analysis.swarm,
    "biscotti": analysis.biscotti,
    BISCOTTI_LEADER: analysis.biscotti,
    "defl": analysis.defl,
}
LEADER_PROFILE = blockchain.BiscottiProfile(
    verifiers=1, wait_share=1.0, keep_refused=True, flood=False
)


class TrafficResult(Struct, frozen=True, tag="traffic"):
    payload_sent: tuple[int, ...]  # weights, by seat; a server or ordering service comes last
    payload_received: tuple[int, ...]
    frames_sent: tuple[int, ...]  # all bytes, likewise
    frames_received: tuple[int, ...]
    stored: tuple[int, ...]  # all bytes on disk at the end
    weights_stored: tuple[int, ...]  # of which weights


class TrafficCell(Struct, frozen=True, tag="traffic"):
    system: str
    nodes: int
    rounds: int
    values: int = VALUES
    seed: int = 1

    @property
    def effort(self) -> float:
        """In the unit of AccuracyCell.effort: steps of training."""
        each = 5.0 if self.system == DEFL else 0.2  # consensus is simulated message by message
        return self.nodes**2 * self.rounds * each

    @property
    def predicted(self) -> Predicted:
        size = 4 * self.values
        if self.system == BISCOTTI_LEADER:
            return analysis.biscotti(self.nodes, size, self.rounds, flood=False)
        return FORMULAS[self.system](self.nodes, size, self.rounds)

    def run(self, _: Path | None) -> TrafficResult:
        leader = self.system == BISCOTTI_LEADER
        cell = Cell(
            "biscotti" if leader else self.system,
            self.nodes,
            self.rounds,
            seed=self.seed,
            profile=LEADER_PROFILE if leader else None,
        )
        result: CellResult = run_cell(cell, Task(lambda node, _: random_walk(node, self.values)))
        return TrafficResult(
            payload_sent=tuple(seat.weights_sent for seat in result.traffic),
            payload_received=tuple(seat.weights_received for seat in result.traffic),
            frames_sent=tuple(sum(seat.sent.values()) for seat in result.traffic),
            frames_received=tuple(sum(seat.received.values()) for seat in result.traffic),
            stored=result.stored,
            weights_stored=result.weights_stored,
        )


def random_walk(node: NodeId, values: int) -> FunctionClient:
    """A client that moves at random; there is nothing to learn."""

    def train(weights: Weights, round_: Round) -> tuple[Weights, Metrics]:
        rng = np.random.default_rng([node, round_])
        step = rng.standard_normal(values, dtype=np.float32)
        return {"w": np.add(weights["w"], step, dtype=np.float32)}, {"samples": 1.0}

    return FunctionClient({"w": np.zeros(values, dtype=np.float32)}, train)


def planned() -> list[TrafficCell]:
    return [
        TrafficCell(system, nodes, rounds)
        for system in FORMULAS
        for nodes in NODES
        for rounds in ROUNDS
    ]
