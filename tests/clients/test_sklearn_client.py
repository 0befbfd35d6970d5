"""scikit-learn estimators as clients: their weights are shared, their schedules stay local."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.base import is_classifier
from sklearn.cluster import MiniBatchKMeans
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import Perceptron, SGDClassifier, SGDRegressor
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier, MLPRegressor

from defl.clients.protocol import Training, initial_row, roles_of, schema_of
from defl.clients.sklearn import SklearnClient
from defl.errors import UserError
from defl.ids import Round
from defl.schema import Role

ESTIMATORS = {
    "SGDClassifier": SGDClassifier(loss="log_loss"),
    "Perceptron": Perceptron(),
    "MLPClassifier": MLPClassifier((8,), learning_rate_init=0.01, batch_size=16),
    "MLPClassifier, sgd": MLPClassifier(
        (8, 4), solver="sgd", learning_rate_init=0.1, batch_size=16
    ),
    "SGDRegressor": SGDRegressor(),
    "MLPRegressor": MLPRegressor(hidden_layer_sizes=(8,), learning_rate_init=0.05, batch_size=16),
}


def data(count: int = 200) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Three linearly separable classes, and a linear target."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, count)
    inputs = rng.standard_normal((count, 5)) + np.eye(3, 5)[labels] * 4
    return inputs, labels, inputs @ [1.0, -2.0, 0.5, 0.0, 3.0] + 1


def client_of(estimator: Any, **options: Any) -> SklearnClient:
    inputs, labels, quantity = data()
    if is_classifier(estimator):
        return SklearnClient(estimator, inputs, labels, classes=[0, 1, 2], **options)
    return SklearnClient(estimator, inputs, quantity, **options)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_learns_over_rounds_from_its_weights_alone(name: str) -> None:
    client = client_of(ESTIMATORS[name], epochs=5)
    schema = schema_of(client.initial_weights(), roles_of(client))
    training = Training(client, schema)
    row = initial_row(client, schema)
    metric = "accuracy" if is_classifier(ESTIMATORS[name]) else "r2"
    before = training.evaluate(row)[metric]

    for round_ in range(1, 6):
        row, metrics = training.train(row, Round(round_))

    after = training.evaluate(row)
    assert after[metric] > max(before, 0.85)
    # Without test data the score is that of the training data.
    assert metrics[metric] == pytest.approx(after[metric])
    assert after["examples"] == 200
    predicted = client.estimator(training._weights(row)).predict(data()[0][:5])
    assert predicted.shape == (5,)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_round_depends_only_on_its_weights_seed_and_number(name: str) -> None:
    first, second = (client_of(ESTIMATORS[name], seed=4) for _ in range(2))
    start = first.initial_weights()
    first.train(start, Round(1))
    first.evaluate(start)

    again, _ = first.train(start, Round(2))
    alone, _ = second.train(start, Round(2))
    other, _ = second.train(start, Round(3))

    assert all((again[entry] == alone[entry]).all() for entry in again)
    assert any((again[entry] != other[entry]).any() for entry in again)


def test_weights_are_float32_and_the_step_count_of_a_schedule_stays_local_and_continues() -> None:
    client = client_of(ESTIMATORS["SGDClassifier"])
    schema = schema_of(client.initial_weights(), roles_of(client))
    training = Training(client, schema)
    row = initial_row(client, schema)
    assert {entry.name: (entry.shape, entry.role) for entry in schema.entries} == {
        "coef": ((3, 5), Role.TRAINABLE),
        "intercept": ((3,), Role.TRAINABLE),
        "t_": ((), Role.LOCAL),
        "defl.prior": ((3,), Role.LOCAL),
    }
    assert not row.any()
    for round_ in (1, 2):
        row, _ = training.train(row, Round(round_))

    assert row.dtype == np.float32
    assert training.local["t_"] == 401


def test_a_networks_initial_weights_are_drawn_by_the_estimator_and_independent_of_the_data() -> (
    None
):
    inputs, labels, _ = data()
    one, other = (
        SklearnClient(ESTIMATORS["MLPClassifier"], inputs * scale, labels, classes=range(3))
        for scale in (1.0, 9.0)
    )
    first, second = one.initial_weights(), other.initial_weights()

    assert first["layer0.coef"].std() > 0.1
    assert all((first[entry] == second[entry]).all() for entry in first)


def test_sparse_data_single_precision_and_an_absent_class_are_accepted() -> None:
    inputs, labels, _ = data()
    for given in (csr_matrix(inputs), inputs.astype(np.float32)):
        client = SklearnClient(
            SGDClassifier(), given, labels, classes=[0, 1, 2, 3],
            test_inputs=inputs[:50], test_targets=labels[:50],
        )  # fmt: skip
        trained, _ = client.train(client.initial_weights(), Round(1))
        assert trained["coef"].shape == (4, 5)
        assert client.evaluate(trained)["examples"] == 50


@pytest.mark.parametrize(
    ("estimator", "options", "reason"),
    [
        (
            RandomForestClassifier(),
            {"classes": [0, 1, 2]},
            "has no partial_fit; use one of SGDClassifier",
        ),
        (GaussianNB(), {"classes": [0, 1, 2]}, "GaussianNB has no linear weights"),
        (MiniBatchKMeans(1), {}, "MiniBatchKMeans has no linear weights"),
        (SGDClassifier(), {}, r"needs classes=\[...\] with every class"),
        (SGDClassifier(), {"classes": [0, 1]}, r"the targets hold \[2\], which classes"),
        (SGDClassifier(average=True), {"classes": [0, 1, 2]}, "second set of weights"),
        (SGDRegressor(), {"epochs": 0}, "epochs is 0"),
    ],
)
def test_an_unsuitable_estimator_is_refused_with_the_reason(
    estimator: Any, options: Any, reason: str
) -> None:
    inputs, labels, _ = data()
    with pytest.raises(UserError, match=reason):
        SklearnClient(estimator, inputs, labels, **options)


def test_data_that_do_not_pair_up_are_refused() -> None:
    inputs, labels, _ = data()
    for wrong in (inputs[1:], inputs[:, 0], labels):
        with pytest.raises(UserError, match="a table with one row for each target"):
            SklearnClient(SGDClassifier(), wrong, labels, classes=[0, 1, 2], steps=1)
