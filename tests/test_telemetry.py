"""The telemetry server: which clients it answers, and bounds on what they can occupy."""

import asyncio
import contextlib
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from defl.committee import Member, Membership
from defl.errors import UserError
from defl.ids import NodeId, Round
from defl.lab.experiments.processes import Nodes
from defl.node.files import TOKEN_FILE
from defl.node.report import telemetry
from defl.node.report.membership import MembershipReport, encode_membership
from defl.node.report.peer_log import PEER_LINES_BURST
from defl.node.report.requests import (
    REQUEST_BODY_BYTES_MAX,
    ApproveRequest,
    Request,
    encode_request,
)
from defl.node.report.status import encode_status
from defl.node.report.status_client import running_status
from defl.node.report.telemetry import (
    CONNECTIONS_MAX,
    PATHS,
    REQUEST_BYTES_MAX,
    Server,
    write_private,
)
from support.in_process_node import InProcessNode, until
from support.in_process_node import Member as ScriptedMember
from support.statuses import status

TIME_LIMIT_S = 20.0
TOKEN = "the right one"  # noqa: S105
METRICS = b"defl_round 1"
REPORT = MembershipReport(
    membership=Membership(
        rounds=5, members=tuple(Member(f"member {i}", bytes([i]) * 32) for i in range(4))
    ),
    me=NodeId(0),
    round=Round(1),
    changes=(),
    ready=(),
    unsent=False,
    evidence=(),
)
APPROVAL = ApproveRequest("ab" * 32)
UNWANTED = ApproveRequest("cd" * 32)


# --- Which callers are answered ----------------------------------------------------------------


LONG = 50_000_000  # more than the kernel buffers for a client that does not read


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def last_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """All bytes until the server disconnects, which it must do."""
    data = bytearray()
    async with asyncio.timeout(TIME_LIMIT_S):
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(2**20):
                data += part
    await closed(writer)
    return bytes(data)


class Answering:
    def __init__(self, server: Server, port: int, requests: list[Request]) -> None:
        self.server = server
        self.port = port
        self.requests = requests

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, path: str, *headers: str, method: str = "GET", body: bytes = b"") -> bytes:
        """The first line and the body; empty if the server disconnects without an answer."""
        reader, writer = await self.connect()
        asked = "\r\n".join((f"{method} {path} HTTP/1.1", *headers, "", ""))
        writer.write(asked.encode() + body)
        async with asyncio.timeout(TIME_LIMIT_S):
            answer = await reader.read()
        await closed(writer)
        head, _, content = answer.partition(b"\r\n\r\n")
        return head.partition(b"\r\n")[0].removeprefix(b"HTTP/1.0 ") + b" " + content

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIME_LIMIT_S):
            while not condition():
                await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def answering(metrics: bytes = METRICS) -> AsyncIterator[Answering]:
    requests: list[Request] = []

    def on_request(request: Request) -> None:
        if request == UNWANTED:
            raise UserError("no such change is pending")
        requests.append(request)

    server = Server(
        lambda: status(round=1),
        lambda: metrics,
        TOKEN,
        membership=lambda: REPORT,
        on_request=on_request,
    )
    try:
        yield Answering(server, await server.start(0), requests)
    finally:
        await server.close()


def run(scenario: Callable[[Answering], Awaitable[None]], metrics: bytes = METRICS) -> None:
    async def whole() -> None:
        async with answering(metrics) as here:
            await scenario(here)

    asyncio.run(whole())


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8400", "localhost", "LOCALHOST:1", "[::1]", "[::1]:8400"]
)
def test_a_request_for_a_loopback_name_is_answered(host: str) -> None:
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
@pytest.mark.parametrize("path", [*PATHS, "/unknown"])
def test_dns_rebinding_to_loopback_reveals_nothing(path: str, headers: list[str]) -> None:
    async def scenario(here: Answering) -> None:
        answer = await here.ask(path, *headers, f"Authorization: Bearer {TOKEN}")
        assert answer.startswith(b"421 ")
        assert b"round" not in answer

    run(scenario)


@pytest.mark.parametrize(
    "headers", [[], ["Authorization: Bearer another"], [f"Authorization: {TOKEN}"]], ids=str
)
def test_only_callers_with_the_token_get_the_status(headers: list[str]) -> None:
    async def scenario(here: Answering) -> None:
        refused = await here.ask("/status", "Host: localhost", *headers)
        assert refused.startswith(b"401 ")
        assert b"round" not in refused
        answer = await here.ask("/status", "Host: localhost", f"authorization: Bearer {TOKEN}")
        assert answer == b"200 OK " + encode_status(status(round=1))

    run(scenario)


def test_only_get_is_answered() -> None:
    async def scenario(here: Answering) -> None:
        answer = await here.ask("/metrics", "Host: localhost", method="POST")
        assert answer.startswith(b"405 ")

    run(scenario)


# --- The operator's requests -------------------------------------------------------------------

LOCAL = ("Host: localhost", f"Authorization: Bearer {TOKEN}")


def posted(body: bytes, *headers: str) -> Callable[[Answering], Awaitable[bytes]]:
    async def ask(here: Answering) -> bytes:
        length = f"Content-Length: {len(body)}"
        return await here.ask("/membership", *headers, length, method="POST", body=body)

    return ask


def test_the_operator_reads_the_membership_and_hands_in_requests() -> None:
    async def scenario(here: Answering) -> None:
        answer = await here.ask("/membership", *LOCAL)
        assert answer == b"200 OK " + encode_membership(REPORT)
        accepted = await posted(encode_request(APPROVAL), *LOCAL)(here)
        assert accepted.startswith(b"202 ")
        assert here.requests == [APPROVAL]

    run(scenario)


def test_a_port_that_is_taken_is_the_operators_to_mend() -> None:
    async def scenario(first: Answering) -> None:
        second = Server(
            lambda: status(round=1), lambda: METRICS, TOKEN, lambda: REPORT, lambda _: None
        )
        with pytest.raises(UserError, match=r": Address already in use; .*telemetry_port"):
            await second.start(first.port)

    run(scenario)


def test_a_refused_request_is_answered_with_the_reason() -> None:
    async def scenario(here: Answering) -> None:
        refused = await posted(encode_request(UNWANTED), *LOCAL)(here)
        assert refused == b'409 Conflict {"error": "no such change is pending"}'

    run(scenario)


@pytest.mark.parametrize(
    "headers",
    [
        ("Host: localhost",),
        ("Host: localhost", "Authorization: Bearer another"),
        ("Host: attacker.example", f"Authorization: Bearer {TOKEN}"),
        (f"Authorization: Bearer {TOKEN}",),
    ],
    ids=str,
)
def test_a_request_needs_the_token_and_a_loopback_name(headers: tuple[str, ...]) -> None:
    async def scenario(here: Answering) -> None:
        refused = await posted(encode_request(APPROVAL), *headers)(here)
        assert refused[:4] in (b"401 ", b"421 ")
        assert (await here.ask("/membership", *headers))[:4] in (b"401 ", b"421 ")
        assert here.requests == []

    run(scenario)


@pytest.mark.parametrize(
    "length", ["", "Content-Length: -1", "Content-Length: " + "9" * 100, "Content-Length: 1e3",
               f"Content-Length: {REQUEST_BODY_BYTES_MAX + 1}"],
)  # fmt: skip
def test_a_request_without_a_bounded_length_is_not_read(length: str) -> None:
    async def scenario(here: Answering) -> None:
        headers = (*LOCAL, length) if length else LOCAL
        refused = await here.ask("/membership", *headers, method="POST")
        assert refused.startswith(b"413 ")
        assert here.requests == []

    run(scenario)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[" * 10_000, b"\xff", b'{"type":"approve","digest":"ab"}'], ids=repr
)
def test_a_body_that_is_no_request_is_refused(body: bytes) -> None:
    async def scenario(here: Answering) -> None:
        refused = await posted(body, *LOCAL)(here)
        assert refused.startswith(b"409 Conflict")
        assert b"not a request of this release" in refused
        assert here.requests == []

    run(scenario)


def test_a_caller_that_never_sends_its_body_is_disconnected_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(telemetry, "REQUEST_WAIT_S", 0.05)

    async def scenario(here: Answering) -> None:
        answer = await here.ask("/membership", *LOCAL, "Content-Length: 9", method="POST")
        assert answer.strip() == b""

    run(scenario)


def test_the_token_file_is_private_even_if_it_replaces_a_public_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("older", encoding="ascii")
    path.chmod(0o644)

    write_private(path, TOKEN)

    assert path.read_text(encoding="ascii") == TOKEN
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


# --- Bounds on callers -------------------------------------------------------------------------


def test_silent_callers_hold_a_bounded_number_of_connections_and_a_monitor_is_answered() -> None:
    async def scenario(here: Answering) -> None:
        crowd = []
        for _ in range(10 * CONNECTIONS_MAX):
            crowd.append(await here.connect())
            assert here.server.connections <= CONNECTIONS_MAX
        assert await here.ask("/healthz", "Host: localhost") == b'200 OK {"healthy": true}'
        assert here.server.connections <= CONNECTIONS_MAX
        for reader, writer in crowd[: 9 * CONNECTIONS_MAX]:
            assert (
                await last_bytes(reader, writer) == b""
            )  # disconnected, long before the time limit
        for _, writer in crowd[9 * CONNECTIONS_MAX :]:
            await closed(writer)
        await here.until(lambda: here.server.connections == 0)

    run(scenario)


def test_a_connection_that_makes_room_leaves_no_trace_in_the_log() -> None:
    """Any local user can cause it as often as he likes."""

    async def scenario(here: Answering) -> None:
        reported: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: reported.append(told))
        crowd = [await here.connect() for _ in range(3 * CONNECTIONS_MAX)]
        for reader, writer in crowd[:CONNECTIONS_MAX]:
            assert await last_bytes(reader, writer) == b""
        await here.server.close()
        for reader, writer in crowd[CONNECTIONS_MAX:]:
            assert await last_bytes(reader, writer) == b""
        assert here.server.connections == 0
        assert reported == []

    run(scenario)


def test_the_operators_request_keeps_its_place_among_idle_connections() -> None:
    async def scenario(here: Answering) -> None:
        body = encode_request(APPROVAL)
        reader, writer = await here.connect()
        head = ("POST /membership HTTP/1.1", *LOCAL, f"Content-Length: {len(body)}", "", "")
        writer.write("\r\n".join(head).encode() + body[:1])
        await here.until(lambda: here.server.operators == 1)
        crowd = [await here.connect() for _ in range(3 * CONNECTIONS_MAX)]
        writer.write(body[1:])

        assert (await last_bytes(reader, writer)).startswith(b"HTTP/1.0 202 ")
        assert here.requests == [APPROVAL]
        for _, other in crowd:
            await closed(other)

    run(scenario)


def test_operators_that_hold_all_places_are_not_disconnected_for_another_caller() -> None:
    async def scenario(here: Answering) -> None:
        head = ("POST /membership HTTP/1.1", *LOCAL, "Content-Length: 9", "", "")
        operators = [await here.connect() for _ in range(CONNECTIONS_MAX)]
        for _, writer in operators:
            writer.write("\r\n".join(head).encode())
        await here.until(lambda: here.server.operators == CONNECTIONS_MAX)

        assert await last_bytes(*await here.connect()) == b""
        assert here.server.connections == CONNECTIONS_MAX
        for _, writer in operators:
            await closed(writer)

    run(scenario)


def test_a_caller_that_never_reads_its_answer_is_disconnected_in_time(
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

    run(scenario, metrics=b"x" * LONG)


def test_an_endless_request_is_dropped_at_the_limit() -> None:
    async def scenario(here: Answering) -> None:
        reader, writer = await here.connect()
        writer.write(b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * REQUEST_BYTES_MAX)
        assert await last_bytes(reader, writer) == b""

    run(scenario)


# --- A node ------------------------------------------------------------------------------------


def test_a_flapping_peer_causes_a_bounded_number_of_log_lines(tmp_path: Path) -> None:
    folders = Nodes(tmp_path / "federation", 4, 1).local.nodes

    async def scenario() -> None:
        here = InProcessNode(folders[2])
        async with here.running():
            for _ in range(3 * PEER_LINES_BURST):
                async with ScriptedMember(folders[1]).connected(here.node.me):
                    pass
                await until(lambda: not here.node.transport.connected(NodeId(1)))
        assert len(here.logged("peer disconnected")) == PEER_LINES_BURST

    asyncio.run(scenario())


def test_a_running_node_gives_its_status_to_clients_that_can_read_its_token(tmp_path: Path) -> None:
    folder = Nodes(tmp_path / "federation", 4, 1).local.nodes[2]

    async def scenario() -> None:
        async with InProcessNode(folder).running():
            token = folder / TOKEN_FILE
            assert stat.S_IMODE(token.stat().st_mode) == 0o600
            current = await asyncio.to_thread(running_status, folder)
            assert current is not None
            assert current.member == 2
            token.write_text("another", encoding="ascii")
            assert await asyncio.to_thread(running_status, folder) is None
        assert not token.exists()

    asyncio.run(scenario())
