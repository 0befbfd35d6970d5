"""Run by test_same_bits.py in child processes: prints the digest of every rule's result.

Argument: how many threads to share the work among.
"""

import hashlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from made_rounds import made_round, ties_for

from defl.aggregation import kernels, kernels_numba, kernels_numpy
from defl.aggregation.rules import RULES
from defl.aggregation.workers import Workers


def digest_of_rule(name: str, workers: Workers) -> str:
    hasher = hashlib.sha256()
    for seed, (members, faults, columns) in enumerate(
        [(10, 3, 200_001), (7, 1, 3000), (15, 3, 70)]
    ):
        if name == "bulyan" and members < 4 * faults + 3:
            continue
        rows, base = made_round(seed, members, columns, faults)
        rows[1] = rows[0].copy()  # a tie
        rows[-1][5] = 3e38  # blocks of very different size
        made = RULES[name](rows, base, faults, ties_for(members), workers=workers)
        hasher.update(made.values.tobytes())
        hasher.update(np.array([made.weights, made.scores]).tobytes())
    return hasher.hexdigest()


def main() -> None:
    threads = int(sys.argv[1])
    result = {}
    with ThreadPoolExecutor(threads) as pool:
        workers = Workers(threads, pool.map)
        for loops in (kernels_numpy, kernels_numba):
            kernels.best = lambda loops=loops: loops
            result[loops.NAME] = {name: digest_of_rule(name, workers) for name in RULES}
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
