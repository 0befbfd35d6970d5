"""The model and the data: softmax regression on 8 x 8 images of digits."""

import numpy as np

from defl.lab.datasets.digits import digits

CLASSES = 10
PIXELS = 64


def load_data(partition_id, num_partitions):
    """This organisation's images for training, and everybody's for testing."""
    data = digits(np.random.default_rng(0))
    part = slice(partition_id, None, num_partitions)
    images = data.scaled(data.train_images[part]).reshape(-1, PIXELS)
    tests = data.scaled(data.test_images).reshape(-1, PIXELS)
    return (images, data.train_labels[part]), (tests, data.test_labels)


def initial_arrays():
    return {
        "weight": np.zeros((PIXELS, CLASSES), dtype=np.float32),
        "bias": np.zeros(CLASSES, dtype=np.float32),
    }


def probabilities(arrays, images):
    scores = images @ arrays["weight"] + arrays["bias"]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def train(arrays, images, labels, learning_rate, steps=20):
    """Gradient descent from these arrays; returns new ones and the last loss."""
    arrays = {name: array.copy() for name, array in arrays.items()}
    wanted = np.eye(CLASSES, dtype=np.float32)[labels]
    for _ in range(steps):
        found = probabilities(arrays, images)
        gradient = (found - wanted) / len(labels)
        arrays["weight"] -= np.float32(learning_rate) * (images.T @ gradient)
        arrays["bias"] -= np.float32(learning_rate) * gradient.sum(axis=0)
    return arrays, float(-np.log((found * wanted).sum(axis=1) + 1e-9).mean())


def accuracy(arrays, images, labels):
    return float((probabilities(arrays, images).argmax(axis=1) == labels).mean())
