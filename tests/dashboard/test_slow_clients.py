"""Clients that send or read too slowly are cut off; time is virtual."""

import asyncio
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from uvicorn.server import ServerState

from defl.dashboard.guard import ADMITTED
from defl.dashboard.serving import (
    CONNECTIONS_MAX,
    KEEP_ALIVE_S,
    REQUEST_WAIT_S,
    WRITE_WAIT_S,
    BoundedProtocol,
    DashboardServer,
)
from support.virtual_links import VirtualLoop

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Line(asyncio.Transport):
    """What the protocol wrote; `unread`: the client does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.unread = 0
        self.aborted = False
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Server:
    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.state = ServerState()
        self.config = DashboardServer(PlainTextResponse("answer")).config

    def connect(self) -> tuple[BoundedProtocol, Line]:
        protocol, line = BoundedProtocol(self.config, self.state, {}, self.loop), Line()
        protocol.connection_made(line)
        return protocol, line

    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))


@pytest.fixture
def server() -> Any:
    server = Server()
    yield server
    for task in server.state.tasks:
        task.cancel()
    server.wait(0)
    server.loop.close()


def test_who_connects_and_says_nothing_is_cut_off(server: Server) -> None:
    _, line = server.connect()

    server.wait(REQUEST_WAIT_S - 1)
    assert not line.aborted
    server.wait(2)
    assert line.aborted


def test_who_sends_headers_byte_by_byte_is_cut_off(server: Server) -> None:
    protocol, line = server.connect()
    for byte in REQUEST[: int(REQUEST_WAIT_S) + 1]:
        protocol.data_received(bytes([byte]))
        server.wait(1)

    assert line.aborted
    assert line.written == b""


def test_a_page_that_asks_every_second_is_never_cut_off(server: Server) -> None:
    protocol, line = server.connect()
    for _ in range(100):
        protocol.data_received(REQUEST)
        server.wait(1)

    assert line.written.count(b"200 OK") == 100
    assert not line.is_closing()
    server.wait(KEEP_ALIVE_S + 1)
    assert line.closed


def test_who_does_not_read_the_answer_is_cut_off(server: Server) -> None:
    protocol, line = server.connect()
    protocol.data_received(REQUEST)
    protocol.pause_writing()
    server.wait(WRITE_WAIT_S - 1)
    assert not line.aborted
    server.wait(2)
    assert line.aborted


def test_who_reads_slowly_but_reads_is_served(server: Server) -> None:
    protocol, line = server.connect()
    protocol.data_received(REQUEST)
    for _ in range(5):
        protocol.pause_writing()
        line.unread = 100_000
        server.wait(WRITE_WAIT_S - 1)
        protocol.resume_writing()

    assert not line.aborted


def test_at_the_bound_the_oldest_idle_connection_makes_room(server: Server) -> None:
    lines = []
    for _ in range(CONNECTIONS_MAX + 3):
        lines.append(server.connect()[1])
        server.wait(0.01)

    assert [line.aborted for line in lines] == [True] * 3 + [False] * CONNECTIONS_MAX


def test_an_operators_connection_does_not_make_room_for_strangers(server: Server) -> None:
    protocol, operators = server.connect()
    protocol.data_received(REQUEST)
    server.wait(0)
    protocol.cycle.scope[ADMITTED] = True
    strangers = []
    for _ in range(2 * CONNECTIONS_MAX):
        strangers.append(server.connect()[1])
        server.wait(0.001)

    assert not operators.aborted
    assert sum(not line.aborted for line in strangers) == CONNECTIONS_MAX - 1


def test_requests_of_operators_that_are_being_answered_are_never_cut_short(server: Server) -> None:
    lines = []
    for _ in range(CONNECTIONS_MAX):
        protocol, line = server.connect()
        protocol.data_received(REQUEST)  # it is answered when the loop runs
        protocol.cycle.scope[ADMITTED] = True
        lines.append(line)
    _, newest = server.connect()

    assert newest.aborted
    assert not any(line.aborted for line in lines)
