"""One organisation's client for the handwritten digits: its own part of them, a small network.

`write_parts` makes the project of a federation, with one file of data for each organisation;
`client` is what its nodes' settings name.
"""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from defl.clients.protocol import Client, Metrics
from defl.ids import Round
from defl.lab.datasets.digits import digits
from defl.lab.experiments.small_model import Floats, Shape, initial, predicted, train
from defl.lab.partition import cut
from defl.schema import Weights

SHAPE = Shape(inputs=64, hidden=32, classes=10)
STEPS = 60
BATCH = 32
RATE = 0.3
NAMES = ("hidden.weight", "hidden.bias", "output.weight", "output.bias")
CLIENT = f"{__name__}:client"


def write_parts(folder: Path, nodes: int, seed: int) -> None:
    """Equal parts at random, one file for each node; all have the same test images."""
    rng = np.random.default_rng(seed)
    data = digits(rng)
    parts = cut(data.train_labels, nodes, None, rng)
    for number, part in enumerate(parts):
        np.savez(
            part_file(folder, number),
            images=data.scaled(data.train_images[part]).reshape(len(part), -1),
            labels=data.train_labels[part],
            test_images=data.scaled(data.test_images).reshape(len(data.test_images), -1),
            test_labels=data.test_labels,
            seed=np.array([seed, number]),
        )


def part_file(folder: Path, number: int) -> Path:
    return folder / f"part-{number}.npz"


class Digits:
    """Plain SGD on the organisation's own images; batches depend on seed, node and round alone."""

    def __init__(self, part: Path) -> None:
        with np.load(part, allow_pickle=False) as arrays:
            self._images: Floats = arrays["images"]
            self._labels: NDArray[np.int64] = arrays["labels"]
            self._test_images: Floats = arrays["test_images"]
            self._test_labels: NDArray[np.int64] = arrays["test_labels"]
            self._seed = [int(number) for number in arrays["seed"]]

    def initial_weights(self) -> Weights:
        return _named(initial(SHAPE, np.random.default_rng(self._seed[0])))

    def train(self, weights: Weights, round_: Round, /) -> tuple[Weights, Metrics]:
        rng = np.random.default_rng([*self._seed, round_])
        chosen = rng.integers(len(self._labels), size=(1, STEPS, BATCH))
        start = _flat(weights)[None]
        trained = train(SHAPE, start, self._images[chosen], self._labels[chosen], RATE)[0]
        right = predicted(SHAPE, trained, self._images) == self._labels
        return _named(trained), {"train_accuracy": float(right.mean())}

    def evaluate(self, weights: Weights, /) -> Metrics:
        """On the test images, which no node trains on."""
        right = predicted(SHAPE, _flat(weights), self._test_images) == self._test_labels
        return {"accuracy": float(right.mean())}


def _flat(weights: Weights) -> Floats:
    return np.concatenate([weights[name].ravel() for name in NAMES])


def _named(row: Floats) -> Weights:
    return {
        name: np.ascontiguousarray(part) for name, part in zip(NAMES, SHAPE.parts(row), strict=True)
    }


def client() -> Client:
    """A worker runs in its project's folder and knows its number by its environment."""
    return Digits(part_file(Path(), int(os.environ["DEFL_NODE"])))
