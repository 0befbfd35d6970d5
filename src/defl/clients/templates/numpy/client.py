"""What this organisation brings to the federation: a model, its data, and how to train.

A client has initial weights, a training function and an evaluation function; weights are float32
arrays by name. This one is softmax regression by plain gradient descent.

Organisations differ in how often they see each class. The logarithm of these frequencies, `prior`,
is added to the scores in training and in prediction and is never sent: so the shared model does not
have to learn it, and nobody's frequencies pull it away from the others.
"""

from pathlib import Path

import numpy as np
from data import SPECIES, load

from defl.clients.agreed import agreed_steps
from defl.clients.classification import classification_metrics
from defl.clients.numpy import FunctionClient
from defl.clients.prior import PRIOR_ENTRY, count_classes, log_frequencies

RATE = 0.3
STEPS = agreed_steps(Path(__file__).parent)  # the same at every organisation: defl.toml


def client():
    """defl.toml names this function; each node calls it once."""
    inputs, labels, test_inputs, test_labels = load()
    targets = np.eye(len(SPECIES), dtype=np.float32)[labels]
    counts = count_classes(labels, len(SPECIES))
    prior = log_frequencies(counts)

    def train(weights, round_):
        matrix, bias = weights["matrix"], weights["bias"]
        for _ in range(STEPS):
            error = (probabilities(matrix, bias + prior, inputs) - targets) / len(inputs)
            matrix = matrix - np.float32(RATE) * (inputs.T @ error)
            bias = bias - np.float32(RATE) * error.sum(axis=0)
        metrics = {
            **scores(matrix, bias + prior, inputs, labels),
            "steps": STEPS,
            "classes": np.count_nonzero(counts),
        }
        return {"matrix": matrix, "bias": bias, PRIOR_ENTRY: prior}, metrics

    def evaluate(weights):
        return scores(weights["matrix"], weights["bias"] + prior, test_inputs, test_labels)

    initial = {
        "matrix": np.zeros((inputs.shape[1], len(SPECIES)), dtype=np.float32),
        "bias": np.zeros(len(SPECIES), dtype=np.float32),
        PRIOR_ENTRY: prior,
    }
    return FunctionClient(initial, train, evaluate, {PRIOR_ENTRY: "local"}, counts)


def probabilities(matrix, bias, inputs):
    scores = inputs @ matrix + bias
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def scores(matrix, bias, inputs, labels):
    predicted = probabilities(matrix, bias, inputs)
    of_labels = predicted[np.arange(len(labels)), labels]
    return {
        "loss": float(-np.log(of_labels + 1e-9).mean()),
        **classification_metrics(labels, predicted.argmax(axis=1)),
    }
