"""Interleaved timing, on a clock that only the timed runs advance."""

from collections.abc import Callable

import pytest

from defl.lab.experiments.bench_rules import RIVAL_SECONDS_MAX, compare, time_rule
from defl.lab.experiments.interleaved_timing import Series, Times, interleave


class Machine:
    """A run's wall time is its work times the current load; its processor time is its work."""

    def __init__(self, load: Callable[[int], float]) -> None:
        self.order: list[str] = []
        self._load = load
        self._now = Times(0.0, 0.0)

    def clock(self) -> Times:
        return self._now

    def run(self, name: str, seconds: float) -> Callable[[], None]:
        def work() -> None:
            repetition = self.order.count(name)
            self.order.append(name)
            wall_s = self._now.wall_s + seconds * self._load(repetition)
            self._now = Times(wall_s, self._now.cpu_s + seconds)

        return work


def silent(_timings: str) -> None:
    pass


def times_of(machine: Machine, repeats: int, **seconds: float) -> dict[str, Series]:
    rivals = {name: machine.run(name, took) for name, took in seconds.items()}
    return time_rule(
        "rule",
        machine.run("reading", 1.0),
        machine.run("ours", 3.0),
        rivals,
        repeats,
        silent,
        clock=machine.clock,
    )


def test_each_repetition_alternates_reading_our_rule_and_every_rival() -> None:
    machine = Machine(load=lambda _: 1.0)
    times_of(machine, 2, byzfl=5.0, flwr=6.0)
    assert machine.order == ["reading", "ours", "byzfl", "flwr"] * 3


def test_load_that_grows_between_repetitions_does_not_change_ratios() -> None:
    machine = Machine(load=lambda repetition: 10.0**repetition)
    time = compare(times_of(machine, 2, flwr=6.0))
    assert (time.ratio_to_read, time.ratio_to_flwr) == pytest.approx((3.0, 2.0))
    assert time.seconds == pytest.approx(165.0)  # the median of 30 and 300
    assert time.cpu_seconds == pytest.approx(3.0)
    assert (time.cpu_ratio_to_read, time.cpu_ratio_to_flwr) == pytest.approx((3.0, 2.0))


def test_ratio_uses_the_fastest_variant_of_a_library() -> None:
    machine = Machine(load=lambda _: 1.0)
    series = times_of(machine, 1, **{"byzfl on numpy": 12.0, "byzfl on torch": 9.0})
    time = compare(series)
    assert time.byzfl_seconds == pytest.approx(9.0)
    assert time.ratio_to_byzfl == pytest.approx(3.0)
    assert time.ratio_to_flwr is None


def test_rival_that_has_used_up_its_time_is_counted_once_and_drops_out() -> None:
    machine = Machine(load=lambda _: 1.0)
    time = compare(times_of(machine, 4, flwr=2 * RIVAL_SECONDS_MAX))
    assert machine.order.count("flwr") == 2
    assert (time.repeats, time.flwr_repeats) == (4, 1)
    assert time.ratio_to_flwr == pytest.approx(2 * RIVAL_SECONDS_MAX / 3.0)


def test_warm_up_is_reported_but_not_counted() -> None:
    machine = Machine(load=lambda repetition: 1.0 if repetition else 100.0)
    lines: list[str] = []
    runs = {"ours": machine.run("ours", 1.0)}
    series = interleave(runs, 2, seconds_max=1000.0, progress=lines.append, clock=machine.clock)
    assert series["ours"].times == [Times(1.0, 1.0)] * 2
    assert lines[0] == "warm-up, not counted: ours 100.000 s"
    assert lines[2] == "run 2 of 2: ours 1.000 s"
