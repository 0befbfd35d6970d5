"""Timing in turn, on a clock that stands still unless a run moves it."""

from collections.abc import Callable

import pytest

from defl.lab.experiments.bench_rules import RIVAL_SECONDS_MAX, beside, timed
from defl.lab.experiments.interleaved_timing import Series, Times, in_turn


class Machine:
    """Every run takes its work times the load of the moment; processors do the work alone."""

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


def silent(_said: str) -> None:
    pass


def times_of(machine: Machine, repeats: int, **seconds: float) -> dict[str, Series]:
    rivals = {name: machine.run(name, took) for name, took in seconds.items()}
    return timed(
        "rule",
        machine.run("reading", 1.0),
        machine.run("ours", 3.0),
        rivals,
        repeats,
        silent,
        clock=machine.clock,
    )


def test_reading_our_rule_and_every_rival_run_in_turn_in_each_repetition() -> None:
    machine = Machine(load=lambda _: 1.0)
    times_of(machine, 2, byzfl=5.0, flwr=6.0)
    assert machine.order == ["reading", "ours", "byzfl", "flwr"] * 3


def test_a_load_that_grows_from_repetition_to_repetition_leaves_the_ratios_alone() -> None:
    machine = Machine(load=lambda repetition: 10.0**repetition)
    found = beside(times_of(machine, 2, flwr=6.0))
    assert (found.ratio_to_read, found.ratio_to_flwr) == pytest.approx((3.0, 2.0))
    assert found.seconds == pytest.approx(165.0)  # the median of 30 and 300
    assert found.cpu_seconds == pytest.approx(3.0)
    assert (found.cpu_ratio_to_read, found.cpu_ratio_to_flwr) == pytest.approx((3.0, 2.0))


def test_the_faster_of_a_librarys_forms_is_the_one_compared_with() -> None:
    machine = Machine(load=lambda _: 1.0)
    series = times_of(machine, 1, **{"byzfl on numpy": 12.0, "byzfl on torch": 9.0})
    found = beside(series)
    assert found.byzfl_seconds == pytest.approx(9.0)
    assert found.ratio_to_byzfl == pytest.approx(3.0)
    assert found.ratio_to_flwr is None


def test_a_rival_that_has_used_up_its_time_is_counted_once_and_runs_no_more() -> None:
    machine = Machine(load=lambda _: 1.0)
    found = beside(times_of(machine, 4, flwr=2 * RIVAL_SECONDS_MAX))
    assert machine.order.count("flwr") == 2
    assert (found.repeats, found.flwr_repeats) == (4, 1)
    assert found.ratio_to_flwr == pytest.approx(2 * RIVAL_SECONDS_MAX / 3.0)


def test_the_first_run_is_told_but_does_not_count() -> None:
    machine = Machine(load=lambda repetition: 1.0 if repetition else 100.0)
    said: list[str] = []
    runs = {"ours": machine.run("ours", 1.0)}
    series = in_turn(runs, 2, seconds_max=1000.0, progress=said.append, clock=machine.clock)
    assert series["ours"].times == [Times(1.0, 1.0)] * 2
    assert said[0] == "a first run, not counted: ours 100.000 s"
    assert said[2] == "run 2 of 2: ours 1.000 s"
