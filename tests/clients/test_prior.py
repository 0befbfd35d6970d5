"""The class prior: sites that differ in nothing else send the same update."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import Perceptron, SGDClassifier, SGDRegressor
from sklearn.neural_network import MLPClassifier

from defl.clients.prior import (
    PRIOR_ENTRY,
    count_classes,
    describe_one_class,
    log_frequencies,
    log_odds,
    log_prior,
)
from defl.clients.protocol import Training, class_counts_of, initial_row, roles_of, schema_of
from defl.clients.seeds import seed_of
from defl.clients.sklearn import SklearnClient
from defl.errors import UserError
from defl.ids import Round

Data = tuple[NDArray[np.float64], NDArray[np.int64]]


def site(ill: float, count: int = 400, classes: int = 2, seed: int = 1) -> Data:
    """Patients of one hospital; a class looks the same everywhere, only its share differs."""
    rng = np.random.default_rng(seed)
    rest = (1 - ill) / (classes - 1)
    shares = [rest] * (classes - 1) + [ill]
    labels = rng.choice(classes, size=count, p=shares)
    return rng.standard_normal((count, 3)) + np.eye(classes, 3)[labels] * 2, labels


def logistic(**options: Any) -> SGDClassifier:
    return SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.05, alpha=0, **options)


def after_rounds(client: SklearnClient, rounds: int = 8) -> tuple[Training, Any]:
    schema = schema_of(client.initial_weights(), roles_of(client))
    training, row = Training(client, schema), initial_row(client, schema)
    for round_ in range(1, rounds + 1):
        row, _ = training.train(row, Round(round_))
    return training, row


# --- The functions ---------------------------------------------------------------------------


def test_frequencies_have_one_example_more_of_each_class() -> None:
    prior = log_prior([0, 0, 2, 0, 2], 3)

    assert np.exp(prior) == pytest.approx([4 / 8, 1 / 8, 3 / 8])
    assert log_odds(prior) == pytest.approx(np.log([1, 1 / 7, 3 / 5]), abs=1e-6)
    assert prior.dtype == log_odds(prior).dtype == np.float32


def test_a_site_with_one_class_has_a_finite_prior() -> None:
    prior = log_frequencies([0, 10**9])

    assert np.isfinite(log_odds(prior)).all()
    assert log_odds(prior)[1] == pytest.approx(np.log(1e9), rel=1e-3)


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (np.array([0.0, 1.0]), "the labels are float64 .* give one whole number per example"),
        (np.zeros((2, 2), dtype=int), r"of shape \(2, 2\); give one whole number per example"),
        ([0, 3], "the labels go from 0 to 3; 3 classes are numbered 0 to 2"),
        ([-1, 1], "the labels go from -1 to 1"),
    ],
)
def test_labels_that_number_no_class_are_refused(labels: Any, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        count_classes(labels, 3)


def test_only_labels_of_one_class_are_worth_a_warning() -> None:
    assert describe_one_class([3, 1]) == describe_one_class([]) == describe_one_class([0, 0]) == ""
    assert describe_one_class([0, 30]).startswith("all 30 training labels are of class 1: ")


# --- scikit-learn ----------------------------------------------------------------------------

ESTIMATORS = {
    "logistic": (logistic(), 2),
    "logistic, one against the rest": (logistic(), 3),
    "network": (MLPClassifier((), learning_rate_init=0.02, batch_size=50), 2),
    "network, softmax": (MLPClassifier((), learning_rate_init=0.02, batch_size=50), 3),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_sites_with_other_frequencies_send_closer_updates_with_the_correction(name: str) -> None:
    estimator, classes = ESTIMATORS[name]

    def distance(prior: str) -> float:
        rows = [
            after_rounds(
                SklearnClient(
                    estimator, *site(ill, 2000, classes), classes=range(classes), prior=prior
                )
            )[1]
            for ill in (0.1, 0.9)
        ]
        return float(np.linalg.norm(rows[0] - rows[1]))

    assert distance("corrected") < 0.5 * distance("none")


@pytest.mark.parametrize("name", ESTIMATORS)
def test_predictions_add_the_sites_own_prior_to_the_shared_logits(name: str) -> None:
    estimator, classes = ESTIMATORS[name]
    inputs, labels = site(0.9, classes=classes)
    client = SklearnClient(estimator, inputs, labels, classes=range(classes))
    training, row = after_rounds(client)
    weights = training._weights(row)
    prior = weights[PRIOR_ENTRY]
    names = list(weights)
    matrix, intercept = weights[names[0]], weights[names[1]]
    logits = inputs @ (matrix.T if names[0] == "coef" else matrix) + intercept

    if classes == 2:
        expected = (logits[:, 0] + log_odds(prior)[1] > 0).astype(int)
    elif names[0] == "coef":
        expected = (logits + log_odds(prior)).argmax(axis=1)
    else:
        expected = (logits + prior).argmax(axis=1)

    assert (client.estimator(weights).predict(inputs) == expected).all()
    assert training.evaluate(row)["accuracy"] == np.mean(expected == labels)
    assert np.exp(prior).sum() == pytest.approx(1)


def test_without_the_prior_a_round_is_plain_partial_fit() -> None:
    inputs, labels = site(0.8)
    client = SklearnClient(logistic(), inputs, labels, classes=[0, 1], prior="none")
    trained, _ = client.train(client.initial_weights(), Round(1))

    plain = client.estimator(client.initial_weights())
    plain.set_params(random_state=seed_of(seed_of(0, Round(1)), Round(0)))
    plain.partial_fit(inputs, labels, classes=[0, 1])

    assert set(trained) == {"coef", "intercept", "t_"}
    assert (trained["coef"] == plain.coef_.astype(np.float32)).all()
    assert (trained["intercept"] == plain.intercept_.astype(np.float32)).all()


def test_the_prior_is_local_follows_the_sorted_classes_and_stays_the_sites_own() -> None:
    inputs, labels = site(0.9)
    names = np.array(["well", "ill"])[labels]
    client = SklearnClient(logistic(), inputs, names, classes=["well", "ill"])

    assert roles_of(client)[PRIOR_ENTRY] == "local"
    assert class_counts_of(client) == [int((labels == 1).sum()), int((labels == 0).sum())]
    prior = client.initial_weights()[PRIOR_ENTRY]
    assert prior[0] > prior[1]
    foreign = {**client.initial_weights(), PRIOR_ENTRY: prior[::-1].copy()}
    trained, metrics = client.train(foreign, Round(1))
    assert (trained[PRIOR_ENTRY] == prior).all()
    assert metrics["classes"] == 2


@pytest.mark.parametrize("estimator", [SGDClassifier(), Perceptron(), SGDRegressor()])
def test_an_estimator_without_probabilities_is_not_corrected_unless_asked_for(
    estimator: Any,
) -> None:
    inputs, labels = site(0.9)
    classes = None if isinstance(estimator, SGDRegressor) else [0, 1]

    client = SklearnClient(estimator, inputs, labels, classes=classes)
    assert PRIOR_ENTRY not in client.initial_weights()
    with pytest.raises(UserError, match="prior='corrected' needs a classifier whose loss"):
        SklearnClient(estimator, inputs, labels, classes=classes, prior="corrected")


def test_a_misspelt_prior_is_refused_with_the_choices() -> None:
    with pytest.raises(UserError, match="prior is 'corected'; choose one of: corrected, none"):
        SklearnClient(logistic(), *site(0.5), classes=[0, 1], prior="corected")


def test_a_site_with_one_class_trains_and_says_so_in_its_metrics() -> None:
    inputs, _ = site(0.5)
    client = SklearnClient(logistic(), inputs, np.ones(400, dtype=int), classes=[0, 1])

    trained, metrics = client.train(client.initial_weights(), Round(1))

    assert metrics["classes"] == 1
    assert "auc" not in metrics
    # The prior says it all: the shared weights hardly change.
    assert all(np.abs(trained[name]).max() < 0.1 for name in ("coef", "intercept"))
