"""How long each rule takes, beside reading its input once and beside other libraries, in one run.

Absolute times say much about the machine and its other work; so each rule is measured in turn with
the plain reading of the same array by two threads, and ratios are what counts.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from statistics import median
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from defl.aggregation import kernels
from defl.aggregation.aggregate import Row
from defl.aggregation.geometric import measure
from defl.aggregation.gram import Gram
from defl.aggregation.rules import RULES
from defl.aggregation.workers import Workers
from defl.experiments.rivals import byzfl_runs, flwr_run, missing

THREADS = 2
CHUNK = 1 << 20  # columns read at a time by one thread


@dataclass(frozen=True, slots=True)
class RuleTime:
    """One rule's seconds (the median of its runs) and ratios; None where nothing was measured."""

    seconds: float
    ratio_to_read: float
    byzfl_seconds: float | None = None
    ratio_to_byzfl: float | None = None  # how many times faster than byzfl's fastest form
    flwr_seconds: float | None = None
    ratio_to_flwr: float | None = None


def made_rows(members: int, columns: int, faults: int, seed: int) -> tuple[list[Row], Row]:
    """Honest changes around a common one; the first `faults` rows flip theirs."""
    rng = np.random.default_rng(seed)
    base = rng.standard_normal(columns, dtype=np.float32) * np.float32(0.05)
    common = rng.standard_normal(columns, dtype=np.float32)
    rows = []
    for i in range(members):
        change = common + rng.standard_normal(columns, dtype=np.float32)
        change *= np.float32(-0.001 if i < faults else 0.001)
        rows.append(base + change)
    return rows, base


def read_once(rows: Sequence[Row], pool: ThreadPoolExecutor) -> None:
    """The largest value of every row, by two threads: NumPy's quickest way through memory."""

    def largest(part: NDArray[np.float32]) -> float:
        return float(part.max())

    parts = [row[start : start + CHUNK] for row in rows for start in range(0, row.size, CHUNK)]
    list(pool.map(largest, parts))


def seconds_of(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = perf_counter()
        run()
        times.append(perf_counter() - start)
    return median(times)


def bench_rules(
    members: int,
    columns: int,
    faults_max: int,
    names: Sequence[str],
    *,
    repeats: int,
    rivals: bool,
    progress: Callable[[str], None],
) -> dict[str, object]:
    """Measure the rules; the result is what `defl bench rules --json` prints."""
    rows, base = made_rows(members, columns, faults_max, seed=1)
    ties = [sha256(bytes([i])).digest() for i in range(members)]
    times: dict[str, RuleTime] = {}
    with ThreadPoolExecutor(THREADS) as pool:
        workers = Workers(THREADS, pool.map)
        read_once(rows, pool)
        stack = np.stack(rows) if rivals else np.empty((0, 0), dtype=np.float32)
        for name in names:
            progress(name)
            rule = partial(RULES[name], rows, base, faults_max, ties, workers=workers)
            rule()  # the first run loads what is compiled
            reading, ours = alternated(partial(read_once, rows, pool), rule, repeats)
            times[name] = RuleTime(ours, ours / reading)
            if rivals:
                times[name] = beside_rivals(
                    name,
                    times[name],
                    rows=rows,
                    stack=stack,
                    faults_max=faults_max,
                    progress=progress,
                )
        progress("last arrival")
        parts = close_after_last_arrival(rows, base, workers, repeats)
        reading = seconds_of(partial(read_once, rows, pool), repeats)
    return {
        "n": members,
        "d": columns,
        "faults_max": faults_max,
        "loops": kernels.best().NAME,
        "threads": THREADS,
        "read_seconds": reading,
        "skipped": missing() if rivals else ["byzfl", "flwr"],
        **parts,
        "rules": {name: asdict(time) for name, time in times.items()},
    }


def alternated(
    first: Callable[[], object], second: Callable[[], object], repeats: int
) -> tuple[float, float]:
    """Medians of two things measured in turn, so that other work on the machine hits both."""
    pairs = [(seconds_of(first, 1), seconds_of(second, 1)) for _ in range(repeats)]
    return median(a for a, _ in pairs), median(b for _, b in pairs)


def beside_rivals(
    name: str,
    ours: RuleTime,
    *,
    rows: Sequence[Row],
    stack: NDArray[np.float32],
    faults_max: int,
    progress: Callable[[str], None],
) -> RuleTime:
    byzfl: float | None = None
    for kind, run in byzfl_runs(name, stack, faults_max).items():
        progress(f"{name} in byzfl on {kind}")
        seconds = seconds_of(run, 2)
        byzfl = seconds if byzfl is None else min(byzfl, seconds)
    flower = flwr_run(name, rows, faults_max)
    progress(f"{name} in flwr")
    flwr = None if flower is None else seconds_of(flower, 2)
    return RuleTime(
        seconds=ours.seconds,
        ratio_to_read=ours.ratio_to_read,
        byzfl_seconds=byzfl,
        ratio_to_byzfl=None if byzfl is None else byzfl / ours.seconds,
        flwr_seconds=flwr,
        ratio_to_flwr=None if flwr is None else flwr / ours.seconds,
    )


def close_after_last_arrival(
    rows: Sequence[Row], base: Row, workers: Workers, repeats: int
) -> dict[str, float]:
    """Seconds to measure all rows at once, and the last one alone when the others came before."""
    whole = seconds_of(partial(measure, rows, base, workers), repeats)
    lasts = []
    for _ in range(repeats):
        gram = Gram(base, workers=workers)
        gram.add(rows[:-1])
        lasts.append(seconds_of(partial(gram.add, rows[-1:]), 1))
    return {"gram_seconds": whole, "gram_last_row_seconds": median(lasts)}
