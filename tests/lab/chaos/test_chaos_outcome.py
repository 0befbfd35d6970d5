"""What the laboratory makes of what it saw: recovery, rounds, figures and the page."""

from pathlib import Path

import pytest

from defl.lab.chaos.calibrate import Calibration
from defl.lab.chaos.figures import Figure, Measurement, outside_training, traffic_ratios
from defl.lab.chaos.link import Carried, LineQuality, LinkStats
from defl.lab.chaos.outcome import Moment, Recovery, TrialOutcome, recovery_of, round_seconds
from defl.lab.chaos.page import page, recovery_cells, table
from defl.lab.chaos.results import ChaosResults, read_results, write_results
from defl.lab.chaos.sites import FederationSetting
from defl.schema import Codec


def outcome(name: str = "partition", **changes: object) -> TrialOutcome:
    facts: dict[str, object] = {
        "name": name, "title": "cut in two", "members": 4, "rounds": 5, "rounds_wanted": 5,
        "seconds": 30.0, "round_s": 1.5, "recovery": None, "view_s": 0.5, "late_ms": 1.0,
    }  # fmt: skip
    return TrialOutcome(**(facts | changes))  # type: ignore[arg-type]


def test_recovery_is_timed_from_the_heal_to_what_nobody_had_committed_before() -> None:
    moments = [
        Moment(1.0, 0, 7), Moment(1.0, 1, 4),  # member 1 was cut off
        Moment(3.0, 0, 7), Moment(3.5, 0, 8),
        Moment(4.0, 1, 7),  # it has caught up, and seen nothing new yet
        Moment(5.0, 1, 9),
    ]  # fmt: skip

    assert recovery_of(moments, healed_at=2.0, members=2) == Recovery(1.5, 3.0)
    assert recovery_of(moments[:-1], healed_at=2.0, members=2) is None


def test_recovery_is_also_told_in_views() -> None:
    assert recovery_cells(outcome(recovery=Recovery(1.0, 2.5))) == (
        "1.0 s (2.0 views)",
        "2.5 s (5.0 views)",
    )
    assert recovery_cells(outcome()) == ("", "")


def closed(round_: int, time: float) -> dict[str, object]:
    return {"event": "round closed", "round": round_, "time": time}


def trained(round_: int, seconds: float) -> dict[str, object]:
    return {"event": "trained", "round": round_, "seconds": seconds}


def test_a_rounds_time_is_the_median_and_skips_rounds_that_a_member_missed() -> None:
    log = [closed(1, 10.0), closed(2, 12.0), closed(5, 20.0), closed(6, 23.0)]

    assert round_seconds([log, []]) == 2.5
    assert round_seconds([[closed(1, 10.0)]]) is None


def test_time_outside_training_is_the_longest_rounds_without_the_longest_training() -> None:
    slow = [closed(1, 0.0), closed(2, 5.0), closed(3, 11.0), trained(3, 1.0)]
    fast = [closed(1, 0.0), closed(2, 4.0), closed(3, 8.0), trained(3, 2.0)]

    assert outside_training([slow, fast], warm_up=2) == [4.0]  # 6 seconds, of which 2 are training


def measurement(**changes: object) -> Measurement:
    fast = LineQuality(mbit_s=100)
    setting = FederationSetting(members=4, rounds=2, values=1_000_000)
    facts = {"name": "round", "title": "", "up": fast, "down": fast, "setting": setting}
    return Measurement(**(facts | changes))  # type: ignore[arg-type]


def test_the_yardstick_is_what_the_slowest_line_needs_for_its_bytes() -> None:
    assert measurement().ideal_s == pytest.approx(3 * 4e6 * 8 / 100e6)
    int8 = FederationSetting(members=4, values=1_000_000, codec=Codec.INT8)
    assert measurement(setting=int8).ideal_s == pytest.approx(measurement().ideal_s / 4, rel=0.01)
    slow_up = {3: (LineQuality(mbit_s=2), LineQuality(mbit_s=100))}
    assert measurement(lines=slow_up).ideal_s == pytest.approx(4e6 * 8 / 2e6)


def test_traffic_is_told_relative_to_n_minus_1_updates_a_round() -> None:
    one = Carried(1, 12_000_000, 0, 0, 0)
    more = Carried(1, 36_000_000, 0, 0, 0)
    relay = Carried(1, 10**9, 0, 0, 0)  # hosts beside the members do not count
    stats = LinkStats(up=(one,) * 3 + (more, relay), down=(one,) * 4 + (relay,), late_ms=0.0)

    ratios = traffic_ratios(stats, [], measurement())

    assert ratios["wire_ratio"] == pytest.approx((7 * 12 + 36) / 8 / 24, rel=0.01)
    assert ratios["wire_ratio_max"] == pytest.approx(36 / 24, rel=0.01)


def test_the_page_shows_failures_and_escapes_what_would_break_a_table() -> None:
    results = ChaosResults(
        calibrations=[Calibration("loss", "%", 2.0, 1.9)],
        outcomes={"bad": outcome("bad", violations=["rounds closed: [1|2]\nand more"])},
    )

    text = page(results, "cubic")

    assert "**failed**: rounds closed: [1\\|2] and more |" in text
    assert "| loss | 2.00 % | 1.90 % | 5.0 % |" in text
    assert "make chaos" in text
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


@pytest.mark.parametrize(
    ("goal", "shown"),
    [
        (None, "| 1.50 |"),
        (1.6, "| 1.50 (goal 1.6: met) |"),
        (1.3, "| 1.50 (goal 1.3: **missed**) |"),
    ],
)
def test_the_page_says_whether_a_goal_is_met(goal: float | None, shown: str) -> None:
    figure = Figure("r", "", 4, 28.0, 9.0, 6.0, (9.0,), 1.0, 1.04, 1.1, 0.5, (), goal=goal)

    assert shown in page(ChaosResults(figures={"r": figure}), "cubic")


def test_results_are_kept_from_run_to_run(tmp_path: Path) -> None:
    figure = Figure("round", "", 4, 28.0, 7.0, 6.72, (7.0,), 1.0, 1.04, 1.1, 0.5, (), 6.9)
    results = ChaosResults(outcomes={"cut": outcome()}, figures={"round": figure})

    write_results(tmp_path, results)

    assert read_results(tmp_path) == results
    (tmp_path / "results.json").write_text('{"outcomes": 7}')
    assert read_results(tmp_path) == ChaosResults()
