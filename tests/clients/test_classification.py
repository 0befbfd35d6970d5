"""Metrics of classifiers: what they count, and when they are left out."""

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from defl.clients.classification import auc, classification_metrics

rng = np.random.default_rng(8)


@pytest.mark.parametrize("digits", [0, 1, 9])
def test_metrics_are_those_of_scikit_learn_with_and_without_ties(digits: int) -> None:
    labels = rng.integers(0, 2, 200)
    scores = np.round(rng.standard_normal(200) + labels, digits)
    predicted = (scores > 0.3).astype(int)

    metrics = classification_metrics(labels, predicted, scores)

    assert metrics == pytest.approx(
        {
            "accuracy": np.mean(predicted == labels),
            "macro_recall": balanced_accuracy_score(labels, predicted),
            "auc": roc_auc_score(labels, scores),
        }
    )


def test_macro_recall_sees_that_the_rare_class_is_never_recognised() -> None:
    labels = np.array([0] * 98 + [1] * 2)

    metrics = classification_metrics(labels, np.zeros(100), np.zeros(100))

    assert metrics == {"accuracy": 0.98, "macro_recall": 0.5, "auc": 0.5}


def test_labels_of_one_class_have_no_auc_and_no_examples_have_no_metrics() -> None:
    assert set(classification_metrics(np.ones(3), np.ones(3), np.ones(3))) == {
        "accuracy",
        "macro_recall",
    }
    assert classification_metrics(np.array([]), np.array([])) == {}
    assert np.isnan(auc(np.array([True, False]), np.array([np.nan, 0.0])))
