"""Links over an imagined wire on virtual time: waiting moves the clock, and no test waits."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, cast

from defl.budget import TokenBucket
from defl.node.net.framing import HEADER_BYTES, Handler, Link, Use
from defl.node.net.send_queue import Frame, SendQueue, Traffic

FRAME_BYTES_MAX = 8 * 2**20


class _Selector(selectors.SelectSelector):
    """Instead of waiting for a timer, it moves the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing will ever happen"
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def suspend(self, seconds: float) -> None:
        """As if the process had been stopped for so long."""
        self._clock.now += seconds


def run_virtually(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())


def clock() -> VirtualLoop:
    return cast("VirtualLoop", asyncio.get_running_loop())


class WireEnd(asyncio.Transport):
    """One end of a connection. What is written arrives after a delay, or when a cut has healed."""

    def __init__(self, delay_s: float) -> None:
        super().__init__()
        self.link = Link()
        self.other: WireEnd | None = None
        self.cut = False  # what this end writes does not leave
        self.written: list[tuple[float, bytes]] = []
        self._delay_s = delay_s
        self._waiting: list[bytes] = []  # written during a cut
        self._arrived = bytearray()
        self._reading = True
        self._closing = False

    # ------------------------------------------------------------------ for the test

    def heal(self) -> None:
        self.cut = False
        waiting, self._waiting = self._waiting, []
        for data in waiting:
            self._carry(data)

    def receive(self, data: bytes) -> None:
        self._arrived += data
        while self._reading and self._arrived and not self._closing:
            buffer = self.link.get_buffer(-1)
            some = self._arrived[: len(buffer)]
            del self._arrived[: len(buffer)]
            buffer[: len(some)] = some
            self.link.buffer_updated(len(some))

    # ------------------------------------------------------------------ for the link

    def write(self, data: Any) -> None:
        self.written.append((clock().time(), bytes(data)))
        self._carry(bytes(data))

    def _carry(self, data: bytes) -> None:
        if self.cut:
            self._waiting.append(data)
        elif self.other is not None:
            clock().call_later(self._delay_s, self.other.receive, data)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self.receive(b"")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self._closing

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            clock().call_soon(self.link.connection_lost, None)
            if self.other is not None and not self.cut:
                clock().call_later(self._delay_s, self.other.abort)

    close = abort


class End:
    """A link with what it is used with."""

    def __init__(self, wire: WireEnd) -> None:
        self.wire = wire
        self.link = wire.link
        self.received: list[bytes] = []
        self.traffic = Traffic()
        self.queue = SendQueue(self.traffic)
        self.link.connection_made(wire)

    def open(
        self,
        handler: Handler | None = None,
        *,
        messages_per_s: float = 1e6,
        messages_burst: float = 1e6,
        heartbeat: bool = True,
    ) -> None:
        self.wire.receive(framed(b"hello"))
        self.link.open(
            Use(
                frame_bytes_max=FRAME_BYTES_MAX,
                handler=handler or self._keep,
                queue=self.queue,
                traffic=self.traffic,
                messages=TokenBucket(messages_per_s, messages_burst, clock().time()),
                volume=TokenBucket(1e12, 1e12, clock().time()),
                heartbeat=heartbeat,
            )
        )

    def _keep(self, frame: Frame) -> None:
        self.received.append(bytes(frame))

    def send(self, frame: Frame) -> None:
        assert self.queue.offer(frame, frames_max=1000, bytes_max=2**30)
        self.link.pump_soon()

    @property
    def sent(self) -> bytes:
        return b"".join(data for _, data in self.wire.written)


def framed(frame: bytes) -> bytes:
    return len(frame).to_bytes(HEADER_BYTES, "big") + frame


def wired(delay_s: float = 0.0) -> tuple[End, End]:
    """Two ends of one connection, not opened yet."""
    here, there = WireEnd(delay_s), WireEnd(delay_s)
    here.other, there.other = there, here
    return End(here), End(there)


def alone() -> End:
    """An end whose peer is the test: it says nothing by itself."""
    return End(WireEnd(0.0))
