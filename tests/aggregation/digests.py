"""Run by test_same_bits.py in child processes: prints the digest of every rule's result.

Argument: how many threads to share the work among.
"""

import hashlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from synthetic_rounds import dyadic, synthetic_round, ties_for

from defl.aggregation import kernels, kernels_numba, kernels_numpy
from defl.aggregation.memory import with_memory
from defl.aggregation.model import aggregate_model
from defl.aggregation.rules import RULES
from defl.aggregation.workers import Workers
from defl.schema import Entry, Schema


def digest_of_rule(name: str, workers: Workers) -> str:
    hasher = hashlib.sha256()
    for seed, (members, faults, columns) in enumerate(
        [(10, 3, 200_001), (7, 1, 3000), (15, 3, 70), (31, 10, 300)]
    ):
        rows, base = synthetic_round(seed, members, columns, faults)
        rows[1] = rows[0].copy()  # a tie
        rows[-1][5] = 3e38  # blocks of very different size
        result = RULES[name](rows, base, faults, ties_for(members), workers=workers)
        hasher.update(result.values.tobytes())
        hasher.update(np.array([result.weights, result.scores]).tobytes())
    return hasher.hexdigest()


def digest_of_memory(workers: Workers, agreed: tuple[int, ...] | None = None) -> str:
    """Ten rounds in which the reputations of two sign flippers fall until they are left out.

    With agreed weights only one of them is: with both gone, the cap would make all equal.
    """
    rng = np.random.default_rng(7)
    schema = with_memory(Schema((Entry("weights", (5000,)),)))
    model = np.zeros(schema.values, dtype=np.float32)
    points = dyadic(rng, 5000, 12) + np.stack([dyadic(rng, 5000, 12) for _ in range(7)])
    hasher = hashlib.sha256()
    for _ in range(10):
        rows = [model.copy() for _ in points]
        for i, row in enumerate(rows):
            step = (points[i] - row[:5000]) / 8
            row[:5000] += -step if i < 2 else step
        result = aggregate_model(
            "adaptive",
            schema,
            rows,
            model,
            faults_max=2 if agreed is None else 1,
            ties=ties_for(7),
            members=range(7),
            agreed=agreed,
            workers=workers,
        )
        model = result.values
        hasher.update(model.tobytes())
    return hasher.hexdigest()


def main() -> None:
    threads = int(sys.argv[1])
    result = {}
    with ThreadPoolExecutor(threads) as pool:
        workers = Workers(threads, pool.map)
        for loops in (kernels_numpy, kernels_numba):
            kernels.best = lambda _, loops=loops: loops
            kernels.loaded = lambda loops=loops: loops
            result[loops.NAME] = {name: digest_of_rule(name, workers) for name in RULES}
            result[loops.NAME]["adaptive, ten rounds"] = digest_of_memory(workers)
            weighed = digest_of_memory(workers, (1, 2, 7, 1, 1000, 3, 5))
            result[loops.NAME]["adaptive, ten rounds, agreed weights"] = weighed
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
