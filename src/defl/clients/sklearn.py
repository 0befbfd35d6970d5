"""A client for scikit-learn: any estimator with `partial_fit` and linear weights.

These are `SGDClassifier`, `SGDRegressor`, `Perceptron` (coef_, intercept_) and `MLPClassifier`,
`MLPRegressor` (coefs_, intercepts_). scikit-learn computes in float64 unless the data are float32;
the weights are shared as float32.

The class prior (prior.py) is a constant that is added to the logits. The last intercept is added to
the same logits, so shifting it before training and back afterwards is exact. That needs a loss of
probabilities: `SGDClassifier(loss="log_loss")` and `MLPClassifier` have one.
"""

import copy
import dataclasses
import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.linear_model import SGDClassifier
from sklearn.neural_network import MLPClassifier

from defl.clients.classification import classification_metrics
from defl.clients.prior import (
    CLASSES_METRIC,
    PRIOR_ENTRY,
    LogFrequencies,
    Prior,
    checked_prior,
    log_frequencies,
    log_odds,
)
from defl.clients.protocol import Metrics, Roles
from defl.clients.round_length import RoundLength
from defl.clients.seeds import seed_of
from defl.errors import UserError
from defl.ids import Round
from defl.schema import Array, Weights

# The step count of a learning-rate schedule; each organisation counts its own.
STEPS = "t_"
# So small a learning rate leaves the initial weights as the estimator drew them.
NO_STEP = 1e-30

# The batch of an estimator that has no batch_size of its own: scikit-learn's for networks.
BATCH = 200

LINEAR = "SGDClassifier, SGDRegressor, Perceptron, MLPClassifier or MLPRegressor"

Data = Any  # two-dimensional: an array, a data frame or a sparse matrix


class SklearnClient:
    """Trains for `epochs` passes over this organisation's data per round (one unless given), or for
    exactly `steps` batches; `max_seconds` ends a training early.

    `prior="corrected"`, the default where the estimator allows it, keeps this organisation's class
    frequencies out of the shared weights (prior.py); `"none"` shares them.

    With `steps` or `max_seconds` the estimator gets its data batch by batch: as many examples as
    its own `batch_size`, or 200.
    """

    def __init__(
        self,
        estimator: BaseEstimator,
        inputs: Data,
        targets: Data,
        *,
        classes: Sequence[Any] | NDArray[Any] | None = None,
        test_inputs: Data = None,
        test_targets: Data = None,
        epochs: int | None = None,
        steps: int | None = None,
        max_seconds: float | None = None,
        prior: Prior | str | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._estimator = estimator
        self._classes = None if classes is None else np.asarray(classes)
        self._data = _plain(inputs), np.asarray(targets)
        _check(estimator, self._classes, *self._data)
        tested = test_inputs is not None and test_targets is not None
        self._test_data = (_plain(test_inputs), test_targets) if tested else self._data
        self._length = RoundLength(epochs=epochs, steps=steps, max_seconds=max_seconds, clock=clock)
        self._seed = seed
        self._counts = _count(self._data[1], self._classes)
        self._prior = self._checked_prior(prior)
        self._initial = {**self._first_weights(), **self._local_prior()}

    def initial_weights(self) -> Weights:
        """As the estimator draws them, before it sees data: zeros for a linear model."""
        return {name: array.copy() for name, array in self._initial.items()}

    def roles(self) -> Roles:
        return {name: "local" for name in (STEPS, PRIOR_ENTRY) if name in self._initial}

    def class_counts(self) -> Sequence[int]:
        """Training labels of each class, in sorted order; empty for a regression."""
        return [] if self._counts is None else self._counts.tolist()

    def train(self, weights: Weights, round_: Round, /) -> tuple[Weights, Metrics]:
        seed = seed_of(self._seed, round_)
        estimator = self._as_site(weights, seed)
        done = self._length.begin()
        for number, rows in enumerate(done.limit(self._parts(round_))):
            estimator.set_params(random_state=seed_of(seed, Round(number)))
            if not self._whole and "batch_size" in estimator.get_params():
                estimator.set_params(batch_size=len(rows[1]))  # one step, also for a smaller one
            self._fit(estimator, *rows)
        metrics = self._score(estimator, self._data)
        if hasattr(estimator, "loss_"):
            metrics["loss"] = float(estimator.loss_)
        if self._counts is not None:
            metrics[CLASSES_METRIC] = float(np.count_nonzero(self._counts))
        self._shift(estimator, -1)
        trained = {**_weights(estimator), **self._local_prior()}
        steps = {"steps": float(done.steps * self._epoch)} if self._whole else done.metrics
        return trained, {**metrics, **steps}

    def evaluate(self, weights: Weights, /) -> Metrics:
        return self._score(self.estimator(weights), self._test_data)

    def estimator(self, weights: Weights) -> Any:
        """Return a fitted estimator that predicts for this organisation: with its own prior."""
        return self._as_site(weights, self._seed)

    def epoch_steps(self) -> int | None:
        return None if self._length.is_stated else self._epoch

    def with_steps(self, steps: int) -> "SklearnClient":
        client = copy.copy(self)
        client._length = dataclasses.replace(self._length, epochs=None, steps=steps)
        return client

    @property
    def _epoch(self) -> int:
        """Batches of one pass over the data."""
        examples: int = self._data[0].shape[0]
        return -(-examples // _batch_size(self._estimator))

    @property
    def _whole(self) -> bool:
        """Whether a pass over the data is one call: scikit-learn then cuts it into batches."""
        return self._length.steps is None and self._length.max_seconds is None

    def _parts(self, round_: Round) -> Iterator[tuple[Data, Data]]:
        """Yield the examples of each call of partial_fit."""
        inputs, targets = self._data
        if self._whole:
            yield from itertools.repeat(self._data, self._length.passes or 1)
            return
        size = _batch_size(self._estimator)
        for rows in self._length.batches(inputs.shape[0], size, round_, self._seed):
            yield inputs[rows], targets[rows]

    def _checked_prior(self, prior: Prior | str | None) -> LogFrequencies | None:
        """Return the log frequencies, or None if they are not corrected for."""
        wanted = checked_prior(prior)
        if wanted is Prior.NONE:
            return None
        if self._counts is not None and len(self._counts) > 1 and _has_logits(self._estimator):
            return log_frequencies(self._counts)
        if wanted is Prior.CORRECTED:
            raise UserError(
                f"prior='corrected' needs a classifier whose loss is one of probabilities, "
                f"SGDClassifier(loss='log_loss') or MLPClassifier, and one label per example; "
                f"for this {type(self._estimator).__name__} leave prior out"
            )
        return None

    def _as_site(self, weights: Weights, seed: int) -> Any:
        estimator = self._with(weights, seed)
        self._shift(estimator, 1)
        return estimator

    def _local_prior(self) -> dict[str, Array]:
        return {} if self._prior is None else {PRIOR_ENTRY: self._prior.copy()}

    def _shift(self, estimator: Any, sign: int) -> None:
        """Add this organisation's prior to the logits, or take it off again."""
        if self._prior is None:
            return
        intercept = list(_arrays(estimator).values())[-1]
        if len(self._prior) == 2:  # one logit, for the second class
            shift = log_odds(self._prior)[1:]
        elif hasattr(estimator, "coef_"):  # each logit is one class against the rest
            shift = log_odds(self._prior)
        else:
            shift = self._prior
        intercept += (sign * shift).astype(intercept.dtype)

    def _first_weights(self) -> Weights:
        fresh = clone(self._estimator)
        if "learning_rate_init" in fresh.get_params():
            fresh.set_params(learning_rate_init=NO_STEP)
        self._shape(fresh, self._seed)
        if hasattr(fresh, "coef_"):
            for array in _arrays(fresh).values():
                array[...] = 0
        if hasattr(fresh, STEPS):
            setattr(fresh, STEPS, 1.0 if hasattr(fresh, "coef_") else 0)
        return _weights(fresh)

    def _with(self, weights: Weights, seed: int) -> Any:
        """A new estimator with these weights, so that a round depends on nothing else."""
        estimator = clone(self._estimator)
        self._shape(estimator, seed)
        for name, array in _arrays(estimator).items():
            array[...] = weights[name]
        if STEPS in weights:
            setattr(estimator, STEPS, type(getattr(estimator, STEPS))(weights[STEPS]))
        # A network's optimiser keeps momentum; the next fit makes a new one.
        vars(estimator).pop("_optimizer", None)
        return estimator

    def _shape(self, estimator: Any, seed: int) -> None:
        """Fit one example of zeros, since an estimator has no arrays before its first fit."""
        inputs, targets = self._data
        one = np.zeros((1, inputs.shape[1]), dtype=inputs.dtype)
        target = np.zeros((1, *targets.shape[1:])) if self._classes is None else self._classes[:1]
        if "random_state" in estimator.get_params():
            estimator.set_params(random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one example is less than a batch
            self._fit(estimator, one, target)
        if not (hasattr(estimator, "coef_") or hasattr(estimator, "coefs_")):
            raise UserError(
                f"{type(estimator).__name__} has no linear weights that could be averaged; "
                f"use one of {LINEAR}"
            )

    def _fit(self, estimator: Any, inputs: Data, targets: Data) -> None:
        if self._classes is None:
            estimator.partial_fit(inputs, targets)
        else:
            estimator.partial_fit(inputs, targets, classes=self._classes)

    def _score(self, estimator: Any, data: tuple[Data, Data]) -> dict[str, float]:
        inputs, targets = data
        examples = {"examples": float(inputs.shape[0])}
        if self._counts is None:  # a regression, or several labels per example
            name = "accuracy" if is_classifier(estimator) else "r2"
            return {name: float(estimator.score(inputs, targets)), **examples}
        scores = _scores(estimator, inputs) if len(self._counts) == 2 else None
        metrics = classification_metrics(targets, estimator.predict(inputs), scores)
        return {**metrics, **examples}


def _count(targets: NDArray[Any], classes: NDArray[Any] | None) -> NDArray[np.int64] | None:
    """Count the labels of each class in scikit-learn's order, or None without classes."""
    if classes is None or targets.ndim != 1:
        return None
    return np.array([np.count_nonzero(targets == name) for name in np.unique(classes)])


def _has_logits(estimator: Any) -> bool:
    if isinstance(estimator, SGDClassifier):
        return bool(estimator.loss == "log_loss")
    return isinstance(estimator, MLPClassifier)


def _scores(estimator: Any, inputs: Data) -> Any:
    """Return a number per example that is higher where the second class is more likely."""
    if hasattr(estimator, "decision_function"):
        return estimator.decision_function(inputs)
    return estimator.predict_proba(inputs)[:, 1]


def _batch_size(estimator: Any) -> int:
    """A network's own batches, so that a step is one of its optimiser's."""
    size = getattr(estimator, "batch_size", None)
    return size if isinstance(size, int) else BATCH


def _plain(inputs: Data) -> Any:
    """Rows can be chosen from it: not every sparse format allows that."""
    return inputs.tocsr() if hasattr(inputs, "tocsr") else np.asarray(inputs)


def _arrays(estimator: Any) -> dict[str, NDArray[np.floating[Any]]]:
    """The estimator's own arrays by name, for reading and for writing in place."""
    if hasattr(estimator, "coef_"):
        return {"coef": estimator.coef_, "intercept": estimator.intercept_}
    named = {}
    for layer, (matrix, bias) in enumerate(
        zip(estimator.coefs_, estimator.intercepts_, strict=True)
    ):
        named[f"layer{layer}.coef"] = matrix
        named[f"layer{layer}.intercept"] = bias
    return named


def _weights(estimator: Any) -> Weights:
    weights: dict[str, Array] = {
        name: array.astype(np.float32) for name, array in _arrays(estimator).items()
    }
    if hasattr(estimator, STEPS):
        weights[STEPS] = np.array(getattr(estimator, STEPS), dtype=np.float64)
    return weights


def _check(
    estimator: BaseEstimator, classes: NDArray[Any] | None, inputs: Data, targets: NDArray[Any]
) -> None:
    kind = type(estimator).__name__
    if inputs.ndim != 2 or inputs.shape[:1] != targets.shape[:1]:
        raise UserError(
            f"the inputs have the shape {inputs.shape} and the targets {targets.shape}; give a "
            "table with one row for each target"
        )
    if not hasattr(estimator, "partial_fit"):
        raise UserError(
            f"{kind} cannot continue from given weights: it has no partial_fit; use one of {LINEAR}"
        )
    if getattr(estimator, "average", False):
        raise UserError(
            f"{kind}(average=...) keeps a second set of weights that would not be shared; "
            "leave it out: the federation averages"
        )
    if not is_classifier(estimator):
        return
    if classes is None:
        raise UserError(
            f"{kind} needs classes=[...] with every class that any organisation may have: some "
            "organisations' data may lack one"
        )
    unknown = sorted(set(np.unique(targets).tolist()) - set(classes.tolist()))
    if unknown:
        raise UserError(
            f"the targets hold {unknown!r}, which classes does not name; name every class, the "
            "same at each organisation"
        )
