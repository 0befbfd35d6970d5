"""The laboratory's inspecting proxy really inspects: else a node that refuses it proves nothing."""

import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509

from defl.lab.chaos.hosts import Host
from defl.lab.chaos.interceptor import ISSUER, Interceptor, connect_target

WAIT_S = 10.0


class ThisMachine:
    """In place of a host with a network namespace."""

    address = "127.0.0.1"

    def call(self, function: Callable[..., Any], *args: object) -> Any:
        return function(*args)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Interceptor]:
    running = Interceptor(cast("Host", ThisMachine()), tmp_path, port=0)
    yield running
    running.close()


@pytest.fixture
def far() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_S)
        yield server


def tunnel(proxy: Interceptor, far: socket.socket) -> socket.socket:
    caller = socket.create_connection(proxy.address, WAIT_S)
    host, port = far.getsockname()
    caller.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\n\r\n".encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += caller.recv(1)
    assert answer.startswith(b"HTTP/1.1 200")
    return caller


def test_it_reads_what_a_careless_caller_sends(proxy: Interceptor, far: socket.socket) -> None:
    careless = ssl.create_default_context()
    careless.check_hostname = False
    careless.verify_mode = ssl.CERT_NONE

    with tunnel(proxy, far) as caller, careless.wrap_socket(caller) as fooled:
        shown = x509.load_der_x509_certificate(fooled.getpeercert(binary_form=True) or b"")
        fooled.sendall(b"weights")
        assert fooled.recv(1) == b""  # it has read them, and hung up

    assert ISSUER in shown.issuer.rfc4514_string()
    assert proxy.read_bytes == len(b"weights")


def test_a_caller_who_verifies_tells_it_nothing(proxy: Interceptor, far: socket.socket) -> None:
    with tunnel(proxy, far) as caller, pytest.raises(ssl.SSLCertVerificationError):
        ssl.create_default_context().wrap_socket(caller, server_hostname="127.0.0.1")

    assert (proxy.tunnels, proxy.read_bytes) == (1, 0)


def test_turned_off_it_passes_bytes_on_unread(proxy: Interceptor, far: socket.socket) -> None:
    proxy.intercepts = False

    with tunnel(proxy, far) as caller:
        peer, _ = far.accept()
        with peer:
            caller.sendall(b"hello")
            assert peer.recv(100) == b"hello"
            peer.sendall(b"and back")
            assert caller.recv(100) == b"and back"

    assert proxy.read_bytes == 0


@pytest.mark.parametrize(
    ("request_", "target"),
    [
        (b"CONNECT 10.77.0.1:443 HTTP/1.1\r\n\r\n", ("10.77.0.1", 443)),
        (b"GET http://10.77.0.1/ HTTP/1.1\r\n\r\n", None),
        (b"CONNECT 10.77.0.1 HTTP/1.1\r\n\r\n", None),
        (b"CONNECT 10.77.0.1:x HTTP/1.1\r\n\r\n", None),
        (b"", None),
    ],
)
def test_only_connect_requests_have_a_target(
    request_: bytes, target: tuple[str, int] | None
) -> None:
    assert connect_target(request_) == target
