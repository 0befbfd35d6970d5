"""What a person or a monitor can see of a running node: logs, metrics, health, status.

One small HTTP server on a loopback port answers GET /metrics (Prometheus text), /healthz and
/status (JSON, to whoever can read the node's token). Nothing here decides anything.
"""

import asyncio
import json
import logging
import os
import sys
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from hmac import compare_digest
from pathlib import Path
from typing import Any, TextIO

# The head of a request; a browser's has about 1,000 bytes.
REQUEST_BYTES_MAX = 4096
# From the accepted connection to the last byte of the answer.
REQUEST_WAIT_S = 5.0
# A monitor and a person or two ask at a time. Anybody on this machine can connect, and each
# connection takes a descriptor that the node's own files and peers need.
CONNECTIONS_MAX = 16
# A page in a browser can make its own name point to 127.0.0.1 and then read the answers (DNS
# rebinding); but it cannot make the browser send another name than its own.
LOOPBACK_NAMES = frozenset({b"127.0.0.1", b"localhost", b"[::1]"})
# Commit latencies that the percentiles are taken from.
LATENCIES_MAX = 1024


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        own = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        return json.dumps({**own, **fields, **own}, default=str)


class HumanFormatter(logging.Formatter):
    """Time, event, and the fields as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        shown = " ".join(f"{name}={value}" for name, value in fields.items())
        mark = "" if record.levelno < logging.WARNING else f"{record.levelname}: "
        return f"{at} {mark}{record.getMessage()} {shown}".rstrip()


class Log:
    """Structured logging: an event in words, and fields."""

    def __init__(
        self, name: str, *, as_json: bool, level: str = "info", stream: TextIO = sys.stderr
    ) -> None:
        self._logger = logging.getLogger(f"defl.{name}")
        self._logger.handlers.clear()
        handler = logging.StreamHandler(stream)
        handler.setFormatter(JsonFormatter() if as_json else HumanFormatter())
        self._logger.addHandler(handler)
        self._logger.setLevel(level.upper())
        self._logger.propagate = False

    def info(self, event: str, /, **fields: object) -> None:
        self._logger.info(event, extra={"fields": fields})

    def warning(self, event: str, /, **fields: object) -> None:
        self._logger.warning(event, extra={"fields": fields})


class LineLimit:
    """Lets a few lines about each thing pass, then one in a while, with the count of the others.

    What others cause must not fill the disk with lines that all say the same.
    """

    def __init__(self, burst: int, every_s: float) -> None:
        self._burst = burst
        self._every_s = every_s
        self._state: dict[Hashable, tuple[float, float, int]] = {}  # lines left, when, withheld

    def withheld(self, about: Hashable, now: float) -> int | None:
        """How many lines were withheld before this one; None: this one is withheld too."""
        left, at, withheld = self._state.get(about, (float(self._burst), now, 0))
        left = min(float(self._burst), left + (now - at) / self._every_s)
        passes = left >= 1
        self._state[about] = (left - 1, now, 0) if passes else (left, now, withheld + 1)
        return withheld if passes else None


class Measures:
    """Counters that the node keeps and the server shows."""

    def __init__(self) -> None:
        self.commit_s: deque[float] = deque(maxlen=LATENCIES_MAX)
        self.peer_faults: Counter[int] = Counter()
        self.submitted_at: dict[tuple[str, int], float] = {}

    def commit_percentiles(self) -> dict[str, float]:
        ordered = sorted(self.commit_s)
        if not ordered:
            return {}
        return {
            "p50": ordered[len(ordered) // 2] * 1000,
            "p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1000,
        }


def prometheus(samples: dict[str, dict[str, float]]) -> str:
    """Name -> label text ('' for none) -> value, as Prometheus reads it."""
    lines = []
    for name, values in samples.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines.append(f"# TYPE defl_{name} {kind}")
        for labels, value in values.items():
            shown = f"{{{labels}}}" if labels else ""
            lines.append(f"defl_{name}{shown} {value:g}")
    return "\n".join(lines) + "\n"


def label(name: str, value: str) -> str:
    """A label whose value may be any text."""
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{name}="{escaped}"'


def write_private(path: Path, text: str) -> None:
    """A file that its owner alone can read, whatever was there before."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)


class Server:
    """Answers three paths on loopback, /status only with the token; other paths get a 404."""

    def __init__(
        self, status: Callable[[], dict[str, Any]], metrics: Callable[[], str], token: str
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
        """Listens and tells on which port (0: any that is free)."""
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
            # Who asks is answered at once; who has been here longest has likely not asked.
            oldest, _ = self._callers.popitem(last=False)
            oldest.cancel()
        self._callers[caller] = None
        try:
            async with asyncio.timeout(REQUEST_WAIT_S):
                writer.write(self._response(await reader.readuntil(b"\r\n\r\n")))
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            pass  # whoever asked is gone or never asked; nobody waits for the answer
        finally:
            self._callers.pop(caller, None)
            writer.transport.abort()  # or an answer that nobody reads would stay in memory

    def _response(self, head: bytes) -> bytes:
        line, *headers = head.rstrip().split(b"\r\n")
        words = line.split()
        path = words[1].decode("ascii", "replace") if len(words) > 1 else ""
        kind = "application/json"
        if not _is_for_loopback(headers):
            code, body = "421 Misdirected Request", _error("ask for 127.0.0.1 or localhost")
        elif words[:1] != [b"GET"]:
            code, body = "405 Method Not Allowed", _error("only GET is answered")
        elif path == "/metrics":
            code, body, kind = "200 OK", self._metrics(), "text/plain; version=0.0.4"
        elif path == "/healthz":
            status = self._status()
            hindered = status["observing"], status["disk_full"], status["no_descriptors"]
            healthy = hindered == (None, False, False)
            code = "200 OK" if healthy else "503 Service Unavailable"
            body = json.dumps({"healthy": healthy})
        elif path != "/status":
            code, body = "404 Not Found", json.dumps({"paths": ["/metrics", "/healthz", "/status"]})
        elif not any(
            compare_digest(given, self._authorization)
            for given in _values(headers, b"authorization")
        ):
            code, body = "401 Unauthorized", _error("send the node's token as a bearer token")
        else:
            code, body = "200 OK", json.dumps(self._status())
        data = body.encode()
        front = (
            f"HTTP/1.0 {code}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        )
        return front.encode() + data


def _error(text: str) -> str:
    return json.dumps({"error": text})


def _values(headers: list[bytes], name: bytes) -> list[bytes]:
    pairs = (header.partition(b":") for header in headers)
    return [value.strip() for key, _, value in pairs if key.strip().lower() == name]


def _is_for_loopback(headers: list[bytes]) -> bool:
    """Every HTTP client of this century names the host that it asks."""
    hosts = _values(headers, b"host")
    return len(hosts) == 1 and _without_port(hosts[0].lower()) in LOOPBACK_NAMES


def _without_port(host: bytes) -> bytes:
    name, colon, port = host.rpartition(b":")
    return name if colon and port.isdigit() else host
