"""history.jsonl: written by the node, read by others while it grows."""

import asyncio
import io
import os
from pathlib import Path

import msgspec
import pytest

from defl.node.files import HISTORY_FILE
from defl.node.report.round_facts import Fact, Proven, RoundReady, Started
from defl.node.report.round_log import FactWriter, RoundLog
from support.logs import log_to

FIRST, SECOND, THIRD = (RoundReady(number, f"{number:064x}") for number in (1, 2, 3))


def line(fact: Fact) -> bytes:
    return msgspec.json.encode(fact) + b"\n"


def append(folder: Path, data: bytes) -> None:
    with (folder / HISTORY_FILE).open("ab") as file:
        file.write(data)


# --- Reading ---------------------------------------------------------------------------------


def test_each_fact_is_read_once(tmp_path: Path) -> None:
    log = RoundLog(tmp_path)
    append(tmp_path, line(FIRST))
    assert log.read_new().facts == [FIRST]

    append(tmp_path, line(SECOND) + line(THIRD))
    assert log.read_new().facts == [SECOND, THIRD]
    assert log.read_new().facts == []


def test_a_node_that_has_written_nothing_yet(tmp_path: Path) -> None:
    log = RoundLog(tmp_path)

    assert log.read_new().facts == []
    append(tmp_path, line(FIRST))
    assert log.read_new().facts == [FIRST]


def test_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    log = RoundLog(tmp_path)
    append(tmp_path, line(FIRST) + line(SECOND)[:9])
    assert log.read_new().facts == [FIRST]

    append(tmp_path, line(SECOND)[9:])
    assert log.read_new().facts == [SECOND]
    assert log.undecodable == 0


def test_a_date_that_no_calendar_has_is_damage(tmp_path: Path) -> None:
    log = RoundLog(tmp_path)
    for at in (1e300, -1.0, 253_402_300_800.0):
        append(tmp_path, line(Started(at, 0, 0, 1, [])))
    append(tmp_path, line(FIRST))

    assert log.read_new().facts == [FIRST]
    assert log.undecodable == 3


def test_a_pipe_in_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / HISTORY_FILE)

    with pytest.raises(OSError, match="Illegal seek"):
        RoundLog(tmp_path).read_new()


def test_a_damaged_line_costs_itself_alone(tmp_path: Path) -> None:
    """Torn by a power cut, not text, or of a release that knows more kinds of facts."""
    strange = b'{"type":"of another release","round":2}\n'
    append(tmp_path, line(FIRST) + line(SECOND)[:9] + b"\n\xff\xfe\n" + strange + line(THIRD))
    log = RoundLog(tmp_path)

    assert log.read_new().facts == [FIRST, THIRD]
    assert log.undecodable == 3


def test_a_replaced_file_is_read_from_its_start(tmp_path: Path) -> None:
    log = RoundLog(tmp_path)
    append(tmp_path, line(FIRST))
    assert log.read_new().from_start
    assert not log.read_new().from_start

    other = tmp_path / "other"
    other.write_bytes(line(SECOND) + line(THIRD))
    other.replace(tmp_path / HISTORY_FILE)

    again = log.read_new()
    assert again.from_start
    assert again.facts == [SECOND, THIRD]


def test_a_truncated_file_is_read_from_its_start(tmp_path: Path) -> None:
    log = RoundLog(tmp_path)
    append(tmp_path, line(FIRST) + line(SECOND))
    log.read_new()

    (tmp_path / HISTORY_FILE).write_bytes(line(THIRD))

    again = log.read_new()
    assert again.from_start
    assert again.facts == [THIRD]


def test_a_removed_file_takes_its_facts_along(tmp_path: Path) -> None:
    log = RoundLog(tmp_path)
    append(tmp_path, line(FIRST))
    log.read_new()

    (tmp_path / HISTORY_FILE).unlink()

    assert log.read_new().from_start
    assert not log.read_new().from_start


def test_a_file_longer_than_a_piece_is_read_whole(tmp_path: Path) -> None:
    facts = [Proven(number, "ab", 3, 4, 3) for number in range(50)]
    append(tmp_path, b"".join(line(fact) for fact in facts))
    log = RoundLog(tmp_path, piece_bytes=200)

    assert log.read_new().facts == facts


def test_a_line_without_end_does_not_stop_the_reader(tmp_path: Path) -> None:
    append(tmp_path, b"x" * 1000 + b"\n" + line(FIRST))
    log = RoundLog(tmp_path, piece_bytes=200)

    assert log.read_new().facts == [FIRST]
    assert log.undecodable > 0


# --- Writing ---------------------------------------------------------------------------------


def written(folder: Path, *facts: Fact, stream: io.StringIO | None = None) -> None:
    """By a process of its own."""
    FactWriter(folder, log_to(stream or io.StringIO())).append(list(facts))


def test_facts_are_appended_across_restarts(tmp_path: Path) -> None:
    written(tmp_path, FIRST, SECOND)
    written(tmp_path, THIRD)

    assert RoundLog(tmp_path).read_new().facts == [FIRST, SECOND, THIRD]


def test_a_line_that_a_power_cut_has_torn_costs_itself_alone(tmp_path: Path) -> None:
    append(tmp_path, line(FIRST) + line(SECOND)[:9])

    written(tmp_path, THIRD)

    log = RoundLog(tmp_path)
    assert log.read_new().facts == [FIRST, THIRD]
    assert log.undecodable == 1


def test_on_a_full_disk_facts_are_lost_with_one_warning_and_later_ones_are_written(
    tmp_path: Path,
) -> None:
    stream = io.StringIO()
    writer = FactWriter(tmp_path, log_to(stream))
    file = tmp_path / HISTORY_FILE
    file.symlink_to("/dev/full")
    writer.append([FIRST])
    writer.append([SECOND])
    assert stream.getvalue().count("not written") == 1
    assert os.strerror(28) in stream.getvalue()

    file.unlink()
    writer.append([THIRD])
    assert RoundLog(tmp_path).read_new().facts == [THIRD]

    file.unlink()
    file.symlink_to("/dev/full")
    writer.append([FIRST])
    assert stream.getvalue().count("not written") == 2, "it is full again"


def test_facts_are_written_off_the_loop_in_their_order(tmp_path: Path) -> None:
    facts = [RoundReady(number, "ab") for number in range(100)]

    async def scenario() -> None:
        writer = FactWriter(tmp_path, log_to(io.StringIO()))
        running = asyncio.create_task(writer.run())
        for fact in facts:
            writer.put(fact)
            await asyncio.sleep(0)
        writer.end()
        await running

    asyncio.run(scenario())

    assert RoundLog(tmp_path).read_new().facts == facts


def test_nothing_is_written_if_there_is_nothing_to_say(tmp_path: Path) -> None:
    writer = FactWriter(tmp_path, log_to(io.StringIO()))
    writer.end()
    asyncio.run(writer.run())

    assert not (tmp_path / HISTORY_FILE).exists()
