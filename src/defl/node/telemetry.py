"""What a person or a monitor can see of a running node: logs, metrics, health, status.

One small HTTP server on a loopback port answers GET /metrics (Prometheus text), /healthz and
/status (JSON). Nothing here decides anything.
"""

import asyncio
import json
import logging
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, TextIO

# A request of ours is one short line; anything longer is not for us.
REQUEST_BYTES_MAX = 4096
REQUEST_WAIT_S = 5.0
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


class Server:
    """Answers three paths on loopback; whatever else is asked gets a 404."""

    def __init__(self, status: Callable[[], dict[str, Any]], metrics: Callable[[], str]) -> None:
        self._status = status
        self._metrics = metrics
        self._server: asyncio.Server | None = None

    async def start(self, port: int) -> int:
        """Listens and tells on which port (0: any that is free)."""
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_WAIT_S):
                line = await reader.readline()
                writer.write(self._response(line[:REQUEST_BYTES_MAX]))
                await writer.drain()
        except (TimeoutError, ValueError, ConnectionError):
            pass  # whoever asked is gone or never asked; nobody waits for the answer
        finally:
            writer.close()

    def _response(self, line: bytes) -> bytes:
        words = line.split()
        path = words[1].decode("ascii", "replace") if len(words) > 1 else ""
        code, kind = "200 OK", "application/json"
        if path == "/metrics":
            body, kind = self._metrics(), "text/plain; version=0.0.4"
        elif path == "/healthz":
            status = self._status()
            healthy = status["observing"] is None and not status["disk_full"]
            code = "200 OK" if healthy else "503 Service Unavailable"
            body = json.dumps({"healthy": healthy})
        elif path == "/status":
            body = json.dumps(self._status())
        else:
            code, body = "404 Not Found", json.dumps({"paths": ["/metrics", "/healthz", "/status"]})
        data = body.encode()
        head = (
            f"HTTP/1.0 {code}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + data
