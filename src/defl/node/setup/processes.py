"""The nodes of a federation on this machine as processes: start, kill, query, stop.

A killed node is a crashed one: it writes, closes and sends nothing more.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from defl.errors import UserError
from defl.node.report.status import NodeStatus
from defl.node.report.status_client import last_status, running_status
from defl.node.setup.local import Local, environment_of
from defl.node.work.orphans import PARENT_VARIABLE

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
        self._killed: set[int] = set()
        self._starting = Lock()  # held from a process's birth to its registration
        self._stopping = False

    @property
    def members(self) -> range:
        return range(len(self.local.nodes))

    def start(self, *members: int) -> None:
        """These nodes, or all.

        In a thread, because Ctrl-C reaches the main thread alone: between a process's birth and
        its registration here it would leave a node behind that is never stopped.
        """
        self._stopping = False
        with ThreadPoolExecutor(1) as thread:
            thread.submit(self._start_all, members or self.members).result()

    def _start_all(self, members: Iterable[int]) -> None:
        for member in members:
            numbers = environment_of(member, len(self.members))
            environment = {**numbers, **self._environment}
            with self._starting:
                if self._stopping:
                    return
                self._processes[member] = self._start_node(member, environment)
            self._killed.discard(member)

    def _start_node(self, member: int, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        """Its log is in its folder."""
        with (self.local.nodes[member] / LOG_FILE).open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - our own command in our own folder
                self.start_command(member),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, PARENT_VARIABLE: str(os.getpid())},
                start_new_session=True,
            )

    def start_command(self, member: int) -> list[str]:
        """The laboratory's nodes start inside a network of their own."""
        node = str(self.local.nodes[member])
        return [sys.executable, "-m", "defl.cli.main", "node", "start", node]

    def kill(self, *members: int) -> None:
        """SIGKILL."""
        for member in members:
            process = self._processes[member]
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                self.kills += 1
            process.wait()
            self._killed.add(member)

    def running(self, member: int) -> bool:
        return member in self._processes and self._processes[member].poll() is None

    @property
    def any_running(self) -> bool:
        return any(self.running(member) for member in self._processes)

    def pid(self, member: int) -> int:
        return self._processes[member].pid

    def status(self, member: int) -> NodeStatus | None:
        """The node's current or final status; None while it has neither."""
        node = self.local.nodes[member]
        return running_status(node) or last_status(node)

    def round(self, member: int) -> int:
        status = self.status(member)
        return 0 if status is None else status.round

    def require_no_failure(self) -> None:
        """Report a node that exited with an error, with the end of its log."""
        for member, process in self._processes.items():
            if member not in self._killed and process.poll() not in (None, 0):
                node = self.local.nodes[member]
                log = (node / LOG_FILE).read_text(encoding="utf-8", errors="replace")
                raise UserError(
                    f"{node.name} ended with an error{_disk_hint(node)}:\n"
                    f"{log[-LOG_SHOWN_CHARACTERS:]}"
                )

    def log(self, member: int) -> list[dict[str, Any]]:
        """The node's log lines as JSON objects; the last line of a killed process may be torn."""
        path = self.local.nodes[member] / LOG_FILE
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def stop(self) -> None:
        """All end cleanly, or are killed if they take too long; on a second Ctrl-C, at once."""
        try:
            with self._starting:
                self._stopping = True
            for process in self._processes.values():
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
            for process in self._processes.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_S)
        finally:
            self.close()

    def close(self) -> None:
        """All are killed at once."""
        self.kill(*(member for member in self._processes if self.running(member)))


def _disk_hint(node: Path) -> str:
    """On a full disk the log may not mention it."""
    from defl.node.store.storage import RESERVE_BYTES  # noqa: PLC0415 - only a failure needs it

    disk = os.statvfs(node)
    free = disk.f_bavail * disk.f_frsize
    if free >= RESERVE_BYTES:
        return ""
    return (
        f" (its disk is full: {free} bytes are free, and a node keeps {RESERVE_BYTES} in reserve)"
    )
