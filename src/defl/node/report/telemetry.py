"""A small HTTP server on a loopback port for monitors and for the status client.

It answers GET /metrics (Prometheus text) and /healthz to any local user, and /status (JSON) to
callers with the node's token.
"""

import asyncio
import json
import os
from collections import OrderedDict
from collections.abc import Callable
from hmac import compare_digest
from pathlib import Path
from typing import Any

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


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whatever was there before."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)


class Server:
    """Answers three paths on loopback, /status only with the token; other paths get a 404."""

    def __init__(
        self, status: Callable[[], NodeStatus], metrics: Callable[[], bytes], token: str
    ) -> None:
        self._status = status
        self._metrics = metrics
        self._authorization = f"Bearer {token}".encode("ascii")
        self._server: asyncio.Server | None = None
        self._callers: OrderedDict[asyncio.Task[Any], None] = OrderedDict()

    @property
    def connections(self) -> int:
        return len(self._callers)

    async def start(self, port: int) -> int:
        """Listens on this port (0: any free one) and returns its number."""
        self._server = await asyncio.start_server(
            self._answer, "127.0.0.1", port, limit=REQUEST_BYTES_MAX
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for caller in self._callers:
                caller.cancel()
            await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = asyncio.current_task()
        if caller is None:
            raise RuntimeError("a connection is answered in a task of its own")
        if len(self._callers) >= CONNECTIONS_MAX:
            # A request is answered at once: the oldest connection has most likely sent none.
            oldest, _ = self._callers.popitem(last=False)
            oldest.cancel()
        self._callers[caller] = None
        try:
            async with asyncio.timeout(REQUEST_WAIT_S):
                writer.write(self._response(await reader.readuntil(b"\r\n\r\n")))
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            pass  # the caller disconnected or never sent a request
        finally:
            self._callers.pop(caller, None)
            writer.transport.abort()  # an unread answer must not stay in memory

    def _response(self, head: bytes) -> bytes:
        line, *headers = head.rstrip().split(b"\r\n")
        words = line.split()
        path = words[1].decode("ascii", "replace") if len(words) > 1 else ""
        kind = "application/json"
        if not _is_for_loopback(headers):
            code, body = "421 Misdirected Request", _json(error="ask for 127.0.0.1 or localhost")
        elif words[:1] != [b"GET"]:
            code, body = "405 Method Not Allowed", _json(error="only GET is answered")
        elif path == "/metrics":
            code, body, kind = "200 OK", self._metrics(), METRICS_CONTENT_TYPE
        elif path == "/healthz":
            healthy = self._status().healthy
            code = "200 OK" if healthy else "503 Service Unavailable"
            body = _json(healthy=healthy)
        elif path != "/status":
            code, body = "404 Not Found", _json(paths=["/metrics", "/healthz", "/status"])
        elif not any(
            compare_digest(given, self._authorization)
            for given in _values(headers, b"authorization")
        ):
            code, body = "401 Unauthorized", _json(error="send the node's token as a bearer token")
        else:
            code, body = "200 OK", encode_status(self._status())
        front = (
            f"HTTP/1.0 {code}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return front.encode() + body


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
