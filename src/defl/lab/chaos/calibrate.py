"""Measures the link itself: a laboratory whose network is not what it says measures nothing."""

import socket
import struct
import threading
import time
from dataclasses import dataclass
from statistics import fmean, median

from defl.lab.chaos.hosts import Host
from defl.lab.chaos.link import LineQuality
from defl.lab.chaos.network import ChaosNetwork

PORT = 7500
PINGS = 200
PING_EVERY_S = 0.01
DATAGRAMS = 20_000
DATAGRAMS_PER_S = 8000
TRANSFER_S = 4.0
WARM_UP_S = 4.0  # TCP finds its rate
WAIT_S = 2.0
# Of 1500 bytes, 20 are IP's and 32 TCP's with its timestamps.
PAYLOAD_SHARE = 1448 / 1500
# Of a direction that also carries the acknowledgements of another stream, one for two packets.
ACKS_SHARE = 52 / 3000


@dataclass(frozen=True, slots=True)
class Calibration:
    """One figure of the link: what was set, and what was measured."""

    what: str
    unit: str
    wanted: float
    measured: float

    @property
    def error(self) -> float:
        return abs(self.measured - self.wanted) / self.wanted


def calibrate(net: ChaosNetwork) -> list[Calibration]:
    """Between the first two hosts; the other hosts are quiet, but for the last figure."""
    link = net.link
    one, other = net.hosts[0], net.hosts[1]
    results = []
    for delay_ms in (25.0, 50.0, 200.0):
        link.every(up=LineQuality(delay_ms=delay_ms))
        measured = median(_round_trips(one, other)) * 1000
        results.append(Calibration("round trip", "ms", 2 * delay_ms, measured))
    link.every(up=LineQuality(delay_ms=50, jitter_ms=20, reorder=True))
    trips = _round_trips(one, other)
    results.append(Calibration("round trip, 50 ± 20 ms, mean", "ms", 100, fmean(trips) * 1000))
    link.every(up=LineQuality(loss=0.02))
    results.append(Calibration("loss", "%", 2.0, 100 * _loss(one, other)))
    for mbit_s in (2.0, 10.0, 100.0):
        link.every(up=LineQuality(delay_ms=5, mbit_s=mbit_s), down=LineQuality(mbit_s=mbit_s))
        wanted = mbit_s * PAYLOAD_SHARE
        results.append(
            Calibration("TCP, one stream", "Mbit/s", wanted, _throughput([(one, other)]))
        )
    link.every(up=LineQuality(delay_ms=25, mbit_s=100), down=LineQuality(mbit_s=100))
    count = len(net.hosts)
    pairs = [(net.hosts[i], net.hosts[(i + 1) % count]) for i in range(count)]
    wanted = 100 * PAYLOAD_SHARE * count * (1 - ACKS_SHARE)
    measured = _throughput(pairs)
    results.append(
        Calibration(f"TCP, {count} streams in a ring, 25 ms, in sum", "Mbit/s", wanted, measured)
    )
    link.every()
    return results


def _round_trips(one: Host, other: Host) -> list[float]:
    """Seconds of each datagram that came back."""
    with (
        other.call(_datagrams, other.address) as far,
        one.call(_datagrams, one.address) as near,
    ):
        echo = threading.Thread(target=_echo, args=(far,))
        echo.start()
        send = threading.Thread(target=_send, args=(near, other, PINGS, PING_EVERY_S))
        send.start()
        trips: list[float] = []
        try:
            while len(trips) < PINGS:
                sent, _ = struct.unpack("d1392s", near.recv(2048))
                trips.append(time.perf_counter() - sent)
        except TimeoutError:
            pass  # the rest is lost
        send.join()
        echo.join()
    return trips


def _echo(far: socket.socket) -> None:
    try:
        while True:
            data, sender = far.recvfrom(2048)
            far.sendto(data, sender)
    except TimeoutError:
        return


def _datagrams(address: str) -> socket.socket:
    it = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    it.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 2**20)
    it.bind((address, PORT))
    it.settimeout(WAIT_S)
    return it


def _send(near: socket.socket, other: Host, count: int, every_s: float) -> None:
    started = time.perf_counter()
    for number in range(count):
        near.sendto(struct.pack("d1392s", time.perf_counter(), b""), (other.address, PORT))
        time.sleep(max(0.0, started + (number + 1) * every_s - time.perf_counter()))


def _loss(one: Host, other: Host) -> float:
    with (
        other.call(_datagrams, other.address) as far,
        one.call(_datagrams, one.address) as near,
    ):
        send = threading.Thread(target=_send, args=(near, other, DATAGRAMS, 1 / DATAGRAMS_PER_S))
        send.start()
        received = 0
        try:
            while True:
                far.recv(2048)
                received += 1
        except TimeoutError:
            pass
        send.join()
    return 1 - received / DATAGRAMS


def _throughput(pairs: list[tuple[Host, Host]]) -> float:
    """Mbit/s of payload over all pairs together, once TCP has found its rate."""
    received = [0] * len(pairs)
    ended = threading.Event()
    threads = []
    for number, (one, other) in enumerate(pairs):
        server = other.call(socket.create_server, (other.address, PORT))
        server.settimeout(WAIT_S)
        client = one.call(socket.create_connection, (other.address, PORT), WAIT_S)
        peer, _ = server.accept()
        server.close()
        peer.settimeout(WAIT_S)
        threads.append(threading.Thread(target=_pour, args=(client, ended)))
        threads.append(threading.Thread(target=_drain, args=(peer, received, number)))
    for thread in threads:
        thread.start()
    time.sleep(WARM_UP_S)
    before, started = sum(received), time.perf_counter()
    time.sleep(TRANSFER_S)
    after, stopped = sum(received), time.perf_counter()
    ended.set()
    for thread in threads:
        thread.join()
    return (after - before) * 8 / (stopped - started) / 1e6


def _pour(client: socket.socket, ended: threading.Event) -> None:
    data = bytes(65536)
    with client:
        while not ended.is_set():
            try:
                client.send(data)
            except TimeoutError:
                return


def _drain(peer: socket.socket, received: list[int], number: int) -> None:
    buffer = bytearray(65536)
    with peer:
        while size := peer.recv_into(buffer):
            received[number] += size
