"""A connection to or at a relay: short frames first, then the bytes of another connection.

Both ends of the way use it: the relay joins the connections of two members, and each member joins
its connection to the relay with a local one, on which its ordinary TLS runs. Bytes are copied as
they come and read no faster than the other side takes them.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from defl.node.net.framing import HEADER_BYTES
from defl.node.net.tls_transport import CLOSE_S
from defl.node.relay.protocol import RELAY_FRAME_BYTES_MAX

# Unsent bytes of one direction, beyond which its source is not read. asyncio may add what it reads
# at once, 256 KiB.
LEG_UNSENT_BYTES_MAX = 128 * 2**10
# Frames that wait for their turn. Who follows the protocol has sent one or two.
LEG_UNREAD_BYTES_MAX = 4 * (HEADER_BYTES + RELAY_FRAME_BYTES_MAX)


class Leg(asyncio.Protocol):
    def __init__(self, on_end: Callable[["Leg"], None] = lambda _: None) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._unread = bytearray()
        self._news = asyncio.Event()  # bytes, the other leg, or the end
        self._other: Leg | None = None
        self._ending: asyncio.TimerHandle | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.bytes_in = 0  # since it was joined
        self.was_heard = False  # brought bytes since somebody set this to False

    # ------------------------------------------------------------------ for the owner

    def send(self, frame: bytes) -> None:
        if self._transport is not None and not self.ended.done():
            self._transport.write(len(frame).to_bytes(HEADER_BYTES, "big") + frame)

    async def frame(self) -> bytes | None:
        """The next frame; None if there is no other: the connection has ended or was joined."""
        while self._other is None and not self.ended.done():
            if (frame := self._next_frame()) is not None:
                return frame
            self._news.clear()
            self._resume()
            await self._news.wait()
        return None

    def close(self) -> None:
        """Ends it after the written bytes have left, or a moment."""
        if self._transport is not None and not self.ended.done():
            self._transport.close()
            if self._ending is None:
                self._ending = self._loop.call_later(CLOSE_S, self.abort)

    def abort(self) -> None:
        if self._transport is not None and not self.ended.done():
            self._transport.abort()

    # ------------------------------------------------------------------ called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=LEG_UNSENT_BYTES_MAX)
        self._pause()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  (asyncio's)
        self._unread.clear()
        if self._ending is not None:
            self._ending.cancel()  # it would keep the buffers of TLS
        if not self.ended.done():
            self.ended.set_result(None)
        self._news.set()
        if self._other is not None:
            self._other.close()
        self._transport = None  # else TLS's buffers wait until Python looks for cycles
        self._on_end(self)

    def data_received(self, data: bytes) -> None:
        self.was_heard = True
        if self._other is not None:
            self.bytes_in += len(data)
            self._other.write(data)
            return
        self._unread += data
        self._pause()
        if len(self._unread) > LEG_UNREAD_BYTES_MAX:
            self.abort()
        self._news.set()

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other._pause()

    def resume_writing(self) -> None:
        if self._other is not None:
            self._other._resume()

    # ------------------------------------------------------------------ within a pair

    def join(self, other: "Leg") -> None:
        """Copies what comes to the other leg. Nothing may have come before its time."""
        self._other = other
        self._news.set()
        if other.ended.done():
            self.close()
        elif self._unread:
            self.abort()
        else:
            self._resume()

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self.ended.done():
            self._transport.write(data)

    def _next_frame(self) -> bytes | None:
        if len(self._unread) < HEADER_BYTES:
            return None
        length = int.from_bytes(self._unread[:HEADER_BYTES], "big")
        if not 1 <= length <= RELAY_FRAME_BYTES_MAX:
            self.abort()
            return None
        end = HEADER_BYTES + length
        if len(self._unread) < end:
            return None
        frame = bytes(self._unread[HEADER_BYTES:end])
        del self._unread[:end]
        return frame

    def _pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


def splice(first: Leg, second: Leg) -> None:
    first.join(second)
    second.join(first)
