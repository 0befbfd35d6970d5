"""What a running node shows, and to whom: log lines, Prometheus text, answers over loopback."""

import asyncio
import contextlib
import io
import json
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from defl.ids import NodeId
from defl.lab.experiments.processes import Nodes
from defl.node.node import PEER_LINES_BURST, TOKEN_FILE
from defl.node.report import telemetry
from defl.node.report.status_client import asked_status
from defl.node.report.telemetry import (
    CONNECTIONS_MAX,
    REQUEST_BYTES_MAX,
    LineLimit,
    Log,
    Server,
    label,
    prometheus,
    write_private,
)
from support.node_here import Member, NodeHere, until

TIME_LIMIT_S = 20.0
TOKEN = "the right one"  # noqa: S105


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


def test_lines_about_a_peer_that_flaps_are_few_and_say_how_many_were_withheld() -> None:
    limit = LineLimit(burst=3, every_s=60.0)

    flapping = [limit.withheld("peer 1", now / 50) for now in range(1000)]  # within 20 s
    assert flapping == [0, 0, 0] + 997 * [None]
    assert limit.withheld("peer 2", 20.0) == 0
    assert limit.withheld("peer 1", 61.0) == 997
    assert limit.withheld("peer 1", 61.0) is None
    assert limit.withheld("peer 1", 1000.0) == 1


# --- Whom the server answers -------------------------------------------------------------------


LONG = 50_000_000  # more than the kernel takes over while nobody reads


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def last_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Until the server hangs up, which it must do."""
    data = bytearray()
    async with asyncio.timeout(TIME_LIMIT_S):
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(2**20):
                data += part
    await closed(writer)
    return bytes(data)


class Answering:
    def __init__(self, server: Server, port: int) -> None:
        self.server = server
        self.port = port

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, path: str, *headers: str, method: str = "GET") -> bytes:
        """The first line and the body; nothing if the server hangs up without an answer."""
        reader, writer = await self.connect()
        writer.write("\r\n".join((f"{method} {path} HTTP/1.1", *headers, "", "")).encode())
        async with asyncio.timeout(TIME_LIMIT_S):
            answer = await reader.read()
        await closed(writer)
        head, _, body = answer.partition(b"\r\n\r\n")
        return head.partition(b"\r\n")[0].removeprefix(b"HTTP/1.0 ") + b" " + body

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIME_LIMIT_S):
            while not condition():
                await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def answering(metrics: str = "defl_round 1") -> AsyncIterator[Answering]:
    status = {"observing": None, "disk_full": False, "no_descriptors": False, "round": 1}
    server = Server(lambda: status, lambda: metrics, TOKEN)
    try:
        yield Answering(server, await server.start(0))
    finally:
        await server.close()


def run(scenario: Callable[[Answering], Awaitable[None]], metrics: str = "defl_round 1") -> None:
    async def whole() -> None:
        async with answering(metrics) as here:
            await scenario(here)

    asyncio.run(whole())


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8400", "localhost", "LOCALHOST:1", "[::1]", "[::1]:8400"]
)
def test_whoever_asks_for_a_loopback_name_is_answered(host: str) -> None:
    async def scenario(here: Answering) -> None:
        assert await here.ask("/metrics", f"Host: {host}") == b"200 OK defl_round 1"

    run(scenario)


@pytest.mark.parametrize(
    "headers",
    [
        ["Host: attacker.example"],
        ["Host: attacker.example:8400"],
        ["Host: 127.0.0.1.attacker.example"],
        ["Host: localhost:8400:1"],
        ["Host: 127.0.0.1", "Host: attacker.example"],
        ["Host:"],
        [],
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/status"])
def test_a_page_whose_name_was_rebound_to_loopback_learns_nothing(
    path: str, headers: list[str]
) -> None:
    async def scenario(here: Answering) -> None:
        answer = await here.ask(path, *headers, f"Authorization: Bearer {TOKEN}")
        assert answer.startswith(b"421 ")
        assert b"round" not in answer

    run(scenario)


@pytest.mark.parametrize(
    "headers", [[], ["Authorization: Bearer another"], [f"Authorization: {TOKEN}"]], ids=str
)
def test_the_status_is_shown_only_to_callers_with_the_token(headers: list[str]) -> None:
    async def scenario(here: Answering) -> None:
        refused = await here.ask("/status", "Host: localhost", *headers)
        assert refused.startswith(b"401 ")
        assert b"round" not in refused
        told = await here.ask("/status", "Host: localhost", f"authorization: Bearer {TOKEN}")
        assert told.startswith(b"200 OK ")
        assert b'"round": 1' in told

    run(scenario)


def test_nothing_but_get_is_answered() -> None:
    async def scenario(here: Answering) -> None:
        answer = await here.ask("/metrics", "Host: localhost", method="POST")
        assert answer.startswith(b"405 ")

    run(scenario)


def test_the_token_is_for_its_owner_alone_also_where_another_file_was(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("older", encoding="ascii")
    path.chmod(0o644)

    write_private(path, TOKEN)

    assert path.read_text(encoding="ascii") == TOKEN
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


# --- What a caller can make it hold ------------------------------------------------------------


def test_any_number_of_silent_callers_take_few_connections_and_a_monitor_is_answered() -> None:
    async def scenario(here: Answering) -> None:
        crowd = []
        for _ in range(10 * CONNECTIONS_MAX):
            crowd.append(await here.connect())
            assert here.server.connections <= CONNECTIONS_MAX
        assert await here.ask("/healthz", "Host: localhost") == b'200 OK {"healthy": true}'
        assert here.server.connections <= CONNECTIONS_MAX
        for reader, writer in crowd[: 9 * CONNECTIONS_MAX]:
            assert await last_bytes(reader, writer) == b""  # hung up on, long before its time
        for _, writer in crowd[9 * CONNECTIONS_MAX :]:
            await closed(writer)
        await here.until(lambda: here.server.connections == 0)

    run(scenario)


def test_a_caller_that_never_reads_its_answer_is_hung_up_on_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(telemetry, "REQUEST_WAIT_S", 0.05)

    async def scenario(here: Answering) -> None:
        reader, writer = await here.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await here.until(lambda: here.server.connections == 1)
        await here.until(lambda: here.server.connections == 0)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await last_bytes(reader, writer)) < LONG

    run(scenario, metrics="x" * LONG)


def test_a_request_that_does_not_end_is_not_read_to_its_end() -> None:
    async def scenario(here: Answering) -> None:
        reader, writer = await here.connect()
        writer.write(b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * REQUEST_BYTES_MAX)
        assert await last_bytes(reader, writer) == b""

    run(scenario)


# --- A node ------------------------------------------------------------------------------------


def test_a_peer_that_comes_and_goes_fills_no_log(tmp_path: Path) -> None:
    folders = Nodes(tmp_path / "federation", 4, 1).local.nodes

    async def scenario() -> None:
        here = NodeHere(folders[2])
        async with here.running():
            for _ in range(3 * PEER_LINES_BURST):
                async with Member(folders[1]).connected(here.node.me):
                    pass
                await until(lambda: not here.node.transport.connected(NodeId(1)))
        assert len(here.logged("peer is gone")) == PEER_LINES_BURST

    asyncio.run(scenario())


def test_a_running_node_shows_its_status_to_whoever_can_read_its_token(tmp_path: Path) -> None:
    folder = Nodes(tmp_path / "federation", 4, 1).local.nodes[2]

    async def scenario() -> None:
        async with NodeHere(folder).running():
            token = folder / TOKEN_FILE
            assert stat.S_IMODE(token.stat().st_mode) == 0o600
            status = await asyncio.to_thread(asked_status, folder)
            assert status is not None
            assert status["member"] == 2
            token.write_text("another", encoding="ascii")
            assert await asyncio.to_thread(asked_status, folder) is None
        assert not token.exists()

    asyncio.run(scenario())
