"""This organisation's data: its part of Fisher's irises, and the flowers that everybody tests on.

Replace `load` by whatever reads your own data; each organisation then runs the same code on its own
files and nothing has to be cut.
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
    tested = int(TEST_SHARE * len(labels))
    test, mine = order[:tested], part_of(order[tested:])
    return inputs[mine], labels[mine], inputs[test], labels[test]


def part_of(rows):
    """`defl run` starts all organisations on one machine and tells each which one it is."""
    node, nodes = int(os.environ.get("DEFL_NODE", "0")), int(os.environ.get("DEFL_NODES", "1"))
    return rows[node::nodes]
