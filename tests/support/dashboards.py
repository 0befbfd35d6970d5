"""Requests to a dashboard that really serves, over sample data."""

import io
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPMessage

from defl.dashboard.source import Download, Source
from defl.dashboard.view import FactsView, Overview, RoundsView, RoundView
from support.sample_view import Sample
from support.served_dashboard import TOKEN, ServedDashboard

CONTENT = b"0123456789" * 100_000
WAIT_S = 30.0


class SampleSource:
    """Knows one file. `failure` is raised instead of the overview; facts come once they may."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.asked_for_facts = threading.Event()
        self.facts_may_come = threading.Event()
        self.facts_may_come.set()
        self.sample = Sample()
        self.failure = failure
        self.calls: Counter[str] = Counter()
        self.opened: list[io.BytesIO] = []

    def overview(self) -> Overview:
        self.calls["overview"] += 1
        if self.failure is not None:
            raise self.failure
        return self.sample.overview()

    def rounds(self, since: str) -> RoundsView:
        self.calls[f"rounds since {since}"] += 1
        return self.sample.rounds_view()

    def round(self, number: int, node: str | None) -> RoundView | None:
        self.calls[f"round {number} at {node}"] += 1
        return self.sample.round_view(number) if 1 <= number <= self.sample.rounds else None

    def facts(self, name: str | None) -> FactsView | None:
        self.asked_for_facts.set()
        self.facts_may_come.wait()
        return self.sample.facts() if name in (None, "alice") else None

    def file(self, node: str, name: str) -> Download | None:
        self.calls[f"file {name} of {node}"] += 1
        if (node, name) != ("alice/<b>", "round-3.safetensors"):
            return None
        self.opened.append(io.BytesIO(CONTENT))
        return Download(name, self.opened[-1], len(CONTENT))


@dataclass(frozen=True)
class Reply:
    status: int
    headers: HTTPMessage
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass(frozen=True)
class RunningDashboard:
    port: int

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def cookie(self) -> str:
        return f"defl-dashboard-{self.port}={TOKEN}"

    def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        host: str | None = None,
        cookie: str | None = "right",
        **headers: str,
    ) -> Reply:
        """`cookie`: "right" is the one that the token earns; None sends none."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            connection.putheader("Host", self.host if host is None else host)
            if cookie is not None:
                connection.putheader("Cookie", self.cookie if cookie == "right" else cookie)
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            answer = connection.getresponse()
            return Reply(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def send(self, data: bytes) -> bytes:
        """Raw bytes; returns all that comes back until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S) as line:
            line.sendall(data)
            line.shutdown(socket.SHUT_WR)
            pieces = []
            while piece := line.recv(65536):
                pieces.append(piece)
        return b"".join(pieces)


@contextmanager
def running_dashboard(source: Source) -> Iterator[RunningDashboard]:
    served = ServedDashboard(source)
    served.start()
    try:
        yield RunningDashboard(served.port)
    finally:
        served.stop()
