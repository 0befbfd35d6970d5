"""The laboratory's link, with sockets in place of TUN devices: needs a C compiler, but no root."""

import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from defl.lab.chaos.hosts import address_of
from defl.lab.chaos.link import Carried, LineQuality, UserspaceLink, parse_stats

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

HOSTS = 3
ANSWER_S = 10.0
SLOW_MBIT_S = 0.008  # a second for each packet of 1000 bytes


def packet(from_: int, to: str, size: int = 100) -> bytes:
    """An IPv4 header with nothing in it but addresses, and a body."""
    header = bytes([0x45]) + bytes(11) + socket.inet_aton(address_of(from_)) + socket.inet_aton(to)
    return header.ljust(size, b"x")


class Bench:
    """A link whose hosts' devices are sockets in our hands."""

    def __init__(self, link: UserspaceLink, devices: list[socket.socket]) -> None:
        self.link = link
        self.devices = devices

    def send(self, from_: int, to: int, size: int = 100) -> bytes:
        sent = packet(from_, address_of(to), size)
        self.devices[from_].send(sent)
        return sent

    def settle(self, host: int, taken: int) -> Carried:
        """What the host's up line has done, once it has taken this many packets."""
        while True:
            up = self.link.stats().up[host]
            if up.packets + up.dropped_queue + up.dropped_cut >= taken:
                return up


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with ExitStack() as open_:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(HOSTS)]
        for pair in pairs:
            for end in pair:
                open_.enter_context(end)
                end.setblocking(False)
        far = [pair[1].fileno() for pair in pairs]
        link = UserspaceLink([f"fd:{number}" for number in far], tmp_path, far)
        open_.callback(link.close)
        near = [pair[0] for pair in pairs]
        for end in near:
            end.settimeout(ANSWER_S)
        yield Bench(link, near)


def test_a_packet_reaches_the_host_that_it_is_addressed_to(bench: Bench) -> None:
    sent = bench.send(0, 2)

    assert bench.devices[2].recv(2048) == sent


@pytest.mark.parametrize("address", ["10.77.0.9", "10.77.1.2", "192.0.2.2", address_of(0)])
def test_a_packet_to_anywhere_else_goes_nowhere(bench: Bench, address: str) -> None:
    bench.devices[0].send(packet(0, address))
    bench.devices[0].send(b"\x60" + bytes(60))  # IPv6
    bench.devices[0].send(b"\x45")
    last = bench.send(0, 1)

    assert bench.devices[1].recv(2048) == last
    assert bench.link.stats().up[0].packets == 1


def test_a_cut_is_one_way_until_it_heals(bench: Bench) -> None:
    bench.link.cut(0, 1)
    bench.link.stats()  # the commands are obeyed in order, so the cut holds from here on
    bench.send(0, 1)
    back = bench.send(1, 0)
    aside = bench.send(0, 2)

    assert bench.devices[0].recv(2048) == back
    assert bench.devices[2].recv(2048) == aside
    assert bench.settle(0, 2).dropped_cut == 1

    bench.link.heal()
    bench.link.stats()
    again = bench.send(0, 1, size=200)

    assert bench.devices[1].recv(2048) == again


def test_a_lossy_line_loses_its_share_and_only_in_its_direction(bench: Bench) -> None:
    bench.link.up(0, LineQuality(loss=0.5))
    bench.link.stats()
    for _ in range(400):
        bench.send(0, 1)
        bench.settle(0, 0)
    up = bench.settle(0, 400)

    assert up.packets == 400
    assert 140 < up.dropped_loss < 260  # six standard deviations
    assert bench.link.stats().down[1].packets == 400 - up.dropped_loss


def test_a_queue_drops_what_would_wait_too_long(bench: Bench) -> None:
    bench.link.up(0, LineQuality(mbit_s=SLOW_MBIT_S, queue_ms=2500))
    bench.link.stats()
    for _ in range(8):
        bench.send(0, 1, size=1000)
    up = bench.settle(0, 8)

    assert (up.packets, up.dropped_queue) == (3, 5)  # they wait 0, 1 and 2 s


def test_delayed_packets_keep_their_order_unless_reordering_is_asked_for(bench: Bench) -> None:
    sizes = list(range(100, 180))
    order = {}
    for reorder in (False, True):
        bench.link.up(0, LineQuality(delay_ms=20, jitter_ms=20, reorder=reorder))
        bench.link.stats()
        for size in sizes:
            bench.send(0, 1, size)
        order[reorder] = [len(bench.devices[1].recv(2048)) for _ in sizes]

    assert order[False] == sizes
    assert order[True] != sizes
    assert sorted(order[True]) == sizes


def test_the_link_ends_with_its_owner(bench: Bench) -> None:
    bench.link.close()

    assert not Path(f"/proc/{bench.link.pid}").exists()


def test_the_report_is_read_by_host_and_direction() -> None:
    stats = parse_stats(["0 up 1 2 3 4 5", "0 down 6 7 8 9 10", "late_us 1500"])

    assert stats.up == (Carried(1, 2, 3, 4, 5),)
    assert stats.down == (Carried(6, 7, 8, 9, 10),)
    assert stats.late_ms == 1.5


def test_a_line_is_told_in_the_links_units() -> None:
    line = LineQuality(delay_ms=50, jitter_ms=0.5, loss=0.02, mbit_s=10, queue_ms=250, reorder=True)

    assert line.command(3, "up") == "line 3 up 50000 500 20000 10000000 250000 1"
