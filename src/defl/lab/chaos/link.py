"""The link between the hosts: compiles link.c, starts it, and changes the network while it runs."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from defl.errors import UserError
from defl.lab.chaos.hosts import run

SOURCE = Path(__file__).parent / "link.c"
# Of a line with a rate: what would wait longer is dropped, as routers do.
QUEUE_MS = 250.0


@dataclass(frozen=True, slots=True)
class LineQuality:
    """One direction of a host's line. Without a rate it is as fast as the machine."""

    delay_ms: float = 0.0
    jitter_ms: float = 0.0  # evenly between delay - jitter and delay + jitter
    loss: float = 0.0  # the share of packets
    mbit_s: float = 0.0
    queue_ms: float = QUEUE_MS
    reorder: bool = False  # packets may overtake each other

    def command(self, host: int, direction: str) -> str:
        return (
            f"line {host} {direction} {self.delay_ms * 1000:.0f} {self.jitter_ms * 1000:.0f} "
            f"{self.loss * 1e6:.0f} {self.mbit_s * 1e6:.0f} {self.queue_ms * 1000:.0f} "
            f"{int(self.reorder)}"
        )


CLEAR = LineQuality()


@dataclass(frozen=True, slots=True)
class Carried:
    """What one direction of a host's line has carried: IP packets, headers included."""

    packets: int
    bytes: int
    dropped_queue: int
    dropped_loss: int
    dropped_cut: int

    def since(self, earlier: "Carried") -> "Carried":
        return Carried(
            self.packets - earlier.packets,
            self.bytes - earlier.bytes,
            self.dropped_queue - earlier.dropped_queue,
            self.dropped_loss - earlier.dropped_loss,
            self.dropped_cut - earlier.dropped_cut,
        )


@dataclass(frozen=True, slots=True)
class LinkStats:
    up: tuple[Carried, ...]  # by host
    down: tuple[Carried, ...]
    late_ms: float  # how late a packet left at worst since the last report: the machine's fault

    def since(self, earlier: "LinkStats") -> "LinkStats":
        up = tuple(map(Carried.since, self.up, earlier.up))
        return LinkStats(up, tuple(map(Carried.since, self.down, earlier.down)), self.late_ms)


def parse_stats(lines: Sequence[str]) -> LinkStats:
    """The link's report, without its last line."""
    directions: dict[str, list[Carried]] = {"up": [], "down": []}
    late_ms = 0.0
    for line in lines:
        fields = line.split()
        if fields[0] == "late_us":
            late_ms = int(fields[1]) / 1000
        else:
            directions[fields[1]].append(Carried(*map(int, fields[2:])))
    return LinkStats(tuple(directions["up"]), tuple(directions["down"]), late_ms)


class UserspaceLink:
    """A running link. It ends when this process does."""

    def __init__(self, ends: Sequence[str], scratch: Path, descriptors: Sequence[int] = ()) -> None:
        """The ends are network namespaces, or inherited descriptors such as `fd:5`."""
        self._hosts = range(len(ends))
        program = scratch / "link"
        run("cc", "-O2", "-o", str(program), str(SOURCE))
        self._process = subprocess.Popen(  # noqa: S603 - what we have just compiled
            [program, *ends],
            pass_fds=descriptors,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("they were asked for")
        self._commands, self._answers = self._process.stdin, self._process.stdout
        if self._answer() != "ready":
            _, errors = self._process.communicate()
            raise UserError(f"the link does not start: {errors.strip()}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def up(self, host: int, line: LineQuality) -> None:
        self._tell(line.command(host, "up"))

    def down(self, host: int, line: LineQuality) -> None:
        self._tell(line.command(host, "down"))

    def every(self, *, up: LineQuality = CLEAR, down: LineQuality = CLEAR) -> None:
        for host in self._hosts:
            self.up(host, up)
            self.down(host, down)

    def cut(self, from_: int, to: int) -> None:
        """One way: packets of the first host do not reach the second."""
        self._tell(f"cut {from_} {to} 1")

    def part(self, one: Sequence[int], other: Sequence[int]) -> None:
        """Both ways, between the two groups."""
        for a in one:
            for b in other:
                self.cut(a, b)
                self.cut(b, a)

    def heal(self) -> None:
        for a in self._hosts:
            for b in self._hosts:
                self._tell(f"cut {a} {b} 0")

    def stats(self) -> LinkStats:
        self._tell("stats")
        lines: list[str] = []
        while (line := self._answer()) != "end":
            if not line:
                raise UserError("the link has ended; the network is gone")
            lines.append(line)
        return parse_stats(lines)

    def close(self) -> None:
        self._process.communicate()  # it ends with its stdin

    def _tell(self, command: str) -> None:
        self._commands.write(f"{command}\n")

    def _answer(self) -> str:
        return self._answers.readline().strip()
