"""A connected TCP socket to an address."""

import asyncio
import socket

from defl.node.net.route import DIRECT, Route
from defl.node.net.sockets import set_options
from defl.node.setup.identity import split_address


async def connected_socket(address: str, proxy: None) -> tuple[socket.socket, Route]:  # noqa: ARG001
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    (family, kind, protocol, _, where), *_ = await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    )
    connection = socket.socket(family, kind, protocol)
    connection.setblocking(False)
    try:
        await loop.sock_connect(connection, where)
    except BaseException:
        connection.close()
        raise
    set_options(connection)
    return connection, DIRECT
