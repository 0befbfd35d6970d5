"""What operators see about waiting: status, log and options."""

import pytest

from defl.committee import Timing
from defl.node.report.status import MemberLateness, waiting_sentence
from defl.running.plan import ProjectSettings, timing_of

CALM = {"answers_missing": 0, "over": False, "updates": 3, "quorum": 3, "waiting_for_s": {}}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"answers_missing": 2},
            (
                "for 2 more members to report what they have seen this node sign; "
                "it signs nothing before"
            ),
        ),
        ({"over": True}, "for nothing: all rounds are closed"),
        ({"updates": 1}, "for updates: 1 of at least 3 are in"),
        ({}, "for the round to close"),
        ({"waiting_for_s": {"site-b": 12.34}}, "for site-b (up to 12.3 s)"),
    ],
)
def test_the_status_names_what_the_node_is_waiting_for(
    changes: dict[str, object], sentence: str
) -> None:
    assert waiting_sentence(**{**CALM, **changes}) == sentence  # type: ignore[arg-type]


def test_lateness_is_reported_with_the_round_and_the_members_pace() -> None:
    late = MemberLateness(rounds=1, round=7, lasted_s=12.0, waited_s=4.0, usual_s=30.0)
    assert str(late) == (
        "late in 1 round; round 7 lasted 12.0 s: it needs 30.0 s, 18.0 s too long; "
        "waited 4.0 s for it"
    )
    unknown = MemberLateness(rounds=2, round=7, lasted_s=12.0, waited_s=4.0, usual_s=0.0)
    assert unknown.late_s is None
    assert str(unknown).startswith("late in 2 rounds; round 7 lasted 12.0 s: no update came")


def test_defl_run_takes_the_bounds_from_its_options_then_from_defl_toml() -> None:
    settings = ProjectSettings(gst_lt_min_s=2.0, gst_lt_max_s=90.0)
    usual = Timing()
    timing = timing_of(ProjectSettings(), None, None)
    assert (timing.gst_lt_min_s, timing.gst_lt_max_s) == (usual.gst_lt_min_s, usual.gst_lt_max_s)
    timing = timing_of(settings, None, None)
    assert (timing.gst_lt_min_s, timing.gst_lt_max_s) == (2.0, 90.0)
    timing = timing_of(settings, 3.0, 4.0)
    assert (timing.gst_lt_min_s, timing.gst_lt_max_s) == (3.0, 4.0)
