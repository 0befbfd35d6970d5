"""Functions on NumPy arrays as a client."""

import numpy as np

from defl.clients.numpy import FunctionClient
from defl.clients.protocol import Metrics, Training, initial_row, roles_of, schema_of
from defl.ids import Round
from defl.schema import Role, Weights

INITIAL = {"slope": np.zeros(2, dtype=np.float32), "mine": np.ones(1, dtype=np.float32)}


def train(weights: Weights, round_: Round) -> tuple[Weights, Metrics]:
    weights["mine"][...] += 1  # type: ignore[index]
    return {**weights, "slope": weights["slope"] + np.float32(round_)}, {"loss": 0.5}


def test_functions_form_a_client_and_the_initial_arrays_stay_unchanged() -> None:
    client = FunctionClient(INITIAL, train, entry_roles={"mine": "local"})
    schema = schema_of(client.initial_weights(), roles_of(client))
    training = Training(client, schema)
    row, metrics = training.train(initial_row(client, schema), Round(3))

    assert row.tolist() == [3, 3]
    assert metrics == {"loss": 0.5}
    assert training.local["mine"] == 2
    assert schema.entries[1].role is Role.LOCAL
    assert training.evaluate(row) == {}
    assert INITIAL["mine"] == 1
    client.initial_weights()["slope"][...] = 9  # type: ignore[index]
    assert not INITIAL["slope"].any()


def test_an_evaluation_function_is_called_with_the_weights() -> None:
    client = FunctionClient(INITIAL, train, lambda weights: {"sum": float(weights["slope"].sum())})

    assert client.evaluate(INITIAL) == {"sum": 0.0}
