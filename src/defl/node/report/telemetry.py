"""A small HTTP server on a loopback port for monitors and for the operator's commands.

It answers GET /metrics (Prometheus text) and /healthz to any local user. Callers with the node's
token read /status and /membership (JSON), and ask for changes of the membership: POST /membership.
"""

import asyncio
import json
import os
from collections import OrderedDict
from collections.abc import Callable
from hmac import compare_digest
from pathlib import Path
from typing import Any

from defl.errors import UserError
from defl.node.report.membership import Reporter, encode_membership
from defl.node.report.requests import REQUEST_BODY_BYTES_MAX, OnRequest, decode_request
from defl.node.report.status import NodeStatus, encode_status

# The head of a request; a browser's has about 1,000 bytes.
REQUEST_BYTES_MAX = 4096
# From the accepted connection to the last byte of the answer.
REQUEST_WAIT_S = 5.0
# Enough for a monitor and a few people. Any local user can connect, and each connection takes a
# descriptor that the node's own files and peers need.
CONNECTIONS_MAX = 16
# A web page can make its own host name resolve to 127.0.0.1 and read the answers (DNS rebinding),
# but the browser still sends that name as Host.
LOOPBACK_NAMES = frozenset({b"127.0.0.1", b"localhost", b"[::1]"})
METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PATHS = ("/metrics", "/healthz", "/status", "/membership")


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whatever was there before."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)


class Server:
    """Answers four paths on loopback, two of them only with the token; others get a 404."""

    def __init__(
        self,
        status: Callable[[], NodeStatus],
        metrics: Callable[[], bytes],
        token: str,
        membership: Reporter,
        on_request: OnRequest,
    ) -> None:
        self._status = status
        self._metrics = metrics
        self._membership = membership
        self._on_request = on_request
        self._authorization = f"Bearer {token}".encode("ascii")
        self._server: asyncio.Server | None = None
        self._callers: OrderedDict[asyncio.Task[Any], asyncio.StreamWriter] = OrderedDict()
        self._operators: set[asyncio.Task[Any]] = set()  # of them: those that sent the token

    @property
    def connections(self) -> int:
        return len(self._callers)

    @property
    def operators(self) -> int:
        """Connections that have sent the token and wait for the rest of their answer."""
        return len(self._operators)

    async def start(self, port: int) -> int:
        """Listens on this port (0: any free one) and returns its number."""
        try:
            self._server = await asyncio.start_server(
                self._answer, "127.0.0.1", port, limit=REQUEST_BYTES_MAX
            )
        except OSError as error:
            raise UserError(
                f"cannot listen on 127.0.0.1:{port}: {os.strerror(error.errno or 0)}; is the port "
                "taken by another program or node? See `telemetry_port` in node.toml"
            ) from error
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            callers = dict(self._callers)
            for writer in callers.values():
                writer.transport.abort()
            await asyncio.gather(*callers, return_exceptions=True)
            await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = asyncio.current_task()
        if caller is None:
            raise RuntimeError("a connection is answered in a task of its own")
        if len(self._callers) >= CONNECTIONS_MAX and not self._make_room():
            writer.transport.abort()
            return
        self._callers[caller] = writer
        try:
            async with asyncio.timeout(REQUEST_WAIT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                if self._has_token(_headers(head)):
                    self._operators.add(caller)
                answer = self._refusal(head) or self._answer_get(head)
                if answer is None:
                    body = await reader.readexactly(_body_bytes(_headers(head)) or 0)
                    answer = self._answer_post(body)
                writer.write(answer)
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            pass  # the caller disconnected or never sent a request
        finally:
            self._callers.pop(caller, None)
            self._operators.discard(caller)
            writer.transport.abort()  # an unread answer must not stay in memory

    def _make_room(self) -> bool:
        """End the oldest connection that has not sent the token; False if there is none.

        A request is answered at once, so that one has most likely sent none. Its socket is closed:
        asyncio of Python 3.11 logs a traceback for each of these tasks that is cancelled.
        """
        for caller, writer in self._callers.items():
            if caller not in self._operators:
                del self._callers[caller]
                writer.transport.abort()
                return True
        return False

    def _refusal(self, head: bytes) -> bytes | None:
        """Refused by its head alone; nothing more is read."""
        method, path = _request_line(head)
        headers = _headers(head)
        if not _is_for_loopback(headers):
            return _error("421 Misdirected Request", "ask for 127.0.0.1 or localhost")
        if path not in PATHS:
            return _response("404 Not Found", _json(paths=PATHS))
        if method != "GET" and (method, path) != ("POST", "/membership"):
            return _error("405 Method Not Allowed", "only GET is answered")
        if path in ("/status", "/membership") and not self._has_token(headers):
            return _error("401 Unauthorized", "send the node's token as a bearer token")
        if method == "POST" and _body_bytes(headers) is None:
            return _error(
                "413 Content Too Large", f"at most {REQUEST_BODY_BYTES_MAX} bytes, and their number"
            )
        return None

    def _answer_get(self, head: bytes) -> bytes | None:
        """None: it is a POST, whose body is still to be read."""
        match _request_line(head):
            case "GET", "/metrics":
                return _response("200 OK", self._metrics(), METRICS_CONTENT_TYPE)
            case "GET", "/healthz":
                healthy = self._status().healthy
                code = "200 OK" if healthy else "503 Service Unavailable"
                return _response(code, _json(healthy=healthy))
            case "GET", "/status":
                return _response("200 OK", encode_status(self._status()))
            case "GET", "/membership":
                return _response("200 OK", encode_membership(self._membership()))
        return None

    def _answer_post(self, body: bytes) -> bytes:
        try:
            self._on_request(decode_request(body))
        except UserError as error:
            return _error("409 Conflict", str(error))
        return _response("202 Accepted", _json(accepted=True))

    def _has_token(self, headers: list[bytes]) -> bool:
        given = _values(headers, b"authorization")
        return any(compare_digest(value, self._authorization) for value in given)


def _response(code: str, body: bytes, kind: str = "application/json") -> bytes:
    front = (
        f"HTTP/1.0 {code}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return front.encode() + body


def _error(code: str, text: str) -> bytes:
    return _response(code, _json(error=text))


def _request_line(head: bytes) -> tuple[str, str]:
    words = head.partition(b"\r\n")[0].decode("ascii", "replace").split()
    return (words[0], words[1]) if len(words) > 1 else ("", "")


def _headers(head: bytes) -> list[bytes]:
    return head.rstrip().split(b"\r\n")[1:]


def _body_bytes(headers: list[bytes]) -> int | None:
    """The length that the caller states; None: it states none, or too much."""
    stated = _values(headers, b"content-length")
    if len(stated) != 1 or not stated[0].isdigit() or len(stated[0]) > 6:
        return None
    return size if (size := int(stated[0])) <= REQUEST_BODY_BYTES_MAX else None


def _json(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def _values(headers: list[bytes], name: bytes) -> list[bytes]:
    pairs = (header.partition(b":") for header in headers)
    return [value.strip() for key, _, value in pairs if key.strip().lower() == name]


def _is_for_loopback(headers: list[bytes]) -> bool:
    """HTTP/1.1 requires exactly one Host header."""
    hosts = _values(headers, b"host")
    return len(hosts) == 1 and _without_port(hosts[0].lower()) in LOOPBACK_NAMES


def _without_port(host: bytes) -> bytes:
    name, colon, port = host.rpartition(b":")
    return name if colon and port.isdigit() else host
