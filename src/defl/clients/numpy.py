"""A client from a training function on NumPy arrays."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from defl.clients.protocol import Metrics, Roles
from defl.ids import Round
from defl.schema import Array, Weights


def _no_evaluation(_: Weights) -> Metrics:
    return {}


@dataclass(frozen=True, slots=True)
class FunctionClient:
    """A client whose `train_function(weights, round_)` returns the trained weights and metrics.

    `initial` holds the arrays before the first round; `entry_roles` names the entries that are not
    trainable. A classifier's `counts` are its training labels of each class (prior.py), which
    `defl node check` looks at.
    """

    initial: Mapping[str, Array]
    train_function: Callable[[Weights, Round], tuple[Weights, Metrics]]
    evaluate_function: Callable[[Weights], Metrics] = _no_evaluation
    entry_roles: Roles = field(default_factory=dict)
    counts: Sequence[int] = ()

    def initial_weights(self) -> Weights:
        return {name: np.array(array) for name, array in self.initial.items()}

    def roles(self) -> Roles:
        return self.entry_roles

    def class_counts(self) -> Sequence[int]:
        return [int(count) for count in self.counts]

    def train(self, weights: Weights, round_: Round, /) -> tuple[Weights, Metrics]:
        return self.train_function(weights, round_)

    def evaluate(self, weights: Weights, /) -> Metrics:
        return self.evaluate_function(weights)
