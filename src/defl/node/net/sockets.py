"""The TCP sockets under the links: listening, and options."""

import asyncio
import contextlib
import socket
import sys

from defl.errors import UserError

BACKLOG = 128
# A machine that vanishes closes nothing. The heartbeat notices, and keeps idle links alive: TCP's
# keepalive is not needed. Only while we do not read is a link left to the kernel, which ends it if
# the peer takes no bytes for this long; a peer that is too busy to read looks the same.
USER_TIMEOUT_MS = 120_000
# The longest pause before lost bytes are sent again: a link is in use a second after a cut has
# healed. Linux before 6.15 doubles the pause each time, so that there a link may need as long again
# as the cut has lasted; if that is more than a minute, it is dialled anew. With so short a pause
# the kernel would give up after 15 s, if it had no TCP_USER_TIMEOUT.
RESEND_MS = 1000
TCP_RTO_MAX_MS = 44  # Python has no name for it yet


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
            "or is the address not this machine's? See `listen` in node.toml"
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
