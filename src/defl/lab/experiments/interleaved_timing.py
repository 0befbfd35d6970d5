"""Interleaved timing: several runs alternate, so that other load on the machine hits all alike.

One repetition runs every candidate once. Ratios are taken within a repetition, and their median
counts. Next to wall time stands the processor time of all threads, which other work on shared
cores affects far less.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter, process_time

Run = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Times:
    wall_s: float
    cpu_s: float  # of all threads of this process


Clock = Callable[[], Times]


def both_clocks() -> Times:
    return Times(perf_counter(), process_time())


@dataclass(frozen=True, slots=True)
class Series:
    """One candidate's times per repetition; a series may end before the others."""

    times: list[Times]

    @property
    def repeats(self) -> int:
        return len(self.times)

    @property
    def wall_s(self) -> float:
        return median(each.wall_s for each in self.times)

    @property
    def cpu_s(self) -> float:
        return median(each.cpu_s for each in self.times)

    def over(self, other: "Series") -> Times:
        """The median ratio to the other series, over the repetitions that both have."""
        pairs = list(zip(self.times, other.times, strict=False))
        return Times(
            median(mine.wall_s / theirs.wall_s for mine, theirs in pairs),
            median(mine.cpu_s / theirs.cpu_s for mine, theirs in pairs),
        )


def interleave(
    runs: Mapping[str, Run],
    repeats: int,
    *,
    seconds_max: float,
    progress: Callable[[str], None],
    clock: Clock = both_clocks,
) -> dict[str, Series]:
    """Time all runs `repeats` times, alternating, after a warm-up repetition that is not counted.

    A run that has used up `seconds_max` drops out, but is counted at least once.
    """
    series = {name: Series([]) for name in runs}
    spent = dict.fromkeys(runs, 0.0)
    for repetition in range(repeats + 1):
        timings = []
        for name, run in runs.items():
            if repetition > 1 and spent[name] >= seconds_max:
                continue
            start = clock()
            run()
            end = clock()
            took = Times(end.wall_s - start.wall_s, end.cpu_s - start.cpu_s)
            spent[name] += took.wall_s
            if repetition:
                series[name].times.append(took)
            timings.append(f"{name} {took.wall_s:.3f} s")
        which = f"run {repetition} of {repeats}" if repetition else "warm-up, not counted"
        progress(f"{which}: {', '.join(timings)}")
    return series
