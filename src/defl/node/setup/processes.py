"""The nodes of a federation on this machine as processes: started, killed, asked, ended.

Killing one is what a crash is: nothing is written, closed or said any more.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from defl.errors import UserError
from defl.node.report.status import NodeStatus
from defl.node.report.status_client import asked_status, last_status
from defl.node.setup.local import Local, environment_of

LOG_FILE = "node.log"
STOP_S = 10.0
LOG_SHOWN_CHARACTERS = 2000


class Processes:
    """Each process finds its number in DEFL_NODE and the count in DEFL_NODES."""

    def __init__(self, local: Local, environment: Mapping[str, str] | None = None) -> None:
        self.local = local
        self.kills = 0
        self._environment = dict(environment or {})
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def members(self) -> range:
        return range(len(self.local.nodes))

    def start(self, *members: int) -> None:
        """These nodes, or all."""
        for member in members or self.members:
            numbers = environment_of(member, len(self.members))
            environment = {**numbers, **self._environment}
            self._processes[member] = _start_node(self.local.nodes[member], environment)

    def kill(self, *members: int) -> None:
        """SIGKILL."""
        for member in members:
            process = self._processes[member]
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                self.kills += 1
            process.wait()

    def running(self, member: int) -> bool:
        return self._processes[member].poll() is None

    @property
    def any_running(self) -> bool:
        return any(self.running(member) for member in self._processes)

    def pid(self, member: int) -> int:
        return self._processes[member].pid

    def status(self, member: int) -> NodeStatus | None:
        """Its present status, or the final one; None as long as there is neither."""
        node = self.local.nodes[member]
        return asked_status(node) or last_status(node)

    def round(self, member: int) -> int:
        status = self.status(member)
        return 0 if status is None else status.round

    def require_no_failure(self) -> None:
        """A node that ended with an error is told with the end of its log."""
        for member, process in self._processes.items():
            if process.poll() not in (None, 0):
                node = self.local.nodes[member]
                log = (node / LOG_FILE).read_text(encoding="utf-8", errors="replace")
                raise UserError(f"{node.name} ended with an error:\n{log[-LOG_SHOWN_CHARACTERS:]}")

    def log(self, member: int) -> list[dict[str, Any]]:
        """What the node logged as JSON: one object a line; lines of a dying process may be torn."""
        path = self.local.nodes[member] / LOG_FILE
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def stop(self) -> None:
        """All end cleanly, or are killed if they do not."""
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def close(self) -> None:
        """All are killed at once."""
        self.kill(*(member for member in self._processes if self.running(member)))


def _start_node(node: Path, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Its log is in its folder."""
    with (node / LOG_FILE).open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - our own command in a folder that we made
            [sys.executable, "-m", "defl.cli.main", "node", "start", str(node)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(environment),
            start_new_session=True,
        )
