"""The dashboard's own server in a thread of this process, over any source of views."""

import socket
import threading

from defl.dashboard.app import make_app
from defl.dashboard.guard import Guard
from defl.dashboard.serving import DashboardServer
from defl.dashboard.source import Source

LOOPBACK = "127.0.0.1"
TOKEN = "t" * 32


class ServedDashboard:
    """Can be ended and started again at the same address."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.port = 0
        self._server: DashboardServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def base(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def address(self) -> str:
        return f"{self.base}/?token={TOKEN}"

    def start(self, token: str = TOKEN) -> None:
        listening = socket.create_server((LOOPBACK, self.port))
        self.port = listening.getsockname()[1]
        app = make_app(self.source, Guard(LOOPBACK, self.port, token))
        self._server = DashboardServer(app)
        self._thread = threading.Thread(target=self._server.run, args=([listening],))
        self._thread.start()

    def stop(self) -> None:
        if self._server is None or self._thread is None:
            return
        self._server.stop()
        self._thread.join()
        self._server = self._thread = None
