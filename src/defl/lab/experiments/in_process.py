"""A federation without nodes, for comparison: clients and an aggregation rule in one loop.

This is what a trusted server would do: all clients train from the same weights, and the rule
computes the next ones. Nothing is checked, as a plain server checks nothing.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256

import numpy as np

from defl.aggregation.model import aggregate_model
from defl.clients.protocol import Client, Metrics, schema_of
from defl.ids import Round
from defl.schema import Row, Schema, Weights


def trained_by_server(
    clients: Sequence[Client], aggregation: str, faults_max: int, rounds: int
) -> Iterator[Metrics]:
    """The first client's evaluation of each round's model."""
    weights = clients[0].initial_weights()
    schema = schema_of(weights)
    base = schema.flatten(weights)
    for number in range(1, rounds + 1):
        trained = [
            client.train(schema.unflatten(base.copy()), Round(number))[0] for client in clients
        ]
        rows = [_unchecked(schema, weights) for weights in trained]
        ties = [sha256(f"{number}/{i}".encode()).digest() for i in range(len(rows))]
        result = aggregate_model(
            aggregation,
            schema,
            rows,
            base,
            faults_max=faults_max,
            ties=ties,
            members=range(len(rows)),
        )
        base = result.values
        yield clients[0].evaluate(schema.unflatten(base.copy()))


def _unchecked(schema: Schema, weights: Weights) -> Row:
    return np.concatenate([np.ravel(weights[entry.name]) for entry in schema.shared])
