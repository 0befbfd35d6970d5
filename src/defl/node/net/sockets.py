"""The TCP sockets under the links: listening, and options."""

import asyncio
import contextlib
import socket
import sys
from functools import cache

from defl.errors import UserError

BACKLOG = 128
# A machine that vanishes closes nothing. The heartbeat notices, and keeps idle links alive: TCP's
# keepalive is not needed. Only while we do not read is a link left to the kernel, which ends it if
# the peer takes no bytes for this long; a peer that is too busy to read looks the same.
USER_TIMEOUT_MS = 120_000
# The longest pause before lost bytes are sent again: a link is in use a second after a cut has
# healed. Linux before 6.15 doubles the pause each time, up to the length of the cut; there a call
# replaces a stalled link (dialler.py). With so short a pause the kernel would give up after 15 s,
# if it had no TCP_USER_TIMEOUT.
RESEND_MS = 1000
# But never before an answer may have come: on a slow line it waits behind other packets. More is
# not allowed to a peer that answers late on purpose.
ROUND_TRIPS = 4
RESEND_MS_MAX = 10_000
TCP_RTO_MAX_MS = 44  # Python has no name for it yet
# So often in a row the same bytes were sent in vain, and the next pause is a second or more.
STALLED_RESENDS = 3
TCP_INFO_RESENDS = 2  # the place of that count among the first bytes of Linux' tcp_info


async def listening(listen: tuple[str, int] | socket.socket) -> socket.socket:
    """A listening socket at this address, or the given one."""
    if isinstance(listen, socket.socket):
        listen.setblocking(False)
        return listen
    host, port = listen
    loop = asyncio.get_running_loop()
    try:
        addresses = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, address = addresses[0]
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port}: {error}; is the port taken by another program, "
            "or is the address not this machine's? See `listen` in its settings"
        ) from error
    listener.setblocking(False)
    return listener


def set_options(connection: socket.socket) -> None:
    if connection.family == socket.AF_UNIX:  # the local end of a relayed link
        return
    # A small frame must not wait until the one before it is acknowledged, up to 40 ms. asyncio sees
    # to it for dialled connections only: an accepted socket does not know that it is TCP.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "linux":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
        with contextlib.suppress(OSError):  # an older kernel
            connection.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, RESEND_MS)


def allow_round_trip(connection: socket.socket | None, round_trip_s: float) -> None:
    pause_ms = min(RESEND_MS_MAX, max(RESEND_MS, round(1000 * ROUND_TRIPS * round_trip_s)))
    if connection is not None and sys.platform == "linux":
        with contextlib.suppress(OSError):  # an older kernel, or a relay's connection
            connection.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, pause_ms)


@cache
def bounds_pauses() -> bool:
    """The kernel can keep the pauses short: no link stalls."""
    with socket.socket() as connection:
        set_options(connection)
        return _resends_soon(connection)


def is_stalled(connection: socket.socket) -> bool:
    """Bytes were lost again and again, and the kernel waits longer and longer."""
    if sys.platform != "linux":
        return False
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_RESENDS + 1)
    except OSError:  # not TCP: a relay's connection ends in this process
        return False
    return info[TCP_INFO_RESENDS] >= STALLED_RESENDS


def _resends_soon(connection: socket.socket) -> bool:
    try:
        return connection.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS) == RESEND_MS
    except OSError:
        return False
