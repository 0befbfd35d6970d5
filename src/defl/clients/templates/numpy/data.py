"""This organisation's data: its share of Fisher's irises, and a test set that all share.

Replace `load` with code that reads your own data. Each organisation then runs the same code on its
own files, and `part_of` is not needed.
"""

import csv
import os
from pathlib import Path

import numpy as np

SPECIES = ("setosa", "versicolor", "virginica")
TEST_SHARE = 0.2


def load():
    """Inputs and labels to train on, and inputs and labels to test on."""
    with (Path(__file__).parent / "iris.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    inputs = np.array([row[:4] for row in rows], dtype=np.float32)
    labels = np.array([SPECIES.index(row[4]) for row in rows])
    inputs = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    order = np.random.default_rng(0).permutation(len(labels))
    test_count = int(TEST_SHARE * len(labels))
    test, mine = order[:test_count], part_of(order[test_count:])
    return inputs[mine], labels[mine], inputs[test], labels[test]


def part_of(rows):
    """This organisation's rows: `defl run` starts all organisations on one machine and numbers
    them."""
    node, nodes = int(os.environ.get("DEFL_NODE", "0")), int(os.environ.get("DEFL_NODES", "1"))
    return rows[node::nodes]
