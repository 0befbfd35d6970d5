"""This organisation's data: its part of scikit-learn's handwritten digits.

Replace `load` by whatever reads your own data; each organisation then runs the same code on its own
files and nothing has to be cut.
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
    tested = int(TEST_SHARE * len(labels))
    test, mine = order[:tested], part_of(order[tested:])
    return TensorDataset(images[mine], labels[mine]), TensorDataset(images[test], labels[test])


def part_of(rows):
    """`defl run` starts all organisations on one machine and tells each which one it is."""
    node, nodes = int(os.environ.get("DEFL_NODE", "0")), int(os.environ.get("DEFL_NODES", "1"))
    return rows[node::nodes]
