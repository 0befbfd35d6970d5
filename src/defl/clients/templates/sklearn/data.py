"""This organisation's data: its share of scikit-learn's handwritten digits.

Replace `load` with code that reads your own data. Each organisation then runs the same code on its
own files, and `part_of` is not needed.
"""

import os

import numpy as np
from sklearn.datasets import load_digits

CLASSES = range(10)
TEST_SHARE = 0.2


def load():
    """Inputs and labels to train on, and inputs and labels to test on."""
    inputs, labels = load_digits(return_X_y=True)
    inputs = (inputs / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(labels))
    test_count = int(TEST_SHARE * len(labels))
    test, mine = order[:test_count], part_of(order[test_count:])
    return inputs[mine], labels[mine], inputs[test], labels[test]


def part_of(rows):
    """This organisation's rows: `defl run` starts all organisations on one machine and numbers
    them."""
    node, nodes = int(os.environ.get("DEFL_NODE", "0")), int(os.environ.get("DEFL_NODES", "1"))
    return rows[node::nodes]
