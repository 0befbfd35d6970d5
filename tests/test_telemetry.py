"""What a running node shows: log lines at the chosen level, and Prometheus text."""

import io
import json

from defl.node.telemetry import Log, label, prometheus


def test_a_line_is_one_json_object_with_its_fields() -> None:
    stream = io.StringIO()
    Log("one", as_json=True, stream=stream).info("round closed", round=3)

    line = json.loads(stream.getvalue())
    assert (line["event"], line["round"], line["level"]) == ("round closed", 3, "info")


def test_a_level_keeps_lesser_lines_away() -> None:
    stream = io.StringIO()
    log = Log("two", as_json=False, level="warning", stream=stream)
    log.info("not shown")
    log.warning("shown", peer="bob")

    assert "not shown" not in stream.getvalue()
    assert "WARNING: shown peer=bob" in stream.getvalue()


def test_metrics_have_their_labels() -> None:
    text = prometheus({"round": {"": 3}, "bytes_sent": {'peer="1"': 10.0}})

    assert text.splitlines() == [
        "# TYPE defl_round gauge",
        "defl_round 3",
        "# TYPE defl_bytes_sent gauge",
        'defl_bytes_sent{peer="1"} 10',
    ]


def test_what_only_grows_is_a_counter() -> None:
    assert prometheus({"left_out_total": {"": 2}}).startswith("# TYPE defl_left_out_total counter")


def test_a_label_may_hold_any_text() -> None:
    assert label("metric", 'a"b\\c\nd') == r'metric="a\"b\\c\nd"'
