"""The speed of each rule relative to reading its input once and to other libraries.

Absolute times say more about the machine and its load than about the rule. So each rule alternates
with a plain read of the same array by two threads and with its rivals (interleaved_timing.py), and
the ratios count.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from statistics import median

import numpy as np
from numpy.typing import NDArray

from defl.aggregation import kernels
from defl.aggregation.aggregate import Row
from defl.aggregation.geometric import measure
from defl.aggregation.gram import Gram
from defl.aggregation.rules import rule_named
from defl.aggregation.workers import Workers
from defl.errors import UserError
from defl.lab.experiments.interleaved_timing import Clock, Run, Series, both_clocks, interleave
from defl.lab.experiments.rivals import rival_runs, unavailable

THREADS = 2
# Of one rival at one rule: flwr's median takes seconds where ours takes milliseconds.
RIVAL_SECONDS_MAX = 60.0
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
    ratio_to_byzfl: float | None = None  # how many times faster than byzfl's fastest variant
    cpu_ratio_to_byzfl: float | None = None
    flwr_repeats: int = 0
    flwr_seconds: float | None = None
    ratio_to_flwr: float | None = None
    cpu_ratio_to_flwr: float | None = None


@dataclass(frozen=True, slots=True)
class RulesBenchmark:
    """What `defl bench rules --json` prints."""

    n: int
    d: int
    faults_max: int
    loops: str
    threads: int
    read_seconds: float
    skipped: list[str]
    gram_seconds: float
    gram_last_row_seconds: float  # when the other rows were measured before
    rules: dict[str, RuleTime]

    def table(self) -> str:
        title = (
            f"n = {self.n}, d = {self.d}, faults_max = {self.faults_max}, {self.loops} loops; "
            f"reading once: {self.read_seconds:.4f} s; in brackets: processor time"
        )
        head = f"{'rule':28}{'seconds':>18}{'x read':>16}{'byzfl / ours':>16}{'flwr / ours':>16}"
        lines = [title, head]
        for name, time in self.rules.items():
            lines.append(
                f"{name:28}{both(time.seconds, time.cpu_seconds):>18}"
                f"{both(time.ratio_to_read, time.cpu_ratio_to_read):>16}"
                f"{both(time.ratio_to_byzfl, time.cpu_ratio_to_byzfl):>16}"
                f"{both(time.ratio_to_flwr, time.cpu_ratio_to_flwr):>16}"
            )
        if self.skipped:
            lines.append(
                f"not compared (not installed, not importable or --no-rivals): "
                f"{', '.join(self.skipped)}"
            )
        return "\n".join(lines)


def both(wall: float | None, cpu: float | None) -> str:
    return "-" if wall is None else f"{wall:.3g} ({cpu:.3g})"


def synthetic_rows(members: int, columns: int, faults: int, seed: int) -> tuple[list[Row], Row]:
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
    """The largest value of every row, by two threads: NumPy's fastest pass over memory."""

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
) -> RulesBenchmark:
    if members < 1 or columns < 1 or repeats < 1 or not 0 <= faults_max < members:
        raise UserError("n, d and repeats must be at least 1, and faults 0 to n - 1")
    rules = {name: rule_named(name) for name in names}
    rows, base = synthetic_rows(members, columns, faults_max, seed=1)
    ties = [sha256(bytes([i])).digest() for i in range(members)]
    times: dict[str, RuleTime] = {}
    readings: list[float] = []
    with ThreadPoolExecutor(THREADS) as pool:
        workers = Workers(THREADS, pool.map)
        reading = partial(read_once, rows, pool)
        stack = np.stack(rows) if rivals else np.empty((0, 0), dtype=np.float32)
        for name, rule in rules.items():
            ours = partial(rule, rows, base, faults_max, ties, workers=workers)
            others = rival_runs(name, rows, stack, faults_max) if rivals else {}
            series = time_rule(name, reading, ours, others, repeats, progress)
            readings.append(series["reading"].wall_s)
            times[name] = compare(series)
        gram = time_gram(rows, base, workers, repeats, progress)
    return RulesBenchmark(
        n=members,
        d=columns,
        faults_max=faults_max,
        loops=kernels.best(members * columns).NAME,
        threads=THREADS,
        read_seconds=median(readings),
        skipped=unavailable() if rivals else ["byzfl", "flwr"],
        gram_seconds=gram["all rows"].wall_s,
        gram_last_row_seconds=gram["the last row"].wall_s,
        rules=times,
    )


def time_rule(
    name: str,
    reading: Run,
    rule: Run,
    rivals: Mapping[str, Run],
    repeats: int,
    progress: Callable[[str], None],
    clock: Clock = both_clocks,
) -> dict[str, Series]:
    """Reading, our rule and its rivals, alternating within every repetition."""
    return interleave(
        {"reading": reading, "ours": rule, **rivals},
        repeats,
        seconds_max=RIVAL_SECONDS_MAX,
        progress=lambda timings: progress(f"{name}, {timings}"),
        clock=clock,
    )


def compare(series: Mapping[str, Series]) -> RuleTime:
    ours = series["ours"]
    to_read = ours.over(series["reading"])
    time = RuleTime(ours.repeats, ours.wall_s, ours.cpu_s, to_read.wall_s, to_read.cpu_s)
    variants = [times for name, times in series.items() if name.startswith("byzfl")]
    if variants:
        byzfl = min(variants, key=lambda variant: variant.over(ours).wall_s)
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


def time_gram(
    rows: Sequence[Row],
    base: Row,
    workers: Workers,
    repeats: int,
    progress: Callable[[str], None],
) -> dict[str, Series]:
    """Measure all rows at once, and the last row alone when the others were measured before."""
    waiting: list[Gram] = []
    for _ in range(repeats + 1):
        gram = Gram(base, workers=workers)
        gram.add(rows[:-1])
        waiting.append(gram)
    return interleave(
        {
            "all rows": partial(measure, rows, base, workers),
            "the last row": lambda: waiting.pop().add(rows[-1:]),
        },
        repeats,
        seconds_max=RIVAL_SECONDS_MAX,
        progress=lambda timings: progress(f"Gram matrix, {timings}"),
    )
