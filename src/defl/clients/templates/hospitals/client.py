"""This hospital's client: logistic regression on its own patients.

Hospitals differ in how many of their patients are ill: 38 to 98 %. One shared intercept cannot fit
all of them, and hospitals that try to move it pull against each other. So each adds the logarithm
of its own class frequencies, `prior`, to the logits in training and in prediction and never sends
it. What is shared is how symptoms and disease go together.
"""

from pathlib import Path

import numpy as np
from data import hospital, load

from defl.clients.agreed import agreed_steps
from defl.clients.classification import classification_metrics
from defl.clients.numpy import FunctionClient
from defl.clients.prior import PRIOR_ENTRY, count_classes, log_frequencies, log_odds

RATE = 0.1
STEPS = agreed_steps(Path(__file__).parent)  # the same at every hospital: defl.toml


def client():
    """defl.toml names this function; each node calls it once."""
    return client_of(hospital())


def client_of(name, seed=0):
    inputs, labels, test_inputs, test_labels = load(name, seed)
    targets = labels.astype(np.float32)
    counts = count_classes(labels, 2)
    prior = log_frequencies(counts)
    odds = log_odds(prior)[1]  # of being ill, before anything is known about a patient

    def train(weights, round_):
        slope, intercept = weights["slope"], weights["intercept"]
        for _ in range(STEPS):
            error = (probabilities(inputs, slope, intercept + odds) - targets) / len(labels)
            slope = slope - np.float32(RATE) * (inputs.T @ error)
            intercept = intercept - np.float32(RATE) * error.sum()
        metrics = {
            **scores(inputs, labels, slope, intercept + odds),
            "steps": STEPS,
            "classes": np.count_nonzero(counts),
        }
        return {"slope": slope, "intercept": intercept, PRIOR_ENTRY: prior}, metrics

    def evaluate(weights):
        return scores(test_inputs, test_labels, weights["slope"], weights["intercept"] + odds)

    initial = {
        "slope": np.zeros(inputs.shape[1], dtype=np.float32),
        "intercept": np.zeros(1, dtype=np.float32),
        PRIOR_ENTRY: prior,
    }
    return FunctionClient(initial, train, evaluate, {PRIOR_ENTRY: "local"}, counts)


def probabilities(inputs, slope, intercept):
    """Return each patient's probability of being ill."""
    return (1 / (1 + np.exp(-(inputs @ slope + intercept)))).astype(np.float32)


def scores(inputs, labels, slope, intercept):
    ill = probabilities(inputs, slope, intercept)
    loss = -np.log(np.where(labels == 1, ill, 1 - ill) + 1e-9).mean()
    return {
        "loss": float(loss),
        **classification_metrics(labels, ill > 0.5, ill),
        "examples": len(labels),
    }
