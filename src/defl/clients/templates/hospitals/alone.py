"""Comparison: each hospital alone, with the same model and as much training. Run it as a script."""

from client import client_of
from data import HOSPITALS, load

ROUNDS = 15


def main():
    print("hospital     trains on    ill  tests on  accuracy     auc  macro_recall")
    for name in HOSPITALS:
        mine = client_of(name)
        weights = mine.initial_weights()
        for round_ in range(1, ROUNDS + 1):
            weights, _ = mine.train(weights, round_)
        metrics = mine.evaluate(weights)
        _, labels, _, test_labels = load(name)
        auc = f"{metrics['auc']:8.4f}" if "auc" in metrics else " " * 8  # all of one class
        print(
            f"{name:12} {len(labels):9} {labels.mean():6.0%} {len(test_labels):9} "
            f"{metrics['accuracy']:9.4f}{auc} {metrics['macro_recall']:13.4f}"
        )


if __name__ == "__main__":
    main()
