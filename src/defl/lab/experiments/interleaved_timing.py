"""Several things timed in turn, so that other work on the machine hits all of them alike.

One repetition runs every thing once, one after the other; ratios are taken within a repetition and
their median counts. Beside the time on the clock stands the processor time of all threads, which
other work on shared cores lengthens far less.
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
    """What one thing took in repetition 0, 1, ...; the list may end before those of others."""

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
        """How many times as long as the other, in the repetitions that have both; medians."""
        pairs = list(zip(self.times, other.times, strict=False))
        return Times(
            median(mine.wall_s / theirs.wall_s for mine, theirs in pairs),
            median(mine.cpu_s / theirs.cpu_s for mine, theirs in pairs),
        )


def in_turn(
    runs: Mapping[str, Run],
    repeats: int,
    *,
    seconds_max: float,
    progress: Callable[[str], None],
    clock: Clock = both_clocks,
) -> dict[str, Series]:
    """Run all in turn, `repeats` times and once before that does not count (it loads and warms).

    What has used up `seconds_max` takes part no longer, but everything is counted once at least.
    """
    series = {name: Series([]) for name in runs}
    spent = dict.fromkeys(runs, 0.0)
    for repetition in range(repeats + 1):
        said = []
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
            said.append(f"{name} {took.wall_s:.3f} s")
        which = f"run {repetition} of {repeats}" if repetition else "a first run, not counted"
        progress(f"{which}: {', '.join(said)}")
    return series
