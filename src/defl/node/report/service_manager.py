"""Tells systemd what it wants to hear of a service of Type=notify: sd_notify(3) without a library.

Ready, one sentence for `systemctl status`, stopping, and that the event loop still turns. Without
NOTIFY_SOCKET in the environment nothing is sent.
"""

import asyncio
import socket
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass

from defl.printable import printable

SOCKET = "NOTIFY_SOCKET"
WATCHDOG = "WATCHDOG_USEC"
WATCHDOG_PROCESS = "WATCHDOG_PID"
# 64 bits of microseconds; more is no time, and too many are no number to Python.
TIME_DIGITS = 20
# How often the sentence is looked at; it is sent when it has changed.
SENTENCE_EVERY_S = 5.0
# systemd ends a service that was silent for the whole time: three signs of life in it.
SIGNS_OF_LIFE = 3


@dataclass(frozen=True, slots=True)
class ServiceManager:
    address: str = ""  # a path, or "@" and an abstract name; empty: nobody listens
    watchdog_s: float | None = None

    @classmethod
    def take_from(cls, environment: MutableMapping[str, str], process: int) -> "ServiceManager":
        """The variables are removed: child processes must not speak for the node."""
        address = environment.pop(SOCKET, "")
        watchdog = environment.pop(WATCHDOG, "")
        watched = environment.pop(WATCHDOG_PROCESS, str(process))
        is_time = watchdog.isdecimal() and len(watchdog) <= TIME_DIGITS
        if not is_time or watched != str(process):
            return cls(address)
        return cls(address, int(watchdog) / 1e6 or None)

    def ready(self) -> None:
        self._send("READY=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def say(self, sentence: str) -> None:
        self._send(f"STATUS={printable(sentence)}")  # a line break would begin another message

    async def keep_informed(self, sentence: Callable[[], str]) -> None:
        """Until cancelled. That this task gets its turn shows that the event loop is alive."""
        if not self.address:
            return
        said = ""
        every_s = SENTENCE_EVERY_S
        if self.watchdog_s is not None:
            every_s = min(every_s, self.watchdog_s / SIGNS_OF_LIFE)
        while True:
            if self.watchdog_s is not None:
                self._send("WATCHDOG=1")
            if (now := sentence()) != said:
                self.say(now)
                said = now
            await asyncio.sleep(every_s)

    def _send(self, line: str) -> None:
        """A message that nobody takes is lost, and one for which no file can be opened: the node's
        work does not depend on it."""
        if not self.address:
            return
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.setblocking(False)
                out.sendto(line.encode(), address)
        except OSError:
            return
