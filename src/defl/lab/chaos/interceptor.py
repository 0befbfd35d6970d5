"""A proxy that intercepts TLS as inspecting firewalls do: it answers for the far side with a
certificate of its own, and would read everything.

It runs in threads of the laboratory's process, with the sockets of one host. Turned off, it is an
ordinary CONNECT proxy.
"""

import socket
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from defl.lab.chaos.hosts import Host

PORT = 3128
ISSUER = "Example Inspection CA"
REQUEST_BYTES_MAX = 8192
WAIT_S = 10.0
PIECE_BYTES = 65536


class Interceptor:
    def __init__(self, host: Host, folder: Path, port: int = PORT) -> None:
        self.intercepts = True
        self.tunnels = 0  # asked for
        self.read_bytes = 0  # of what was meant to be secret: 0 if everybody refuses
        self._host = host
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._server = host.call(socket.create_server, (host.address, port))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._server.getsockname()
        return host, port

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._server.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(caller,), daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        with caller, suppress(OSError):  # ssl.SSLError is one: the caller has refused us
            caller.settimeout(WAIT_S)
            target = connect_target(self._request(caller))
            if target is None:
                caller.sendall(b"HTTP/1.1 405 Only CONNECT\r\n\r\n")
                return
            self.tunnels += 1
            address, _ = target
            try:
                far = self._host.call(socket.create_connection, target, WAIT_S)
            except OSError:
                caller.sendall(b"HTTP/1.1 502 Bad gateway\r\n\r\n")
                return
            with far:
                caller.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                if not self.intercepts:
                    _splice(caller, far)
                    return
                with self._forged(address).wrap_socket(caller, server_side=True) as fooled:
                    self.read_bytes += len(fooled.recv(PIECE_BYTES))

    def _request(self, caller: socket.socket) -> bytes:
        request = b""
        while b"\r\n\r\n" not in request and len(request) < REQUEST_BYTES_MAX:
            if not (piece := caller.recv(REQUEST_BYTES_MAX)):
                break
            request += piece
        return request

    def _forged(self, address: str) -> ssl.SSLContext:
        """What answers in the name of this address."""
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, address)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, ISSUER)]))
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=30))
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        file = self._folder / f"forged-{address}-{threading.get_ident()}.pem"
        key = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        file.write_bytes(key + certificate.public_bytes(Encoding.PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        file.unlink()
        return context


def connect_target(request: bytes) -> tuple[str, int] | None:
    """Host and port of a CONNECT request; None if it is something else."""
    words = request.split(b"\r\n", 1)[0].split()
    if len(words) != 3 or words[0] != b"CONNECT":
        return None
    host, colon, port = words[1].decode("ascii", "replace").rpartition(":")
    return (host, int(port)) if colon and port.isdecimal() else None


def _splice(one: socket.socket, other: socket.socket) -> None:
    """Both ways, until both have ended."""
    for end in (one, other):
        end.settimeout(None)
    back = threading.Thread(target=_copy, args=(other, one), daemon=True)
    back.start()
    _copy(one, other)
    back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(PIECE_BYTES):
            sink.sendall(piece)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
