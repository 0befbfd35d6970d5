"""What an operator reads about waiting: in the status, the log and the metrics."""

import pytest

from defl.committee import Timing
from defl.ids import NodeId, Round
from defl.node.report.history import Lateness
from defl.node.report.status import waiting_sentence
from defl.output import MemberLate
from defl.running.plan import ProjectSettings, timing_of

CALM = {"answers_missing": 0, "over": False, "updates": 3, "quorum": 3, "waits_for": {}}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"answers_missing": 2},
            "for 2 more members to say what they have seen this node sign; it signs nothing before",
        ),
        ({"over": True}, "for nobody: all rounds are closed"),
        ({"updates": 1}, "for updates: 1 of at least 3 are in"),
        ({}, "for the round to close"),
        ({"waits_for": {"site-b": 12.34}}, "for site-b (up to 12.3 s)"),
    ],
)
def test_the_status_says_in_words_what_a_node_waits_for(
    changes: dict[str, object], sentence: str
) -> None:
    assert waiting_sentence(**{**CALM, **changes}) == sentence  # type: ignore[arg-type]


def test_the_status_says_who_was_late_and_by_how_much() -> None:
    lateness = Lateness()
    assert lateness.sentence == "never late"
    lateness.rounds = 1
    lateness.last = MemberLate(Round(7), NodeId(3), 4.0, 30.0, 12.0)

    assert lateness.sentence == (
        "late in 1 round; in round 7, which lasted 12.0 s, it needs 30.0 s, 18.0 s too long; "
        "waited for it in vain: 4.0 s"
    )


def test_defl_run_takes_the_bounds_from_its_options_then_from_defl_toml() -> None:
    settings = ProjectSettings(gst_lt_min_s=2.0, gst_lt_max_s=90.0)
    usual = Timing()
    timing = timing_of(ProjectSettings(), None, None)
    assert (timing.gst_lt_min_s, timing.gst_lt_max_s) == (usual.gst_lt_min_s, usual.gst_lt_max_s)
    timing = timing_of(settings, None, None)
    assert (timing.gst_lt_min_s, timing.gst_lt_max_s) == (2.0, 90.0)
    timing = timing_of(settings, 3.0, 4.0)
    assert (timing.gst_lt_min_s, timing.gst_lt_max_s) == (3.0, 4.0)
