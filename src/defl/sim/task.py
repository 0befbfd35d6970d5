"""A node's work on a learning task; by default a tiny synthetic one, which takes no real time.

There each node's data pull the model towards a point of its own; the best common model is the mean
of those points. Training goes half of the way. A real task is another `Training`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from defl.aggregation.aggregate import AggregationResult
from defl.committee import Federation
from defl.ids import Digest, NodeId, Round
from defl.output import (
    Aggregate,
    Aggregated,
    Train,
    Trained,
    Validate,
    Validated,
    Work,
    WorkFailed,
)
from defl.pool.weights import Base, Payload
from defl.schema import Entry, Role, Row, Schema
from defl.unsent import Unsent
from defl.work import Blob, Read, aggregate, model_row, update_blob, validate

# Takes the member, the round and the model to train from; None if there is no update.
Training = Callable[[NodeId, Round, Row], Row | None]
Aggregating = Callable[[Federation, Aggregate, Read], tuple[Blob, AggregationResult]]


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


@dataclass(frozen=True, slots=True)
class WorkDone:
    result: Validated | Aggregated | Trained | WorkFailed
    payload: Payload | None = None  # of the blob that it made


def done(
    federation: Federation,
    training: Training,
    node: NodeId,
    work: Work,
    inputs: Mapping[Digest, bytes],
    unsent: Unsent,
    *,
    aggregating: Aggregating = aggregate,
) -> WorkDone:
    match work:
        case Validate(manifest=manifest):
            fault = validate(federation, inputs[manifest.digest])
            return WorkDone(Validated(manifest.digest, fault))
        case Aggregate():
            (manifest, payload), _ = aggregating(federation, work, inputs.__getitem__)
            return WorkDone(Aggregated(work.round, manifest), payload)
        case Train():
            base = model_row(federation, inputs[work.base])
            memory = federation.schema.columns(Role.MEMORY)  # the last entry, if there is one
            own = memory[0].start if memory else base.size
            trained = training(node, work.round, unsent.start(base, work.round)[:own])
            if trained is None:
                return WorkDone(WorkFailed(work, "the client has no update for this round"))
            row = np.concatenate([trained, base[own:]])
            start = Base(base, work.round)
            manifest, payload = update_blob(federation, row, work.base, start)
            unsent.keep(row, base, work.round)
            return WorkDone(Trained(work.round, manifest), payload)
