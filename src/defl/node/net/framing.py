"""One connection: length-prefixed frames in and out, bounded and back-pressured.

A link knows nothing of federations or TLS. Its first frame is a short hello for its owner; nothing
more is read until the owner opens the link; then it also has a heartbeat. A frame larger than the
scratch buffer is received directly into its own memory.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from inspect import isawaitable
from time import time
from typing import Any, cast

import numpy as np

from defl.budget import TokenBucket
from defl.node.net.beats import BEAT_S, Heart, beat_of, header_of
from defl.node.net.route import DIRECT, Route
from defl.node.net.send_queue import Frame, SendQueue, Traffic
from defl.node.net.sockets import allow_round_trip, is_stalled
from defl.node.net.tls_transport import RecordFlood

HEADER_BYTES = 4
# Ours has about 110; a stranger must not make us hold much more.
HELLO_BYTES_MAX = 256
# Small frames are parsed from this buffer; an idle connection costs nothing else.
SCRATCH_BYTES = 64 * 2**10
# Encrypted and written at once: larger pieces would delay other connections, and make the event
# loop copy its unsent bytes.
SLICE_BYTES = 256 * 2**10
# After this much, the other connections get their turn: bytes out, frames in (each at most a few
# signature checks).
PUMP_BYTES = SLICE_BYTES
PARSE_FRAMES = 8
# What a beat counts for in a peer's messages: it is not charged to the peer's budget, and an honest
# peer sends a few in BEAT_S.
BEAT_MESSAGES = 50

Handler = Callable[[Frame], Awaitable[None] | None]


class Lane(StrEnum):
    """The two connections of a pair: a large blob never delays a vote."""

    CONTROL = "control"
    WEIGHTS = "weights"


@dataclass(frozen=True, slots=True)
class Use:
    """What an opened link reads into and writes from."""

    frame_bytes_max: int
    handler: Handler
    queue: SendQueue
    traffic: Traffic
    messages: TokenBucket
    volume: TokenBucket  # in bytes
    heartbeat: bool
    short_frames: bool = False  # none takes so long that a beat could not wait for its end


class Link(asyncio.BufferedProtocol):
    """Both directions of a connection.

    `closed` completes with the reason when the connection has ended. Wait for it with
    `asyncio.wait`, which does not cancel it along with the waiting task.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.hello: asyncio.Future[Frame] = self._loop.create_future()
        self.closed: asyncio.Future[str] = self._loop.create_future()
        self.broken: str | None = None  # the rule that the peer broke, if that ended the link
        self.route: Route = DIRECT  # as far as this end knows
        self._heart: Heart | None = None
        self._answer: asyncio.Future[None] | None = None  # the next pong
        self._silent: str | None = None  # set when that ends the link
        self._next_tick: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self.is_made = False  # TLS is complete: the link owns the connection
        self.certificate: bytes | None = None  # the peer's, in DER form
        self.made_at = 0.0  # by the wall clock, for people
        self._frame_bytes_max = HELLO_BYTES_MAX
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._start = 0  # scratch[start:end] is unparsed
        self._end = 0
        self._large: memoryview | None = None  # a frame that is received into its own memory
        self._filled = 0
        self._holds = 1  # reasons to pause reading; the first: the link is not opened yet
        self._use: Use | None = None
        self._handling: asyncio.Future[None] | None = None  # asyncio keeps no reference
        self._rest: memoryview | None = None  # of the frame that is being written
        self._writable = True
        self._pump_due = False

    # ------------------------------------------------------------------ for the owner

    def send_hello(self, hello: bytes) -> None:
        if self._transport is not None:
            self._transport.write(len(hello).to_bytes(HEADER_BYTES, "big") + hello)

    def open(self, use: Use) -> None:
        """Starts to pass frames to the handler, to send the queue and, if wanted, to beat."""
        self._use = use
        self._frame_bytes_max = use.frame_bytes_max
        if use.heartbeat:
            self._heart = Heart(short_frames=use.short_frames)
            self._next_tick = self._loop.call_later(BEAT_S, self._tick, self._heart)
        self.pump_soon()
        # Not at once: the owner first announces that the peer is connected.
        self._loop.call_soon(self._release)

    @property
    def round_trip_s(self) -> float | None:
        """The newest; None: not known yet."""
        return None if self._heart is None else self._heart.round_trip_s

    async def answers(self) -> bool:
        """Whether the peer answers a ping that is sent from now on; False when the link ends."""
        if self._heart is None:
            return False
        number = self._heart.challenge()
        self.pump_soon()
        while not self._heart.has_answered(number) and not self.closed.done():
            if self._answer is None or self._answer.done():
                self._answer = self._loop.create_future()
            ends: list[asyncio.Future[Any]] = [self._answer, self.closed]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        return self._heart.has_answered(number)

    @property
    def remote(self) -> str:
        """Where the peer's end is, as far as this end knows."""
        name = self._transport and self._transport.get_extra_info("peername")
        return f"{name[0]} port {name[1]}" if name else str(self.route)

    @property
    def is_stalled(self) -> bool:
        """Its bytes are lost, and after the cut it would need long to find out."""
        return self._transport is not None and is_stalled(self._transport.get_extra_info("socket"))

    def hand_over(self, protocol: asyncio.Protocol) -> bool:
        """The connection, which is not read at present, is the protocol's from now on. False if it
        has ended, or the peer has sent more than its hello."""
        if self._transport is None or self.closed.done() or self._start != self._end:
            return False
        transport, self._transport = self._transport, None
        self._scratch = memoryview(b"")
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        self.closed.set_result("handed over")
        return True

    def close(self) -> None:
        """Ends the link after the written bytes have left."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None and not self.closed.done():
            self._transport.abort()

    # ------------------------------------------------------------------ called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=SLICE_BYTES, low=SLICE_BYTES // 4)
        self.is_made = True
        self.made_at = time()
        secured = transport.get_extra_info("ssl_object")
        self.certificate = None if secured is None else secured.getpeercert(binary_form=True)

    def connection_lost(self, error: Exception | None) -> None:
        reason = self.broken or self._silent
        reason = reason or (str(error) or type(error).__name__ if error else "closed")
        self._use = self._large = self._rest = None
        # With TLS's buffers they would wait until Python looks for cycles, which is rarely.
        self._transport, self._scratch = None, memoryview(b"")
        if self._next_tick is not None:
            self._next_tick.cancel()
        if self._handling is not None:
            # A peer that reconnects again and again must not leave a frame behind each time.
            self._handling.cancel()
        if not self.hello.done():
            flood = error if isinstance(error, RecordFlood) else None
            self.hello.set_exception(flood or ConnectionResetError(reason))
            self.hello.exception()  # marks it as retrieved: there may be no waiter any more
        if not self.closed.done():
            self.closed.set_result(reason)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  (asyncio's signature)
        if self._large is not None:
            return self._large[self._filled :]
        return self._scratch[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._heart is not None:
            self._heart.heard = True
        if self._large is not None:
            self._filled += nbytes
        else:
            self._end += nbytes
        self._parse()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self.pump_soon()

    # ------------------------------------------------------------------ in

    def _parse(self) -> None:
        frames = PARSE_FRAMES
        while self._use is not None and not self._holds:
            if frames == 0:
                self._hold()
                self._loop.call_soon(self._release)
                return
            if not self._take_beat(self._use):
                frame = self._next_frame()
                if frame is None:
                    return
                self._deliver(frame, self._use)
            frames -= 1
        if not self.hello.done() and (frame := self._next_frame()) is not None:
            self._pause()
            self.hello.set_result(frame)

    def _take_beat(self, use: Use) -> bool:
        """Whether a beat came next. Without a heartbeat it is a frame that is too long."""
        body = self._start + HEADER_BYTES
        if self._heart is None or self._end < body:
            return False
        beat = beat_of(int.from_bytes(self._scratch[self._start : body], "big"))
        if beat is None:
            return False
        self._start = body
        self._charge(HEADER_BYTES, use, messages=BEAT_MESSAGES)
        if self._heart.take(beat, self._loop.time()) and self._transport is not None:
            usual_s = self._heart.usual_round_trip_s or 0.0
            allow_round_trip(self._transport.get_extra_info("socket"), usual_s)
        if beat.is_pong and self._answer is not None and not self._answer.done():
            self._answer.set_result(None)
        self.pump_soon()
        return True

    def _next_frame(self) -> Frame | None:
        if self._large is not None:
            if self._filled < len(self._large):
                return None
            frame, self._large = self._large.toreadonly(), None
            return frame
        available = self._end - self._start
        if available < HEADER_BYTES:
            self._compact()
            return None
        body = self._start + HEADER_BYTES
        length = int.from_bytes(self._scratch[self._start : body], "big")
        if not 1 <= length <= self._frame_bytes_max:
            self._break(f"a frame of {length} bytes, but 1 to {self._frame_bytes_max} are allowed")
            return None
        if available >= HEADER_BYTES + length:
            self._start = body + length
            return bytes(self._scratch[body : body + length])
        if HEADER_BYTES + length <= SCRATCH_BYTES:
            self._compact()
            return None
        self._large = np.empty(length, np.uint8).data  # not filled with zeros first
        self._filled = self._end - body
        self._large[: self._filled] = self._scratch[body : self._end]
        self._start = self._end = 0
        return None

    def _compact(self) -> None:
        """Moves the unparsed bytes to the front, to make room behind them."""
        rest = self._end - self._start
        if self._start:
            self._scratch[:rest] = bytes(self._scratch[self._start : self._end])
        self._start, self._end = 0, rest

    def _deliver(self, frame: Frame, use: Use) -> None:
        size = HEADER_BYTES + len(frame)
        use.traffic.frames_in += 1
        use.traffic.bytes_in += size
        self._charge(size, use)
        result = self._handle(frame, use.handler)
        if isawaitable(result):
            self._hold()
            self._handling = asyncio.ensure_future(result)
            self._handling.add_done_callback(self._handled)

    def _charge(self, size: int, use: Use, messages: int = 1) -> None:
        """A peer over its rates is read more slowly."""
        now = self._loop.time()
        wait_s = max(use.messages.take(messages, now), use.volume.take(size, now))
        if wait_s > 0:
            self._hold()
            self._loop.call_later(wait_s, self._release)

    def _handle(self, frame: Frame, handler: Handler) -> Awaitable[None] | None:
        """An error in the handler is a bug of ours: asyncio reports it, and this link ends."""
        healthy = False
        try:
            result = handler(frame)
            healthy = True
            return result
        finally:
            if not healthy:
                self.abort()

    def _handled(self, task: "asyncio.Future[None]") -> None:
        self._handling = None
        if task.cancelled() or task.exception() is not None:
            self.abort()
        self._release()
        if not task.cancelled():
            task.result()

    def _hold(self) -> None:
        self._holds += 1
        if self._holds == 1:
            self._pause()

    def _release(self) -> None:
        self._holds -= 1
        if self._use is None or self._transport is None:
            return
        self._parse()
        if not self._holds and not self._transport.is_closing():
            self._transport.resume_reading()

    def _pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _break(self, reason: str) -> None:
        self.broken = reason
        self.abort()

    # ------------------------------------------------------------------ out

    def _tick(self, heart: Heart) -> None:
        if self.closed.done():
            return
        self._silent = heart.tick(reading=not self._holds)
        if self._silent is None:
            self._next_tick = self._loop.call_later(BEAT_S, self._tick, heart)
            self.pump_soon()
        else:
            self.abort()

    def pump_soon(self) -> None:
        """Frames queued in one iteration of the event loop leave together."""
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_due = False
        budget = PUMP_BYTES
        while self._writable and self._use is not None and self._transport is not None:
            if self._transport.is_closing():
                return
            if budget <= 0:
                self.pump_soon()
                return
            heart = self._heart
            if heart is not None and heart.is_due and self._rest is None:  # never inside a frame
                beats = heart.beats(self._loop.time())
                headers = [header_of(beat).to_bytes(HEADER_BYTES, "big") for beat in beats]
                self._transport.write(b"".join(headers))
                continue
            piece = self._next_piece(self._use)
            if not piece:
                return
            budget -= len(piece)
            self._use.traffic.bytes_out += len(piece)
            self._transport.write(piece)

    def _next_piece(self, use: Use) -> Frame:
        """Up to a slice: the rest of a large frame, or as many small frames as fit."""
        if self._rest is not None:
            piece = self._rest[:SLICE_BYTES]
            self._rest = self._rest[SLICE_BYTES:] if len(self._rest) > SLICE_BYTES else None
            return piece
        batch = bytearray()
        while use.queue:
            length = use.queue.head_bytes()
            if batch and len(batch) + HEADER_BYTES + length > SLICE_BYTES:
                break
            frame = memoryview(use.queue.pop())
            use.traffic.frames_out += 1
            batch += length.to_bytes(HEADER_BYTES, "big")
            room = SLICE_BYTES - HEADER_BYTES
            batch += frame[:room]
            if length > room:
                self._rest = frame[room:]
                break
        return bytes(batch)
