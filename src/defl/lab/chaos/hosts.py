"""Hosts: network namespaces of this machine, each with one address in 10.77.0.0/24.

The addresses exist inside these namespaces alone. A namespace has no way out but its device `wan`,
whose other end the link holds (link.py).
"""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from defl.errors import UserError

PREFIX = "defl-chaos-"
NETWORK = "10.77.0"
HOSTS_MAX = 32  # link.c
MTU = 1500
# What the link has not yet read of a device. Far more than it ever lags behind: the queues of the
# network are the link's own.
DEVICE_QUEUE_PACKETS = 10_000
COMMAND_TIME_MAX_S = 20.0
# A namespace may be deleted once the processes in it are gone.
END_S = 5.0
_CLONE_NEWNET = 0x40000000

P = ParamSpec("P")
T = TypeVar("T")


def address_of(number: int) -> str:
    return f"{NETWORK}.{number + 1}"


class Host:
    """A network namespace, and a thread of this process inside it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.address = address_of(number)
        self.namespace = f"{PREFIX}{number}"
        self._inside = ThreadPoolExecutor(1, initializer=_enter, initargs=(self.namespace,))

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The sockets that the function opens are this host's."""
        return self.submit(function, *args, **kwargs).result()

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._inside.submit(function, *args, **kwargs)

    def command(self, *command: str) -> list[str]:
        """`ip` replaces itself by the command, which keeps its process id."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def run(self, *command: str) -> str:
        return run(*self.command(*command))

    def start(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        with log.open("ab") as output:
            return subprocess.Popen(  # noqa: S603 - our own command
                self.command(*command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=None if environment is None else dict(environment),
                start_new_session=True,
            )

    def close(self) -> None:
        self._inside.shutdown()


def run(*command: str) -> str:
    """What the command prints; a UserError if it fails."""
    done = subprocess.run(  # noqa: S603 - our own command
        command, capture_output=True, text=True, timeout=COMMAND_TIME_MAX_S, check=False
    )
    if done.returncode:
        raise UserError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout


def make_hosts(count: int) -> list[Host]:
    """New namespaces, without devices yet."""
    for number in range(count):
        run("ip", "netns", "add", f"{PREFIX}{number}")
    return [Host(number) for number in range(count)]


def configure(hosts: Sequence[Host], congestion_control: str) -> None:
    """Give the devices, which the link has opened, their addresses."""
    for host in hosts:
        inside = ("ip", "-n", host.namespace)
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "addr", "add", f"{host.address}/24", "dev", "wan")
        queue = str(DEVICE_QUEUE_PACKETS)
        run(*inside, "link", "set", "wan", "up", "mtu", str(MTU), "txqueuelen", queue)
        host.call(_write, "/proc/sys/net/ipv4/tcp_congestion_control", congestion_control)


def allow_congestion_control(name: str) -> None:
    """Other namespaces may only choose what the first one allows; it is allowed until the next
    boot, and used by nobody who does not ask for it."""
    path = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
    allowed = path.read_text(encoding="ascii").split()
    if name not in allowed:
        _write(str(path), " ".join([*allowed, name]))


def remove_namespaces() -> None:
    """Those of this run, and those that a killed run has left behind, with what runs in them."""
    for line in run("ip", "netns", "list").splitlines():
        name = line.split()[0]
        if name.startswith(PREFIX):
            _kill_all_in(name)
            run("ip", "netns", "delete", name)


def _kill_all_in(namespace: str) -> None:
    until = time.monotonic() + END_S
    while pids := [int(pid) for pid in run("ip", "netns", "pids", namespace).split()]:
        pids = [pid for pid in pids if pid != os.getpid()]
        if not pids or time.monotonic() > until:
            return
        for pid in pids:
            with suppress(ProcessLookupError):  # it ended in between
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _enter(namespace: str) -> None:
    """A namespace is a thread's own: the rest of this process stays where it is."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", namespace).open("rb") as inside:
        if libc.setns(inside.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


def _write(path: str, text: str) -> None:
    Path(path).write_text(text, encoding="ascii")
