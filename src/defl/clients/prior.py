"""The class prior: how often each class occurs in one site's training labels.

Sites differ in their class frequencies: one hospital may treat 38 % ill patients, another 98 %.
A shared classifier that has to learn these frequencies too makes honest updates oppose each other.
With logit adjustment (Menon et al., "Long-tail learning via logit adjustment", ICLR 2021; FedLC:
Zhang et al., "Federated Learning with Label Distribution Skew via Logits Calibration", ICML 2022)
each site adds the log of its own class frequencies to the logits while it trains, and again when it
predicts. The shared logits then hold no site's frequencies.

The functions take NumPy arrays and need no framework; clients of every framework use them.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from defl.errors import UserError

# The entry with this site's log frequencies. Its role is "local": it is exported, and never sent.
PRIOR_ENTRY = "defl.prior"
# Metric of a training run: the number of classes among the training labels.
CLASSES_METRIC = "classes"

LogFrequencies = NDArray[np.float32]


class Prior(StrEnum):
    """Treatment of a site's class frequencies by its classifier."""

    CORRECTED = "corrected"  # added to the logits in training and in prediction, never shared
    NONE = "none"  # learnt like everything else, and so averaged with the others'


def checked_prior(prior: Prior | str | None) -> Prior | None:
    """Return the option, or None if the user left the choice to the client."""
    if prior is None:
        return None
    if prior not in set(Prior):
        raise UserError(f"prior is {prior!r}; choose one of: {', '.join(Prior)}")
    return Prior(prior)


def count_classes(labels: Any, classes: int) -> NDArray[np.int64]:
    """Count the labels of each class; labels are the numbers 0 to `classes` - 1."""
    numbers = np.asarray(labels)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iub":
        raise UserError(
            f"the labels are {numbers.dtype} of shape {numbers.shape}; give one whole number per "
            "example, the class"
        )
    numbers = numbers.astype(np.int64)
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < classes:
        raise UserError(
            f"the labels go from {numbers.min()} to {numbers.max()}; {classes} classes are "
            f"numbered 0 to {classes - 1}"
        )
    return np.bincount(numbers, minlength=classes).astype(np.int64)


def log_frequencies(counts: Sequence[int] | NDArray[np.int64]) -> LogFrequencies:
    """Return the log of each class's frequency, one example added to each class.

    The added example keeps the prior finite where a class is missing.
    """
    smoothed = np.asarray(counts, dtype=np.float64) + 1
    logs: LogFrequencies = np.log(smoothed / smoothed.sum()).astype(np.float32)
    return logs


def log_odds(prior: LogFrequencies) -> LogFrequencies:
    """Return the log odds of each class against all others.

    They are the prior of a logit that stands for one class against the rest. The single logit of
    two classes gets those of the second class.
    """
    frequencies = np.asarray(prior, dtype=np.float64)
    odds: LogFrequencies = (frequencies - np.log(-np.expm1(frequencies))).astype(np.float32)
    return odds


def log_prior(labels: Any, classes: int) -> LogFrequencies:
    """Return the log frequencies of these labels' classes: what a site adds to its logits."""
    return log_frequencies(count_classes(labels, classes))


def describe_one_class(counts: Sequence[int] | NDArray[np.int64]) -> str:
    """Return a warning if the labels have one class only; otherwise an empty string."""
    present = np.flatnonzero(np.asarray(counts))
    if len(present) != 1:
        return ""
    return (
        f"all {int(np.sum(counts))} training labels are of class {present[0]}: this member cannot "
        "teach the others to tell classes apart; add examples of other classes"
    )
