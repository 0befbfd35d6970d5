"""What this organisation brings to the federation: an estimator and its data.

Any scikit-learn estimator with `partial_fit` and linear weights will do, for example
`SGDClassifier`, `SGDRegressor` or `MLPClassifier`.
"""

from pathlib import Path

from data import CLASSES, load
from sklearn.neural_network import MLPClassifier

from defl.clients.agreed import agreed_steps
from defl.clients.sklearn import SklearnClient


def client():
    """defl.toml names this function; each node calls it once."""
    inputs, labels, test_inputs, test_labels = load()
    return SklearnClient(
        MLPClassifier(hidden_layer_sizes=(32,), learning_rate_init=0.01, batch_size=32),
        inputs,
        labels,
        classes=CLASSES,
        test_inputs=test_inputs,
        test_targets=test_labels,
        # The same work everywhere, however much data an organisation has.
        steps=agreed_steps(Path(__file__).parent),
    )
