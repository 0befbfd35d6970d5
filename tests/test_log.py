"""Log lines, and that configuring them leaves other loggers alone."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest

from defl.node.event_loop import LOOP_LINES_EVERY_S, TRACEBACKS_BURST, LoopErrors
from defl.node.report.log import HumanFormatter, LineLimit, Log, configure_logging
from defl.node.report.peer_log import CROWD_EVERY_S, report_crowd
from support.logs import log_to
from support.virtual_links import VirtualLoop


@pytest.fixture
def defl_logger() -> Iterator[logging.Logger]:
    """Restores the logger after the test."""
    logger = logging.getLogger("defl")
    handlers, level = logger.handlers.copy(), logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


def test_a_line_is_one_json_object_with_its_fields() -> None:
    stream = io.StringIO()
    log_to(stream).info("round closed", round=3)

    line = json.loads(stream.getvalue())
    assert (line["event"], line["round"], line["level"]) == ("round closed", 3, "info")


def test_a_level_hides_lesser_lines(defl_logger: logging.Logger) -> None:
    stream = io.StringIO()
    configure_logging(as_json=False, level="warning", stream=stream)
    Log().info("not shown")
    Log().warning("shown", peer="bob")

    assert "not shown" not in stream.getvalue()
    assert "WARNING: shown peer=bob" in stream.getvalue()


def test_configuring_a_node_keeps_the_handlers_of_others(defl_logger: logging.Logger) -> None:
    others = io.StringIO()
    of_another = logging.StreamHandler(others)
    defl_logger.addHandler(of_another)
    root = logging.getLogger()
    before = (root.handlers.copy(), root.level)

    configure_logging(as_json=True, stream=io.StringIO())
    Log().warning("disk full")

    assert of_another in defl_logger.handlers
    assert others.getvalue() == "disk full\n"
    assert (root.handlers, root.level) == before


def test_an_error_that_repeats_is_logged_a_few_times_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop, stream = VirtualLoop(), io.StringIO()
    report = LoopErrors(log_to(stream)).report
    try:
        for _ in range(50):
            report(loop, {"message": "in a callback", "exception": ValueError("ours")})
        report(loop, {"message": "another", "exception": KeyError("ours too")})
        assert len(caplog.records) == TRACEBACKS_BURST + 1
        loop.run_until_complete(asyncio.sleep(LOOP_LINES_EVERY_S))
        report(loop, {"message": "in a callback", "exception": ValueError("ours")})
    finally:
        loop.close()

    assert len(caplog.records) == TRACEBACKS_BURST + 2
    line = json.loads(stream.getvalue())
    assert (line["type"], line["withheld"]) == ("ValueError", 50 - TRACEBACKS_BURST)


def test_lines_propagate_to_the_root_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "defl"):
        Log().info("round closed", round=3)

    (record,) = caplog.records
    assert (record.name, record.getMessage()) == ("defl.node", "round closed")
    assert record.fields == {"round": 3}
    assert record.filename == "test_log.py"


def test_library_use_configures_nothing(defl_logger: logging.Logger) -> None:
    before = (defl_logger.handlers.copy(), defl_logger.level)
    Log().info("not configured")

    assert (defl_logger.handlers, defl_logger.level) == before
    assert defl_logger.propagate


def test_lines_about_a_flapping_peer_are_few_and_count_the_withheld_ones() -> None:
    limit = LineLimit(burst=3, every_s=60.0)

    flapping = [limit.withheld("peer 1", now / 50) for now in range(1000)]  # within 20 s
    assert flapping == [0, 0, 0] + 997 * [None]
    assert limit.withheld("peer 2", 20.0) == 0
    assert limit.withheld("peer 1", 61.0) == 997
    assert limit.withheld("peer 1", 61.0) is None
    assert limit.withheld("peer 1", 1000.0) == 1


def test_a_line_for_people_shows_control_characters_as_escapes() -> None:
    record = logging.makeLogRecord(
        {"msg": "x", "levelno": 20, "fields": {"error": "a\r\x1b[31m\nb"}}
    )

    assert HumanFormatter().format(record).endswith("x error=a\\r\\x1b[31m\nb")


def test_a_crowded_node_says_so_once_a_minute_however_many_are_turned_away() -> None:
    stream = io.StringIO()
    waited: list[float] = []

    async def wait(pause_s: float) -> None:
        waited.append(pause_s)
        if sum(waited) > 600.0:
            raise asyncio.CancelledError

    def turned_away() -> int:
        """A thousand a second, in the first five minutes."""
        return int(min(sum(waited), 300.0)) * 1000

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(report_crowd(log_to(stream), turned_away, wait))

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert {line["level"] for line in lines} == {"warning"}
    assert sum(line["turned_away"] for line in lines) == 300_000
    assert 2 <= len(lines) <= 300 / CROWD_EVERY_S + 1
