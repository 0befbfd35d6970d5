"""A connected TCP socket to an address, directly or through a proxy's tunnel.

What fails is an OSError: the system's own, or ProxyRefused. Each stage has its own time, so that
the error says what did not answer.
"""

import asyncio
import socket
from datetime import UTC, datetime
from typing import Any

from defl.cards import Card
from defl.node.net.obstacles import CallStage, Obstacle, dial_refusal, is_about_certificate
from defl.node.net.proxy import (
    MEMBER_ADVICE,
    PROXY_ANSWER_BYTES_MAX,
    Proxy,
    ProxyRefused,
    connect_request,
    tunnel_is_open,
)
from defl.node.net.refusal import Refusal, Refused
from defl.node.net.route import DIRECT, Route, RouteKind
from defl.node.net.sockets import set_options
from defl.node.net.tls import looking_context, server_name
from defl.node.net.tls_transport import secure
from defl.node.setup.identity import split_address

# A name server that does not answer would otherwise look like a firewall in front of the peer.
NAME_S = 4.0
# Shared by the addresses of a name: one that drops our packets leaves time for the next.
TCP_S = 5.0
ADDRESSES_MAX = 4
# For the proxy to reach the peer and to answer.
ANSWER_S = 6.0
LOOK_S = 5.0


async def connected_socket(address: str, proxy: Proxy | None) -> tuple[socket.socket, Route]:
    """The socket belongs to the caller. With a proxy only the proxy's name is looked up here."""
    if proxy is None:
        return await _dialled(*split_address(address)), DIRECT
    try:
        connection = await _dialled(proxy.host, proxy.port)
    except OSError as error:
        raise ProxyRefused(Refusal.PROXY_DOWN, _unreachable(proxy, error)) from error
    is_open = False
    try:
        await _open_tunnel(connection, address, proxy)
        is_open = True
    finally:
        if not is_open:
            connection.close()
    return connection, Route(RouteKind.PROXY, proxy.address)


async def explained_refusal(
    error: OSError, stage: CallStage, route: Route, card: Card, proxy: Proxy | None
) -> Refused:
    """Why a call to the owner of this card failed; looks at a foreign certificate first."""
    shown = None
    if is_about_certificate(error, stage):
        shown = await shown_certificate(card.address, proxy)
    return dial_refusal(Obstacle(error, stage, route, shown, datetime.now(UTC)), card)


async def shown_certificate(address: str, proxy: Proxy | None) -> bytes | None:
    """The certificate in DER form that somebody shows at this address, unverified: only to be
    described. None if no TLS handshake succeeds."""
    try:
        connection, _ = await connected_socket(address, proxy)
        transport = await secure(
            connection,
            asyncio.Protocol(),
            looking_context(),
            handshake_s=LOOK_S,
            server_name=server_name(address),
        )
    except OSError:
        return None
    der = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
    transport.abort()
    return None if der is None else bytes(der)


async def _dialled(host: str, port: int) -> socket.socket:
    """Tries the addresses in the system's order."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(NAME_S):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError as error:
        raise socket.gaierror(socket.EAI_AGAIN, "the name server does not answer") from error
    except UnicodeError as error:  # a part of the name is longer than names can be
        raise socket.gaierror(socket.EAI_NONAME, str(error)) from error
    first_fault: OSError | None = None
    tried = found[:ADDRESSES_MAX]
    for family, kind, protocol, _, where in tried:
        try:
            return await _attempt(socket.socket(family, kind, protocol), where, TCP_S / len(tried))
        except OSError as error:
            first_fault = first_fault or error
    raise first_fault or socket.gaierror(socket.EAI_NONAME, "the name has no address")


async def _attempt(
    connection: socket.socket, where: tuple[Any, ...], time_s: float
) -> socket.socket:
    is_connected = False
    try:
        connection.setblocking(False)
        async with asyncio.timeout(time_s):
            await asyncio.get_running_loop().sock_connect(connection, where)
        set_options(connection)
        is_connected = True
        return connection
    finally:
        if not is_connected:
            connection.close()


async def _open_tunnel(connection: socket.socket, address: str, proxy: Proxy) -> None:
    loop = asyncio.get_running_loop()
    answer = b""
    try:
        async with asyncio.timeout(ANSWER_S):
            await loop.sock_sendall(connection, connect_request(address, proxy))
            while not tunnel_is_open(answer, address, proxy):
                part = await loop.sock_recv(connection, PROXY_ANSWER_BYTES_MAX - len(answer))
                if not part:
                    raise ProxyRefused(Refusal.NOT_A_PROXY, _hung_up(proxy))
                answer += part
    except TimeoutError as error:
        raise ProxyRefused(
            Refusal.PROXY_NO_WAY,
            f"the proxy {proxy} has not reached {address} within {ANSWER_S:.0f} s; {MEMBER_ADVICE}",
        ) from error
    except ConnectionError as error:
        raise ProxyRefused(Refusal.NOT_A_PROXY, _hung_up(proxy)) from error


def _hung_up(proxy: Proxy) -> str:
    return f"the proxy {proxy} hung up without an answer: is it an HTTP proxy that allows CONNECT?"


def _unreachable(proxy: Proxy, error: OSError) -> str:
    return f"the proxy {proxy} cannot be reached: {_words(error)}"


def _words(error: OSError) -> str:
    match error:
        case TimeoutError():
            return "no answer in time"
        case socket.gaierror():
            return "its name cannot be resolved"
        case ConnectionRefusedError():
            return "nothing listens there"
    return error.strerror or str(error)
