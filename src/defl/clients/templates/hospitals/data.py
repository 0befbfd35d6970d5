"""This hospital's patients: one of four real hospitals that published theirs.

Replace `load` with code that reads your own data. Each organisation then runs the same code on its
own files, and `hospital` is not needed.
"""

import csv
import os
from pathlib import Path

import numpy as np

from defl.errors import UserError

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
MEASURED = ("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak")
# Of each kind the first value is the one that the others are compared with.
KINDS = {"cp": ("1", "2", "3", "4"), "restecg": ("0", "1", "2")}
TRAIN_SHARE = 2 / 3


def hospital():
    """Return this organisation's hospital.

    `defl run` starts all organisations on one machine and numbers them.
    """
    node, nodes = int(os.environ.get("DEFL_NODE", "0")), int(os.environ.get("DEFL_NODES", "4"))
    if nodes != len(HOSPITALS):
        raise UserError(f"there are {len(HOSPITALS)} hospitals: run this project with 4 nodes")
    return HOSPITALS[node]


def load(name, seed=0):
    """Return patients to train on and to test on: 13 numbers each, and 1 for those who are ill.

    Ill and healthy patients are split alike. Numbers are scaled by this hospital's own training
    patients: nothing about them leaves it.
    """
    with (Path(__file__).parent / "heart_disease.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["site"] == name]
    inputs = np.array([numbers(row) for row in rows], dtype=np.float32)
    labels = np.array([int(row["disease"]) for row in rows])
    rng = np.random.default_rng(seed)
    train = np.zeros(len(rows), dtype=bool)
    for ill in (0, 1):
        patients = rng.permutation(np.flatnonzero(labels == ill))
        train[patients[: round(TRAIN_SHARE * len(patients))]] = True
    spread = inputs[train].std(axis=0)
    inputs = (inputs - inputs[train].mean(axis=0)) / np.where(spread > 0, spread, 1)
    return inputs[train], labels[train], inputs[~train], labels[~train]


def numbers(row):
    kinds = [float(row[name] == value) for name, values in KINDS.items() for value in values[1:]]
    return [float(row[name]) for name in MEASURED] + kinds
