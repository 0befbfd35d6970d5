"""digits-np: a Flower app."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

NUM_FEATURES = 64
NUM_CLASSES = 10


def load_data(partition_id: int, num_partitions: int):
    """Load one partition of the handwritten digits."""
    images, labels = load_digits(return_X_y=True)
    mine = np.arange(len(labels)) % num_partitions == partition_id
    images, labels = images[mine] / 16.0, labels[mine]
    split = int(0.8 * len(images))
    return images[:split], images[split:], labels[:split], labels[split:]


def get_model(local_epochs: int):
    return LogisticRegression(
        max_iter=local_epochs,
        warm_start=True,
        solver="saga",
        random_state=0,
    )


def get_model_params(model):
    return [model.coef_, model.intercept_]


def set_model_params(model, params):
    model.coef_ = params[0]
    model.intercept_ = params[1]
    return model


def set_initial_params(model):
    model.classes_ = np.arange(NUM_CLASSES)
    model.coef_ = np.zeros((NUM_CLASSES, NUM_FEATURES))
    model.intercept_ = np.zeros((NUM_CLASSES,))
