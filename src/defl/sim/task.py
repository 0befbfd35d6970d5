"""A tiny synthetic learning task, so that simulated work takes no real time.

Each node's data pull the model towards a point of its own; the best common model is the mean of
those points. Training goes half of the way.
"""

import numpy as np

from defl.ids import NodeId, Round
from defl.schema import Entry, Row, Schema


def schema_of(values: int) -> Schema:
    return Schema((Entry("point", (values,)),))


def initial_row(values: int) -> Row:
    return np.zeros(values, dtype=np.float32)


def target_of(seed: int, node: NodeId, values: int) -> Row:
    rng = np.random.default_rng([seed, 1, node])
    return (rng.standard_normal(values) + 3.0).astype(np.float32)


def train(seed: int, node: NodeId, round_: Round, base: Row) -> Row:
    """Half of the way to this node's point, with the noise of a stochastic step."""
    rng = np.random.default_rng([seed, 2, node, round_])
    noise = rng.standard_normal(base.size).astype(np.float32) * np.float32(0.01)
    step = (target_of(seed, node, base.size) - base) * np.float32(0.5)
    return np.asarray(base + step + noise, dtype=np.float32)
