"""Strangers that flood a node: they call from many loopback addresses and copy first records."""

import contextlib
import itertools
import socket
import ssl
import threading
from collections import deque
from collections.abc import Sequence

SOURCES = [f"127.8.{i // 125}.{i % 125 + 1}" for i in range(250)]


def first_record(context: ssl.SSLContext) -> bytes:
    """Return the first record of a call, as an eavesdropper sees it."""
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=None).do_handshake()
    return outgoing.read()


def connect_until(
    stop: threading.Event,
    address: tuple[str, int],
    words: Sequence[bytes],
    sources: Sequence[str] = ("127.0.0.1",),
) -> int:
    """Open connections as fast as possible, keep the newest few; return their number."""
    connections = 0
    open_ones: deque[socket.socket] = deque()
    for data, source in zip(itertools.cycle(words), itertools.cycle(sources), strict=False):
        if stop.is_set():
            break
        caller = socket.create_connection(address, source_address=(source, 0))
        with contextlib.suppress(OSError):
            caller.sendall(data)
        connections += 1
        open_ones.append(caller)
        if len(open_ones) > 300:
            open_ones.popleft().close()
    for caller in open_ones:
        caller.close()
    return connections
