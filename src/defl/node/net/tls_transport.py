"""TLS on a connected socket, with a bound on what the other end's records may cost.

asyncio's own TLS hands all that it has read to one call of OpenSSL. A record need not bring any
data: a key update of 27 bytes costs as much time as 20,000 bytes of a model, and no limit on frames
sees it. So here OpenSSL gets whole records, a few in each turn of the event loop. A link whose
records bring no data is ended; one whose records bring hardly any is read more slowly.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any, cast

import numpy as np

from defl.budget import TokenBucket

# What was received and not decrypted yet: some full records.
RECEIVED_BYTES_MAX = 256 * 2**10
# Less room than this is not worth a read.
ROOM_BYTES_MIN = 64 * 2**10
# Of a record: its type, its version and its length, which counts what follows.
RECORD_HEADER_BYTES = 5
RECORD_TYPES = range(20, 24)
RECORD_BYTES_MAX = RECORD_HEADER_BYTES + 2**14 + 256
# Opened before other connections get their turn: full ones take about 0.1 ms, key updates 0.4 ms.
TURN_RECORDS = 16
# Ours have less than 4 KiB in less than ten records, each way.
HANDSHAKE_BYTES_MAX = 32 * 2**10
HANDSHAKE_RECORDS_MAX = 32
# After the handshake: nodes send none but the notice of the end. Other implementations may send
# session tickets, and change their keys now and then.
EMPTY_RECORDS_BURST = 8.0
EMPTY_RECORDS_PER_S = 1.0
# Those that bring less take as long to open as this much. More of them than messages are allowed
# (limits.py) serve no purpose: 3% of a core.
SHORT_RECORD_BYTES = 1024
SHORT_RECORDS_PER_S = 10_000.0
SHORT_RECORDS_BURST = 1_000.0
# For the bytes that are already written, when this end closes.
CLOSE_S = 1.0


class RecordFlood(ConnectionError):
    """The other end sent TLS records that bring nothing; the link was ended."""

    def __init__(self, records: int, remote: str, certificate: bytes | None) -> None:
        super().__init__(f"{records} TLS records brought no data")
        self.records = records
        self.remote = remote
        self.certificate = certificate  # in DER form; None: it has shown none


OnFlood = Callable[[RecordFlood], None]


class _State(Enum):
    HANDSHAKE = "handshake"
    OPEN = "open"
    CLOSING = "closing"  # nothing more is read or written
    LOST = "lost"


async def secure(
    connection: socket.socket,
    protocol: asyncio.Protocol | asyncio.BufferedProtocol,
    context: ssl.SSLContext,
    *,
    handshake_s: float,
    server_name: str | None = None,
    on_flood: OnFlood = lambda _: None,
) -> "TlsTransport":
    """The protocol has its connection when this returns. `server_name` is the called end's, None if
    this end is called. From here on the socket belongs to the event loop, which closes it whatever
    happens."""
    secured = TlsTransport(protocol, context, server_name, on_flood)
    is_done = False  # also a call that is cancelled after the handshake must leave nothing
    try:
        await asyncio.get_running_loop().create_connection(lambda: secured, sock=connection)
        async with asyncio.timeout(handshake_s):
            await secured.handshake
        is_done = True
        return secured
    except TimeoutError as error:
        text = f"the TLS handshake is taking longer than {handshake_s:.0f} s"
        raise ConnectionAbortedError(text) from error
    finally:
        if not is_done:
            secured.abort()


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """The transport of a protocol, and itself the protocol of a TCP transport."""

    def __init__(
        self,
        protocol: asyncio.Protocol | asyncio.BufferedProtocol,
        context: ssl.SSLContext,
        server_name: str | None,
        on_flood: OnFlood,
    ) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._protocol: asyncio.Protocol | asyncio.BufferedProtocol | None = protocol
        self._on_flood = on_flood
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_name is None,
            server_hostname=server_name or None,
        )
        self.handshake: asyncio.Future[None] = self._loop.create_future()
        self.is_made = False  # the handshake is complete, and the protocol has its connection
        self._state = _State.HANDSHAKE
        self._tcp: asyncio.Transport | None = None
        self._fault: Exception | None = None  # why this end has ended the connection
        # Not filled with zeros first: what an idle connection never fills costs nothing.
        self._received: memoryview = np.empty(RECEIVED_BYTES_MAX, np.uint8).data
        self._start = 0  # received[start:end] is not decrypted yet
        self._end = 0
        self._fed = 0  # records that OpenSSL has, and that have brought nothing yet
        self._handshake_records = 0
        self._handshake_bytes = 0
        self._empty_records = 0
        now = self._loop.time()
        self._empty = TokenBucket(EMPTY_RECORDS_PER_S, EMPTY_RECORDS_BURST, now)
        self._short = TokenBucket(SHORT_RECORDS_PER_S, SHORT_RECORDS_BURST, now)
        self._is_at_end = False  # the other end sends nothing more
        self._is_paused = False  # by the protocol
        self._is_held = False  # after too many short records
        self._turn_due: asyncio.Handle | None = None
        self._tcp_paused = False
        self._hold: asyncio.TimerHandle | None = None
        self._ending: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------ for the protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._state is not _State.OPEN:
            return
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._tls.write(rest) :]
        except ssl.SSLError as error:
            self._fail(error)
        else:
            self._flush()

    def close(self) -> None:
        """Ends the connection after the written bytes have left and the other end has answered, or
        after a moment."""
        if self._state is _State.HANDSHAKE:
            self.abort()
        elif self._state is _State.OPEN:
            self._take_leave()
            self._control_reading()

    def abort(self) -> None:
        if self._state is not _State.LOST:
            self._state = _State.CLOSING
            if self._tcp is not None:
                self._tcp.abort()

    def is_closing(self) -> bool:
        is_lost = self._tcp is None or self._tcp.is_closing()
        return is_lost or self._state is _State.CLOSING

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._turn_soon()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        if not isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol):
            raise TypeError("a protocol for streams is needed")
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        if self._protocol is None:
            raise RuntimeError("the connection has ended")
        return self._protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._tcp is not None:
            self._tcp.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return 0 if self._tcp is None else self._tcp.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._tls
        return default if self._tcp is None else self._tcp.get_extra_info(name, default)

    # ------------------------------------------------------------------ called by the TCP transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tcp = cast("asyncio.Transport", transport)
        if self._state is _State.HANDSHAKE:
            self._shake_hands()
        else:
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        protocol, self._protocol = self._protocol, None
        self._state, self._tcp = _State.LOST, None
        for timer in (self._turn_due, self._hold, self._ending):
            if timer is not None:
                timer.cancel()
        # They would wait until Python looks for cycles, which is rarely.
        self._received, self._start, self._end = memoryview(b""), 0, 0
        self._incoming.read()
        self._outgoing.read()
        fault = self._fault or exc
        if self.is_made and protocol is not None:
            protocol.connection_lost(fault)
        elif not self.handshake.done():
            self.handshake.set_exception(fault or ConnectionResetError("closed in the handshake"))
            self.handshake.exception()  # marks it as retrieved: nobody may be waiting

    def eof_received(self) -> bool:
        """The connection stays open while there is something to read."""
        self._is_at_end = True
        if self._state is _State.HANDSHAKE:
            self._fail(ConnectionResetError("closed in the handshake"))
        elif self._state is _State.OPEN:
            self._turn_soon()
            return True
        return False

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  (asyncio's signature)
        return self._received[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        if self._turn_due is None:
            self._turn()
        self._control_reading()

    def pause_writing(self) -> None:
        if self._protocol is not None and self.is_made:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None and self.is_made:
            self._protocol.resume_writing()

    # ------------------------------------------------------------------ in

    def _turn_soon(self) -> None:
        if self._turn_due is None:
            self._turn_due = self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_due = None
        self._turn()
        self._control_reading()

    def _turn(self) -> None:
        """Opens the records that one turn of the event loop may open."""
        if self._state is _State.HANDSHAKE:
            self._take_handshake()
        if self._state is not _State.OPEN or self._is_paused or self._is_held:
            return
        if not self._fed:
            self._feed()
        self._deliver()
        if self._state is not _State.OPEN or self._is_paused or self._is_held:
            return
        if self._fed or self._next_record() is not None:
            self._turn_soon()
        elif self._is_at_end and self._tcp is not None:
            self._take_leave()
            self._tcp.close()

    def _next_record(self) -> int | None:
        """The length of the next record; None: it is not complete. What is no record is for OpenSSL
        to refuse."""
        start, available = self._start, self._end - self._start
        if available < RECORD_HEADER_BYTES:
            return None
        length = RECORD_HEADER_BYTES + int.from_bytes(self._received[start + 3 : start + 5], "big")
        if self._received[start] not in RECORD_TYPES or length > RECORD_BYTES_MAX:
            return available
        return length if length <= available else None

    def _feed(self) -> None:
        """Gives OpenSSL the next records."""
        begin, short = self._start, 0
        while self._fed < TURN_RECORDS and (length := self._next_record()) is not None:
            self._start += length
            self._fed += 1
            short += length < SHORT_RECORD_BYTES
        self._incoming.write(self._received[begin : self._start])
        if short and (wait_s := self._short.take(short, self._loop.time())) > 0:
            self._is_held = True
            self._hold = self._loop.call_later(wait_s, self._release)

    def _release(self) -> None:
        self._is_held = False
        self._turn_soon()

    def _deliver(self) -> None:
        try:
            while self._fed and not self._is_paused and self._state is _State.OPEN:
                protocol = self._protocol
                if isinstance(protocol, asyncio.BufferedProtocol):
                    self._fill(protocol)
                elif protocol is not None:
                    self._pass_on(protocol)
        except ssl.SSLError as error:
            self._fail(error)
        if self._outgoing.pending:
            self._flush()

    def _fill(self, protocol: asyncio.BufferedProtocol) -> None:
        buffer = memoryview(protocol.get_buffer(-1))
        size, filled = len(buffer), 0
        if not size:
            raise RuntimeError("no room, although reading is not paused")
        while self._fed and filled < size:
            try:
                count = cast("int", self._tls.read(size - filled, buffer[filled:]))
            except ssl.SSLWantReadError:
                self._count_empty()
                break
            if not count:
                self._hear_the_end()
                break
            filled += count
            if filled < size or not self._tls.pending():
                self._fed -= 1
        if filled:
            protocol.buffer_updated(filled)

    def _pass_on(self, protocol: asyncio.Protocol) -> None:
        pieces = []
        while self._fed:
            try:
                piece = self._tls.read(RECORD_BYTES_MAX)
            except ssl.SSLWantReadError:
                self._count_empty()
                break
            if not piece:
                self._hear_the_end()
                break
            pieces.append(piece)
            self._fed -= 1
        if pieces:
            protocol.data_received(b"".join(pieces))

    def _count_empty(self) -> None:
        """OpenSSL asks for more: the rest of what it was given brought nothing."""
        empty, self._fed = self._fed, 0
        self._empty_records += empty
        if self._empty.take(empty, self._loop.time()) > 0:
            self._end_flood(self._empty_records)

    def _hear_the_end(self) -> None:
        """Ignores what may follow."""
        self._is_at_end = True
        self._fed, self._start = 0, self._end

    def _control_reading(self) -> None:
        """Makes room for the next read. While there is none, the kernel keeps what comes."""
        if self._tcp is None or self._tcp.is_closing():
            return
        if self._state is _State.CLOSING:
            self._start = self._end
        rest = self._end - self._start
        if rest == 0 or self._start >= ROOM_BYTES_MIN:
            self._received[:rest] = self._received[self._start : self._end]
            self._start, self._end = 0, rest
        is_full = len(self._received) - self._end < ROOM_BYTES_MIN
        if is_full and not self._tcp_paused:
            self._tcp.pause_reading()
        elif self._tcp_paused and not is_full:
            self._tcp.resume_reading()
        self._tcp_paused = is_full

    # ------------------------------------------------------------------ handshake

    def _take_handshake(self) -> None:
        while self._state is _State.HANDSHAKE and (length := self._next_record()) is not None:
            self._handshake_records += 1
            self._handshake_bytes += length
            if (
                self._handshake_records > HANDSHAKE_RECORDS_MAX
                or self._handshake_bytes > HANDSHAKE_BYTES_MAX
            ):
                self._end_flood(self._handshake_records)
                return
            self._incoming.write(self._received[self._start : self._start + length])
            self._start += length
            self._shake_hands()

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._flush()
        self._state = _State.OPEN
        self.is_made = True
        if self._protocol is not None:
            self._protocol.connection_made(self)
        if not self.handshake.done():  # the call may have just been cancelled
            self.handshake.set_result(None)

    # ------------------------------------------------------------------ out, and the end

    def _flush(self) -> None:
        if self._tcp is not None and (data := self._outgoing.read()):
            self._tcp.write(data)

    def _take_leave(self) -> None:
        self._state = _State.CLOSING
        with suppress(ssl.SSLError):  # it would wait for the other end's answer
            self._tls.unwrap()
        self._flush()
        self._ending = self._loop.call_later(CLOSE_S, self.abort)

    def _fail(self, fault: Exception) -> None:
        self._fault = self._fault or fault
        self.abort()

    def _end_flood(self, records: int) -> None:
        name = self.get_extra_info("peername")
        known = f"{name[0]} port {name[1]}" if isinstance(name, tuple) else "behind a relay"
        remote = "already gone" if name is None else known
        certificate = self._tls.getpeercert(binary_form=True) if self.is_made else None
        flood = RecordFlood(records, remote, certificate)
        self._fail(flood)
        self._on_flood(flood)
