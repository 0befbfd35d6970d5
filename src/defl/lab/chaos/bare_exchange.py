"""The same bytes without nodes: every host sends an update to every other over plain TCP.

What remains of the line's speed when connections have been idle during training, as those of nodes
are, and must find their rate again: no program that uses this TCP can be much faster.
"""

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from defl.lab.chaos.hosts import Host

PORT = 7501
WAIT_S = 60.0
IDLE_S = 1.5  # about a training
EXCHANGES = 3
PIECE_BYTES = 2**18


def bare_exchange(hosts: Sequence[Host], size: int) -> float:
    """Seconds until every host has everything: the fastest of several, after a first one in which
    the connections are new."""
    pairs = _connected(hosts)
    try:
        _exchange(pairs, size)
        times = []
        for _ in range(EXCHANGES - 1):
            time.sleep(IDLE_S)
            times.append(_exchange(pairs, size))
    finally:
        for pair in pairs:
            for end in pair:
                end.close()
    return min(times)


def _connected(hosts: Sequence[Host]) -> list[tuple[socket.socket, socket.socket]]:
    """A sending and a receiving end for each pair of hosts, in both directions."""
    pairs = []
    for host in hosts:
        server = host.call(socket.create_server, (host.address, PORT))
        with server:
            for other in hosts:
                if other is not host:
                    sender = other.call(socket.create_connection, (host.address, PORT), WAIT_S)
                    receiver, _ = server.accept()
                    receiver.settimeout(WAIT_S)
                    pairs.append((sender, receiver))
    return pairs


def _exchange(pairs: Sequence[tuple[socket.socket, socket.socket]], size: int) -> float:
    threads = [threading.Thread(target=_send, args=(sender, size)) for sender, _ in pairs]
    threads += [threading.Thread(target=_receive, args=(receiver, size)) for _, receiver in pairs]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def _send(sender: socket.socket, size: int) -> None:
    piece = bytes(PIECE_BYTES)
    with suppress(OSError):  # closed: the run is interrupted
        while size > 0:
            sender.sendall(piece[: min(size, PIECE_BYTES)])
            size -= PIECE_BYTES


def _receive(receiver: socket.socket, size: int) -> None:
    buffer = bytearray(PIECE_BYTES)
    with suppress(OSError):
        while size > 0 and (received := receiver.recv_into(buffer, min(size, PIECE_BYTES))):
            size -= received
