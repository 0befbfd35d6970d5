"""The dashboard as a server: uvicorn with bounds on connections, requests and slow clients."""

import asyncio
import logging
import secrets
import signal
import socket
from asyncio import TimerHandle, Transport
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from defl.dashboard.guard import ADMITTED, DEFAULT_HEADERS, HEAD_BYTES_MAX, SECURITY_HEADERS

TOKEN_BYTES = 32
# A browser opens up to six. A process may usually have 1,024 files open. Any local user can
# connect, so at the bound the oldest idle connection makes room: never an operator's for a
# stranger's.
CONNECTIONS_MAX = 256
# From the connection, or the last answer, to the end of the next request's headers.
REQUEST_WAIT_S = 20.0
# A client that does not take the next 64 KiB in this time is cut off.
WRITE_WAIT_S = 60.0
KEEP_ALIVE_S = 10  # the page asks every second
BAD_REQUEST = b"This is not an HTTP request that the dashboard understands.\n"


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


class BoundedProtocol(H11Protocol):
    """One connection. Uvicorn itself waits for ever for a request and for a slow reader."""

    _deadline: TimerHandle | None = None
    _idle_since = 0.0

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.access_log = False  # it would hold the token, whatever logging is configured

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        others = [other for other in self._open_connections if other is not self]
        if len(others) >= CONNECTIONS_MAX:
            oldest = min(others, key=lambda other: other.claim)
            if oldest.claim[:2] == (True, True):
                transport.abort()
                return
            oldest.transport.abort()
        self._idle_since = self.loop.time()
        self._end_unless_within(REQUEST_WAIT_S)

    @property
    def claim(self) -> tuple[bool, bool, float]:
        """Who keeps its place when places are few: the highest."""
        return self._is_admitted, self._is_answering, self._idle_since

    @property
    def _open_connections(self) -> Iterator["BoundedProtocol"]:
        for connection in self.connections:
            if isinstance(connection, BoundedProtocol) and not connection.transport.is_closing():
                yield connection

    @property
    def _is_admitted(self) -> bool:
        """Whether the newest request had the token: before its end, or at its end."""
        return self.cycle is not None and bool(self.cycle.scope.get(ADMITTED))

    def handle_events(self) -> None:
        super().handle_events()
        if self._is_answering:
            self._go_on()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._idle_since = self.loop.time()
        if not self._is_answering:  # the next request may be there already
            unsent = self.transport.get_write_buffer_size()
            self._end_unless_within(WRITE_WAIT_S if unsent else REQUEST_WAIT_S)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._end_unless_within(WRITE_WAIT_S)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._is_answering:
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._go_on()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's
        """As uvicorn's, with the headers that every answer has."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        headers = {
            **SECURITY_HEADERS,
            **DEFAULT_HEADERS,
            "Content-Type": "text/plain; charset=utf-8",
            "Content-Length": str(len(BAD_REQUEST)),
            "Connection": "close",
        }
        answer = h11.Response(status_code=400, headers=list(headers.items()), reason="Bad Request")
        for event in (answer, h11.Data(data=BAD_REQUEST), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _end_unless_within(self, seconds: float) -> None:
        self._go_on()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _go_on(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class DashboardServer(uvicorn.Server):
    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                _ending_quietly(app),
                http=BoundedProtocol,
                ws="none",
                lifespan="off",
                loop="asyncio",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Not here: uvicorn would raise them again after the end."""
        yield

    def stop(self) -> None:
        self.should_exit = self.force_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """At once: answers in progress are cut off. Uvicorn would wait for them."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # the connections learn of it
        await super().shutdown(sockets)


def _ending_quietly(app: ASGIApp) -> ASGIApp:
    """Answers are cancelled at the end of the program; uvicorn would log a traceback of each."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(asyncio.CancelledError):
            await app(scope, receive, send)

    return run


def serve(app: ASGIApp, listening: socket.socket, on_start: Callable[[], None]) -> None:
    """Until SIGINT or SIGTERM. `on_start`: who connects from then on gets an answer."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    asyncio.run(_serve(DashboardServer(app), listening, on_start))


async def _serve(
    server: DashboardServer, listening: socket.socket, on_start: Callable[[], None]
) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, server.stop)
    on_start()  # who reads the address may end it at once
    await server.serve(sockets=[listening])
