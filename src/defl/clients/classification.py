"""Metrics of classifiers, in NumPy alone: accuracy, macro recall and, for two classes, AUC.

Accuracy depends on how often each class occurs at a site; macro recall and AUC do not, so they
show whether a model or only a threshold is bad.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]


def classification_metrics(
    labels: Numbers, predicted: Numbers, scores: Numbers | None = None
) -> dict[str, float]:
    """Return `accuracy`, `macro_recall` and, with scores and labels of two classes, `auc`.

    `scores` rank the examples: higher means that the later of the two classes is more likely. The
    AUC of labels of one class is not defined and left out. Without examples there are no metrics.
    """
    labels, predicted = np.asarray(labels), np.asarray(predicted)
    if not len(labels):
        return {}
    metrics = {
        "accuracy": float(np.mean(labels == predicted)),
        "macro_recall": macro_recall(labels, predicted),
    }
    present = np.unique(labels)
    if scores is not None and len(present) == 2:
        metrics["auc"] = auc(labels == present[1], scores)
    return metrics


def macro_recall(labels: Numbers, predicted: Numbers) -> float:
    """Return the mean over the classes of the share of their examples that are recognised."""
    recalls = [np.mean(predicted[labels == number] == number) for number in np.unique(labels)]
    return float(np.mean(recalls))


def auc(positive: Numbers, scores: Numbers) -> float:
    """Return the area under the ROC curve by ranks; equal scores share their mean rank.

    NaN if a score is not finite, or if all examples are of one class.
    """
    positive, scores = np.asarray(positive, dtype=bool), np.asarray(scores, dtype=np.float64)
    ups, downs = int(positive.sum()), int((~positive).sum())
    if not (ups and downs) or not np.isfinite(scores).all():
        return float("nan")
    _, groups, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(sizes) - (sizes - 1) / 2)[groups]
    return float((ranks[positive].sum() - ups * (ups + 1) / 2) / (ups * downs))
