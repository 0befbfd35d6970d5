"""The dashboard's addresses over real connections: answers, headers, bounds."""

import logging
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import msgspec
import pytest

from defl.dashboard.guard import HEAD_BYTES_MAX, SECURITY_HEADERS
from defl.dashboard.serving import CONNECTIONS_MAX
from defl.dashboard.view import FactsView, Overview, RoundsView, RoundView
from defl.errors import UserError
from support.dashboards import (
    CONTENT,
    WAIT_S,
    Reply,
    RunningDashboard,
    SampleSource,
    running_dashboard,
)
from support.served_dashboard import TOKEN

FILE = "/files/alice%2F%3Cb%3E/round-3.safetensors"


@pytest.fixture(scope="module")
def dashboard() -> Iterator[RunningDashboard]:
    with running_dashboard(SampleSource()) as running:
        yield running


def assert_secured(reply: Reply) -> None:
    for name, value in SECURITY_HEADERS.items():
        assert reply.headers.get_all(name) == [value]
    assert reply.headers["Cache-Control"] in ("no-store", "no-cache")
    assert "Server" not in reply.headers


# --- Answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/rounds", "/rounds/7", "/members", "/node", "/nodes", "/log"]
)
def test_every_page_of_the_dashboard_is_one_document(
    dashboard: RunningDashboard, path: str
) -> None:
    reply = dashboard.ask(path)

    assert reply.status == 200
    assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
    assert reply.text.startswith("<!doctype html>")
    assert_secured(reply)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/api/overview", Overview),
        ("/api/rounds?since=sample.3", RoundsView),
        ("/api/rounds/3?node=alice", RoundView),
        ("/api/node?name=alice", FactsView),
    ],
)
def test_data_is_json_of_its_type(
    dashboard: RunningDashboard, path: str, kind: type[msgspec.Struct]
) -> None:
    reply = dashboard.ask(path)

    assert reply.headers["Content-Type"] == "application/json"
    assert isinstance(msgspec.json.decode(reply.body, type=kind), kind)
    assert_secured(reply)


def test_static_files_are_sent_once_while_they_are_the_same(dashboard: RunningDashboard) -> None:
    first = dashboard.ask("/static/dom.js")
    again = dashboard.ask("/static/dom.js", If_None_Match=first.headers["ETag"])

    assert first.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert (first.status, again.status, again.body) == (200, 304, b"")
    assert_secured(first)
    assert_secured(again)


def test_a_file_is_sent_as_an_attachment_and_closed() -> None:
    source = SampleSource()
    with running_dashboard(source) as own:
        reply = own.ask(FILE)
        head = own.ask(FILE, method="HEAD")

    assert [file.closed for file in source.opened] == [True, True]
    assert reply.body == CONTENT
    assert reply.headers["Content-Disposition"] == 'attachment; filename="round-3.safetensors"'
    assert reply.headers["Content-Type"] == "application/octet-stream"
    assert (head.status, head.headers["Content-Length"], head.body) == (200, "1000000", b"")
    assert_secured(reply)
    assert_secured(head)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nowhere", 404),
        ("/rounds/", 404),  # no redirect
        ("/rounds/x", 404),
        ("/rounds/-1", 404),
        ("/rounds/%EF%BC%91", 404),  # a digit, but none of ours
        (f"/rounds/{10**18}", 404),
        ("/api/rounds/999", 404),
        ("/api/rounds/1e3", 404),
        (f"/api/rounds/3?node={'a' * 65}", 400),
        (f"/api/rounds?since={'a' * 201}", 400),
        ("/api/node?name=nobody", 404),
        ("/static/", 404),
        ("/static/../view.py", 404),
        ("/static/..%2fview.py", 404),
        ("/static//etc/passwd", 404),
        ("/static/%2fetc%2fpasswd", 404),
        ("/files/alice/node.key", 404),
        ("/files/../round-3.safetensors", 404),
        ("/files/alice/..%2f..%2fnode.key", 404),
        ("/files/alice/round-3.safetensors%00", 404),
        (f"/files/{'a' * 65}/round-3.safetensors", 404),
        ("http://127.0.0.1/", 404),
    ],
)
def test_whatever_is_not_there_is_refused_with_all_headers(
    dashboard: RunningDashboard, path: str, status: int
) -> None:
    reply = dashboard.ask(path)

    assert reply.status == status, reply.text
    assert_secured(reply)


# --- Guarded -------------------------------------------------------------------------------------


def test_the_printed_address_earns_a_strict_cookie_that_opens_the_page(
    dashboard: RunningDashboard,
) -> None:
    entered = dashboard.ask(f"/?token={TOKEN}", cookie=None)
    cookie = entered.headers["Set-Cookie"]

    assert (entered.status, entered.headers["Location"]) == (303, "/")
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert attributes == {"httponly", "samesite=strict", "path=/"}
    assert dashboard.ask("/", cookie=cookie.partition(";")[0]).status == 200
    assert_secured(entered)


def test_a_link_from_elsewhere_gets_a_page_that_leads_on_without_the_token(
    dashboard: RunningDashboard,
) -> None:
    entered = dashboard.ask(f"/?a=%22%3E&token={TOKEN}", cookie=None, Sec_Fetch_Site="cross-site")

    assert entered.status == 200
    assert 'content="0; url=/?a=%22%3E"' in entered.text
    assert TOKEN not in entered.text
    assert entered.headers["Set-Cookie"]


def test_refusals_say_why_and_have_all_headers(dashboard: RunningDashboard) -> None:
    rebound = dashboard.ask("/", host=f"evil.example:{dashboard.port}")
    posted = dashboard.ask("/api/overview", method="POST")
    stranger = dashboard.ask("/api/overview", cookie=None)
    wrong = dashboard.ask("/?token=wrong", cookie=None)
    foreign = dashboard.ask("/api/overview", Sec_Fetch_Site="cross-site")

    replies = (rebound, posted, stranger, wrong, foreign)
    assert [reply.status for reply in replies] == [403, 405, 401, 401, 403]
    assert posted.headers["Allow"] == "GET, HEAD"
    assert "open the address" in stranger.text.lower()
    for reply in replies:
        assert reply.headers["Set-Cookie"] is None
        assert_secured(reply)


def test_the_token_is_never_logged(
    dashboard: RunningDashboard, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    dashboard.ask(f"/?token={TOKEN}", cookie=None)
    dashboard.ask(f"/nowhere?token={TOKEN}x", cookie=None)

    assert TOKEN not in caplog.text


# --- Bounds and failures -------------------------------------------------------------------------


def test_a_hundred_viewers_ask_the_node_as_often_as_one() -> None:
    source = SampleSource()
    with running_dashboard(source) as own, ThreadPoolExecutor(10) as viewers:
        replies = list(viewers.map(lambda _: own.ask("/api/overview").status, range(100)))

    assert replies == [200] * 100
    assert source.calls["overview"] < 30  # 2 a second, at most


def test_a_folder_that_cannot_be_read_is_a_503_and_a_bug_a_500_with_all_headers() -> None:
    source = SampleSource(UserError("alice: \x1b[2J no such folder"))
    with running_dashboard(source) as own:
        gone = own.ask("/api/overview")
    with running_dashboard(SampleSource(ZeroDivisionError("secret"))) as own:
        logging.getLogger("uvicorn.error").disabled = True
        try:
            bug = own.ask("/api/overview")
        finally:
            logging.getLogger("uvicorn.error").disabled = False

    assert (gone.status, gone.text) == (503, "alice: \\x1b[2J no such folder\n")
    assert (bug.status, bug.text) == (500, "Internal Server Error")
    assert_secured(gone)
    assert_secured(bug)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # no Host
        b"\x16\x03\x01\x02\x00\x01\x00",  # TLS
    ],
    ids=["two hosts", "no host", "tls"],
)
def test_what_is_no_proper_request_is_refused_with_all_headers(
    dashboard: RunningDashboard, request_: bytes
) -> None:
    head = dashboard.send(request_).partition(b"\r\n\r\n")[0].decode().lower()

    assert head.startswith("http/1.1 400")
    for name, value in SECURITY_HEADERS.items():
        assert f"{name}: {value}".lower() in head


def test_a_long_address_and_long_headers_are_refused(dashboard: RunningDashboard) -> None:
    long = b"a" * HEAD_BYTES_MAX
    address = dashboard.send(b"GET /" + long + b" HTTP/1.1\r\nHost: a\r\n\r\n")
    header = dashboard.send(b"GET / HTTP/1.1\r\nHost: a\r\nX: " + long + b"\r\n\r\n")

    # 431 if all came at once, 400 as soon as a part is too long.
    assert {address[9:12], header[9:12]} <= {b"431", b"400"}


def test_no_web_socket_is_offered(dashboard: RunningDashboard) -> None:
    reply = dashboard.ask(
        "/nowhere", Connection="Upgrade", Upgrade="websocket", Sec_WebSocket_Version="13",
        Sec_WebSocket_Key="AAAAAAAAAAAAAAAAAAAAAA==",
    )  # fmt: skip

    assert reply.status == 404


def test_idle_connections_of_other_users_do_not_shut_the_operator_out(
    dashboard: RunningDashboard,
) -> None:
    where = ("127.0.0.1", dashboard.port)
    with ExitStack() as stack:
        kept = stack.enter_context(socket.create_connection(where))
        head = f"GET /api/overview HTTP/1.1\r\nHost: {dashboard.host}\r\n"
        request = f"{head}Cookie: {dashboard.cookie}\r\n\r\n".encode()
        kept.sendall(request)
        assert kept.recv(12) == b"HTTP/1.1 200"
        for _ in range(CONNECTIONS_MAX + 50):
            stack.enter_context(socket.create_connection(where))

        assert dashboard.ask("/").status == 200
        kept.setblocking(False)
        with suppress(BlockingIOError):
            while kept.recv(2**20):
                pass
        kept.settimeout(WAIT_S)
        kept.sendall(request)
        assert kept.recv(12) == b"HTTP/1.1 200", "its connection was kept"


def test_the_end_waits_neither_for_a_node_that_does_not_answer_nor_for_a_viewer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = SampleSource()
    source.facts_may_come.clear()
    caplog.set_level(logging.ERROR)
    with running_dashboard(source) as own:
        line = socket.create_connection(("127.0.0.1", own.port))
        head = f"GET /api/node HTTP/1.1\r\nHost: {own.host}\r\nCookie: {own.cookie}\r\n\r\n"
        line.sendall(head.encode())
        source.asked_for_facts.wait()

    with line:
        assert line.recv(1) == b""
    assert caplog.text == ""
    source.facts_may_come.set()
