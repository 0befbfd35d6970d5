"""This organisation's data: its share of scikit-learn's handwritten digits.

Replace `load` with code that reads your own data. Each organisation then runs the same code on its
own files, and `part_of` is not needed.
"""

import os

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

TEST_SHARE = 0.2


def load():
    """A data set to train on, and one to test on."""
    digits = load_digits()
    images = torch.from_numpy(digits.images / 16).float().unsqueeze(1)
    labels = torch.from_numpy(digits.target)
    order = np.random.default_rng(0).permutation(len(labels))
    test_count = int(TEST_SHARE * len(labels))
    test, mine = order[:test_count], part_of(order[test_count:])
    return TensorDataset(images[mine], labels[mine]), TensorDataset(images[test], labels[test])


def part_of(rows):
    """This organisation's rows: `defl run` starts all organisations on one machine and numbers
    them."""
    node, nodes = int(os.environ.get("DEFL_NODE", "0")), int(os.environ.get("DEFL_NODES", "1"))
    return rows[node::nodes]
