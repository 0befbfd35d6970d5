"""How long each rule takes, beside reading its input once and beside other libraries, in one run.

Absolute times say much about the machine and its other work; so each rule is measured in turn with
the plain reading of the same array by two threads and with its rivals (turns.py), and ratios are
what counts.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from statistics import median

import numpy as np
from numpy.typing import NDArray

from defl.aggregation import kernels
from defl.aggregation.aggregate import Row
from defl.aggregation.geometric import measure
from defl.aggregation.gram import Gram
from defl.aggregation.rules import RULES
from defl.aggregation.workers import Workers
from defl.lab.experiments.interleaved_timing import Clock, Run, Series, both_clocks, in_turn
from defl.lab.experiments.rivals import missing, rival_runs

THREADS = 2
RIVAL_SECONDS_MAX = (
    60.0  # of one rival at one rule: flwr's median takes seconds where ours takes none
)
CHUNK = 1 << 20  # columns read at a time by one thread


@dataclass(frozen=True, slots=True)
class RuleTime:
    """One rule's medians and ratios, wall and processor time; None where nothing was measured."""

    repeats: int
    seconds: float
    cpu_seconds: float
    ratio_to_read: float
    cpu_ratio_to_read: float
    byzfl_repeats: int = 0
    byzfl_seconds: float | None = None
    ratio_to_byzfl: float | None = None  # how many times faster than byzfl's fastest form
    cpu_ratio_to_byzfl: float | None = None
    flwr_repeats: int = 0
    flwr_seconds: float | None = None
    ratio_to_flwr: float | None = None
    cpu_ratio_to_flwr: float | None = None


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
    readings: list[float] = []
    with ThreadPoolExecutor(THREADS) as pool:
        workers = Workers(THREADS, pool.map)
        reading = partial(read_once, rows, pool)
        stack = np.stack(rows) if rivals else np.empty((0, 0), dtype=np.float32)
        for name in names:
            rule = partial(RULES[name], rows, base, faults_max, ties, workers=workers)
            others = rival_runs(name, rows, stack, faults_max) if rivals else {}
            series = timed(name, reading, rule, others, repeats, progress)
            readings.append(series["reading"].wall_s)
            times[name] = beside(series)
        parts = close_after_last_arrival(rows, base, workers, repeats, progress)
    return {
        "n": members,
        "d": columns,
        "faults_max": faults_max,
        "loops": kernels.best().NAME,
        "threads": THREADS,
        "read_seconds": median(readings),
        "skipped": missing() if rivals else ["byzfl", "flwr"],
        **parts,
        "rules": {name: asdict(time) for name, time in times.items()},
    }


def timed(
    name: str,
    reading: Run,
    rule: Run,
    rivals: Mapping[str, Run],
    repeats: int,
    progress: Callable[[str], None],
    clock: Clock = both_clocks,
) -> dict[str, Series]:
    """Reading, our rule and its rivals in turn, within every repetition."""
    return in_turn(
        {"reading": reading, "ours": rule, **rivals},
        repeats,
        seconds_max=RIVAL_SECONDS_MAX,
        progress=lambda said: progress(f"{name}, {said}"),
        clock=clock,
    )


def beside(series: Mapping[str, Series]) -> RuleTime:
    ours = series["ours"]
    to_read = ours.over(series["reading"])
    time = RuleTime(ours.repeats, ours.wall_s, ours.cpu_s, to_read.wall_s, to_read.cpu_s)
    forms = [found for name, found in series.items() if name.startswith("byzfl")]
    if forms:
        byzfl = min(forms, key=lambda form: form.over(ours).wall_s)
        ratio = byzfl.over(ours)
        time = replace(
            time,
            byzfl_repeats=byzfl.repeats,
            byzfl_seconds=byzfl.wall_s,
            ratio_to_byzfl=ratio.wall_s,
            cpu_ratio_to_byzfl=ratio.cpu_s,
        )
    flwr = series.get("flwr")
    if flwr is not None:
        ratio = flwr.over(ours)
        time = replace(
            time,
            flwr_repeats=flwr.repeats,
            flwr_seconds=flwr.wall_s,
            ratio_to_flwr=ratio.wall_s,
            cpu_ratio_to_flwr=ratio.cpu_s,
        )
    return time


def close_after_last_arrival(
    rows: Sequence[Row],
    base: Row,
    workers: Workers,
    repeats: int,
    progress: Callable[[str], None],
) -> dict[str, float]:
    """Seconds to measure all rows at once, and the last one alone when the others came before."""
    waiting: list[Gram] = []
    for _ in range(repeats + 1):
        gram = Gram(base, workers=workers)
        gram.add(rows[:-1])
        waiting.append(gram)
    series = in_turn(
        {
            "all rows": partial(measure, rows, base, workers),
            "the last row": lambda: waiting.pop().add(rows[-1:]),
        },
        repeats,
        seconds_max=RIVAL_SECONDS_MAX,
        progress=lambda said: progress(f"Gram matrix, {said}"),
    )
    return {
        "gram_seconds": series["all rows"].wall_s,
        "gram_last_row_seconds": series["the last row"].wall_s,
    }
