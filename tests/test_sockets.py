"""Options of TCP sockets, and what the kernel tells of a link."""

import errno
import socket
from typing import Any

import pytest

from defl.node.net.sockets import TCP_RTO_MAX_MS, allow_round_trip, is_stalled, set_options
from support.transports import listener


def test_bytes_that_were_lost_in_a_cut_are_sent_again_every_second() -> None:
    with listener() as bound, socket.create_connection(bound.getsockname()) as connection:
        set_options(connection)
        # Without it the kernel would end such a link after a quarter of a minute.
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) >= 60_000
        try:
            longest_ms = connection.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS)
        except OSError:
            pytest.skip("Linux before 6.15 cannot do that")
        assert longest_ms == 1000


@pytest.mark.parametrize(("resends", "stalled"), [(0, False), (2, False), (3, True), (9, True)])
def test_a_link_is_stalled_when_the_same_bytes_were_sent_in_vain(
    resends: int, stalled: bool
) -> None:
    class LossySocket(socket.socket):
        def getsockopt(self, level: int, option: int, length: int = 0) -> Any:  # type: ignore[override]
            real = super().getsockopt(level, option, length)
            assert isinstance(real, bytes)
            return real[:2] + bytes([resends])

    with LossySocket() as connection:
        assert is_stalled(connection) is stalled
    here, there = socket.socketpair()
    assert not is_stalled(here)  # as through a relay
    here.close()
    there.close()


def test_a_kernel_that_cannot_bound_the_pause_has_the_other_options() -> None:
    class OlderSocket(socket.socket):
        def setsockopt(self, level: int, option: int, value: Any) -> None:  # type: ignore[override]
            if option == TCP_RTO_MAX_MS:
                raise OSError(errno.ENOPROTOOPT, "Protocol not available")
            super().setsockopt(level, option, value)

    with OlderSocket() as connection:
        set_options(connection)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) >= 60_000


@pytest.mark.parametrize(
    ("round_trip_s", "longest_ms"), [(0.01, 1000), (0.25, 1000), (0.7, 2800), (50.0, 10_000)]
)
def test_on_a_slow_line_bytes_are_not_sent_again_before_the_answer_can_have_come(
    round_trip_s: float, longest_ms: int
) -> None:
    with socket.socket() as connection:
        set_options(connection)
        allow_round_trip(connection, round_trip_s)
        try:
            found = connection.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS)
        except OSError:
            pytest.skip("Linux before 6.15 cannot do that")
        assert found == longest_ms
    here, there = socket.socketpair()
    allow_round_trip(here, round_trip_s)  # as through a relay: nothing happens
    here.close()
    there.close()
