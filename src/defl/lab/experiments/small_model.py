"""A small neural network in NumPy that trains many nodes at once, for thousands of runs.

One hidden layer of rectified units, softmax, plain SGD. All nodes' weights are one (nodes, d)
array, so a step of all nodes is a few batched matrix products.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from defl.schema import Entry

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the layers; d weights in all."""

    inputs: int
    hidden: int
    classes: int

    @property
    def size(self) -> int:
        return (self.inputs + 1) * self.hidden + (self.hidden + 1) * self.classes

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The layers' matrices and biases, in the order of `parts`."""
        return (
            Entry("hidden.weight", (self.inputs, self.hidden)),
            Entry("hidden.bias", (self.hidden,)),
            Entry("output.weight", (self.hidden, self.classes)),
            Entry("output.bias", (self.classes,)),
        )

    def parts(self, weights: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Views of (..., d) weights as the two layers' matrices and biases."""
        lead = weights.shape[:-1]
        i, h, c = self.inputs, self.hidden, self.classes
        ends = np.cumsum([i * h, h, h * c, c])
        return (
            weights[..., : ends[0]].reshape(*lead, i, h),
            weights[..., ends[0] : ends[1]].reshape(*lead, 1, h),
            weights[..., ends[1] : ends[2]].reshape(*lead, h, c),
            weights[..., ends[2] : ends[3]].reshape(*lead, 1, c),
        )


def initial(shape: Shape, rng: np.random.Generator) -> Floats:
    weights = np.zeros(shape.size, dtype=np.float32)
    first, _, second, _ = shape.parts(weights)
    first[:] = rng.standard_normal(first.shape) * np.sqrt(2 / shape.inputs)
    second[:] = rng.standard_normal(second.shape) * np.sqrt(2 / shape.hidden)
    return weights


def train(
    shape: Shape,
    weights: Floats,
    batches: Floats,
    labels: NDArray[np.int64],
    rate: float,
    priors: Floats | None = None,
) -> Floats:
    """Local training of all nodes: weights (nodes, d), batches (nodes, steps, batch, inputs).

    With `priors`, each node's log class frequencies (nodes, classes), the loss is prior-corrected.
    """
    trained = weights.copy()
    gradient = np.empty_like(trained)
    w1, b1, w2, b2 = shape.parts(trained)
    g1, c1, g2, c2 = shape.parts(gradient)
    nodes, steps, batch, _ = batches.shape
    rows = np.arange(nodes)[:, None], np.arange(batch)[None, :]
    with np.errstate(all="ignore"):  # training goes on even if an attack destroyed the model
        for step in range(steps):
            x = batches[:, step]
            hidden = np.maximum(x @ w1 + b1, 0)
            logits = hidden @ w2 + b2
            if priors is not None:
                logits += priors[:, None]
            logits -= logits.max(axis=2, keepdims=True)
            error = np.exp(logits)
            error /= error.sum(axis=2, keepdims=True)
            error[(*rows, labels[:, step])] -= 1
            error /= batch
            back = (error @ w2.transpose(0, 2, 1)) * (hidden > 0)
            g2[:] = hidden.transpose(0, 2, 1) @ error
            c2[:] = error.sum(axis=1, keepdims=True)
            g1[:] = x.transpose(0, 2, 1) @ back
            c1[:] = back.sum(axis=1, keepdims=True)
            trained -= np.float32(rate) * gradient
    return trained


def predicted(shape: Shape, weights: Floats, images: Floats) -> NDArray[np.int64]:
    w1, b1, w2, b2 = shape.parts(weights)
    with np.errstate(all="ignore"):  # a destroyed model still predicts something
        result: NDArray[np.int64] = (np.maximum(images @ w1 + b1, 0) @ w2 + b2).argmax(axis=1)
    return result
