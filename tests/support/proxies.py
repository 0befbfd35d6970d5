"""For tests of reaching others: an HTTP proxy and a TLS inspector on loopback, in threads."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from defl.node.net.proxy import Proxy
from support.doors import TIME_MAX_S, serving

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
PARTS = b"\x00--\x00"  # in an answer: sent apart


def refusal(status: str, *headers: str) -> bytes:
    page = "<html>no</html>"
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(page)}", "", page]
    return "\r\n".join(lines).encode()


def always(answer: bytes) -> Callable[[str], bytes]:
    return lambda _: answer


class TunnelServer:
    """Answers what `reply` says to each request; a tunnel that it opens leads to `hosts`' place of
    that name, or to the address itself."""

    def __init__(self, reply: Callable[[str], bytes], hosts: Mapping[str, int]) -> None:
        self._reply = reply
        self._hosts = hosts
        self.requests: list[str] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.proxy = Proxy("127.0.0.1", self.port)
        self.url = f"http://127.0.0.1:{self.port}"

    def serve(self, connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            part = connection.recv(4096)
            if not part:
                return
            head += part
        request = head.decode()
        self.requests.append(request)
        answer = self._reply(request)
        for part in answer.split(PARTS):
            connection.sendall(part)
        if answer == ESTABLISHED:
            self._splice(connection, request.split()[1])
        elif not answer:
            connection.recv(1)  # silent until the caller leaves

    def _splice(self, connection: socket.socket, address: str) -> None:
        host, port = address.rsplit(":", 1)
        place = ("127.0.0.1", self._hosts[host]) if host in self._hosts else (host, int(port))
        with socket.create_connection(place, TIME_MAX_S) as beyond:
            back = threading.Thread(target=_copy, args=(beyond, connection))
            back.start()
            _copy(connection, beyond)
            back.join(TIME_MAX_S)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def tunnelling(
    reply: Callable[[str], bytes] | None = None, hosts: Mapping[str, int] | None = None
) -> Iterator[TunnelServer]:
    """Opens every tunnel, if it is not told otherwise."""
    server = TunnelServer(reply or always(ESTABLISHED), hosts or {})
    with serving(server.listener, server.serve):
        yield server


# --- A TLS inspector -----------------------------------------------------------------------------


def forged(host: str, signer: Ed25519PrivateKey | None = None) -> tuple[bytes, bytes]:
    """A certificate for this host by the site's own authority, which has expired too: in DER form,
    and as PEM with its key."""
    key = signer or ec.generate_private_key(ec.SECP256R1())
    authority = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "General Hospital"),
            x509.NameAttribute(NameOID.COMMON_NAME, "Inspection CA"),
        ]
    )
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)]))
        .issuer_name(authority)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now - timedelta(days=1))
        .sign(key, None if signer else hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.DER), secret + certificate.public_bytes(Encoding.PEM)


def inspecting_context(folder: Path, host: str, *, tls_1_3: bool = True) -> ssl.SSLContext:
    path = folder / "forged.pem"
    path.write_bytes(forged(host)[1])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    if not tls_1_3:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def inspect(connection: socket.socket, context: ssl.SSLContext, heard: list[bytes]) -> None:
    """Takes the handshake, and whatever is sent on it."""
    with context.wrap_socket(connection, server_side=True) as secure:
        while data := secure.recv(4096):
            heard.append(data)
