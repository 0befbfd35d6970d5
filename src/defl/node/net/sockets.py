"""The TCP sockets under the links: listening, and options."""

import asyncio
import socket

from defl.errors import UserError

BACKLOG = 128
# A machine that vanishes closes nothing: an idle link is dead after 30 s. With bytes in flight the
# wait is longer, since a peer that is too busy to read looks the same to the kernel.
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 120_000}


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
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        option = getattr(socket, name, None)  # not every system has them all
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
