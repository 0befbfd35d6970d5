"""For tests of `defl node check`: members that answer on loopback, in threads."""

import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from defl.ids import Digest
from defl.node.net.framing import HEADER_BYTES, HELLO_BYTES_MAX, Lane
from defl.node.net.hello import PROTOCOL_VERSION, Hello, encode_hello
from defl.node.net.sessions import SESSION_BYTES
from defl.node.setup.agreement import Agreement
from support.founding import NAMES, agree, defl, init_nodes

TIME_MAX_S = 10.0


@contextmanager
def answering(
    folder: Path, agreement: Agreement, listener: socket.socket, chain: Digest | None = None
) -> Iterator[None]:
    """A member's endpoint: TLS 1.3 for members only, then its hello for the federation `chain`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=b"".join(c.certificate for c in agreement.cards))
    context.load_cert_chain(folder / "node.crt", folder / "node.key")
    card = next(card for card in agreement.cards if card.name == folder.name)
    origin = chain or agreement.federation.chain
    hello = Hello(PROTOCOL_VERSION, origin, 0, card.key, Lane.CONTROL, bytes(SESSION_BYTES))
    with serving(listener, lambda plain: _greet(plain, context, encode_hello(hello))):
        yield


def _greet(plain: socket.socket, context: ssl.SSLContext, hello: bytes) -> None:
    try:
        with context.wrap_socket(plain, server_side=True) as secure:
            secure.recv(HELLO_BYTES_MAX)
            secure.sendall(len(hello).to_bytes(HEADER_BYTES, "big") + hello)
            secure.recv(1)  # until the caller leaves
    except OSError:
        plain.close()


@contextmanager
def serving(listener: socket.socket, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """Serves each connection in a thread of its own; errors of the network end it."""
    listener.listen()
    listener.settimeout(TIME_MAX_S)

    def work(plain: socket.socket) -> None:
        plain.settimeout(TIME_MAX_S)
        with plain, suppress(OSError):
            serve(plain)

    threads: list[threading.Thread] = []

    def accept() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=work, args=(plain,)))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        listener.close()
        for thread in (accepting, *threads):
            thread.join(TIME_MAX_S)


class Doors:
    """Four nodes on free ports of this machine; alice is the one that checks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in NAMES}
        ports = tuple(listener.getsockname()[1] for listener in self.listeners.values())
        self.agreement = agree(folder, init_nodes(folder, ports))
        for name in NAMES:
            shutil.copy(folder / "federation.toml", folder / name)
            shutil.copy(folder / "initial.safetensors", folder / name)
        self.listeners["alice"].close()  # her own port is free: she is not running

    @property
    def alice(self) -> Path:
        return self.folder / "alice"

    def answering(self, name: str) -> Any:
        return answering(self.folder / name, self.agreement, self.listeners[name])

    def close(self) -> None:
        for listener in self.listeners.values():
            listener.close()


def failed_checks(folder: Path, *options: str) -> dict[str, str]:
    result = defl("node", "check", folder, "--json", *options)
    assert result.code == (0 if result.json["ready"] else 1)
    return {c["check"]: c["detail"] for c in result.json["checks"] if not c["holds"]}
