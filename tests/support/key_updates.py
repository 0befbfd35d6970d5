"""Makes the records of a TLS 1.3 connection by hand, for tests of what they cost.

The `ssl` module makes the handshake, with whatever certificate, and says the traffic secret; from
then on this end's records are its own, so that it can send what `ssl` cannot: key updates, empty
records, padding, one byte per record.
"""

import asyncio
import hmac
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

APPLICATION_DATA, HANDSHAKE = 23, 22
# A handshake message of type 24 with one byte: 0, no answer wanted, or 1.
KEY_UPDATE = bytes([24, 0, 0, 1, 0])
KEY_UPDATE_WITH_ANSWER = bytes([24, 0, 0, 1, 1])
CIPHERS = {"TLS_AES_256_GCM_SHA384": ("sha384", 32), "TLS_AES_128_GCM_SHA256": ("sha256", 16)}
NONCE_BYTES = 12


class WriteKeys:
    """One direction's keys (RFC 8446, sections 5.3, 7.2 and 7.3)."""

    def __init__(self, cipher: str, secret: bytes) -> None:
        self._hash, self._key_bytes = CIPHERS[cipher]
        self._renew(secret)

    def record(self, kind: int, data: bytes, padding: int = 0) -> bytes:
        inner = data + bytes([kind]) + bytes(padding)
        header = bytes([APPLICATION_DATA, 3, 3]) + (len(inner) + 16).to_bytes(2, "big")
        nonce = (self._sequence ^ self._nonce).to_bytes(NONCE_BYTES, "big")
        self._sequence += 1
        return header + self._key.encrypt(nonce, inner, header)

    def key_update(self, message: bytes = KEY_UPDATE, padding: int = 0) -> bytes:
        record = self.record(HANDSHAKE, message, padding)
        self._renew(self._expand("traffic upd", len(self._secret)))
        return record

    def _renew(self, secret: bytes) -> None:
        self._secret = secret
        self._key = AESGCM(self._expand("key", self._key_bytes))
        self._nonce = int.from_bytes(self._expand("iv", NONCE_BYTES), "big")
        self._sequence = 0

    def _expand(self, label: str, length: int) -> bytes:
        """HKDF-Expand-Label without a context; no key is longer than a hash."""
        name = b"tls13 " + label.encode()
        info = length.to_bytes(2, "big") + bytes([len(name)]) + name + b"\0" + b"\1"
        return hmac.digest(self._secret, info, self._hash)[:length]


class Arrivals:
    """Keeps what comes from a socket for `ssl` to read."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.bio = ssl.MemoryBIO()

    async def more(self) -> bool:
        data = await asyncio.get_running_loop().sock_recv(self._connection, 2**16)
        self.bio.write(data)
        return bool(data)


class RawTls:
    """A connection that this end has called. Nothing is sent but what the owner asks for."""

    def __init__(
        self,
        connection: socket.socket,
        arrivals: Arrivals,
        secured: ssl.SSLObject,
        keys: WriteKeys,
    ) -> None:
        self._connection = connection
        self._arrivals = arrivals
        self._secured = secured
        self.keys = keys

    @classmethod
    async def to(cls, address: tuple[str, int], context: ssl.SSLContext) -> "RawTls":
        loop = asyncio.get_running_loop()
        connection = socket.socket()
        connection.setblocking(False)
        arrivals, outgoing = Arrivals(connection), ssl.MemoryBIO()
        try:
            await loop.sock_connect(connection, address)
            with secrets_of(context) as secret:
                secured = context.wrap_bio(arrivals.bio, outgoing)
                while not is_secured(secured):
                    await loop.sock_sendall(connection, outgoing.read())
                    if not await arrivals.more():
                        raise ConnectionResetError("closed in the handshake")
                await loop.sock_sendall(connection, outgoing.read())
                keys = WriteKeys(cipher_of(secured), secret())
        except OSError:
            connection.close()
            raise
        return cls(connection, arrivals, secured, keys)

    async def send(self, data: bytes) -> None:
        """Sends it as one record."""
        await self.send_records(self.keys.record(APPLICATION_DATA, data))

    async def send_records(self, records: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._connection, records)

    async def receive(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            try:
                data += self._secured.read(length - len(data))
            except ssl.SSLWantReadError:
                if not await self._arrivals.more():
                    raise ConnectionResetError("closed") from None
        return data

    async def ended(self) -> None:
        """Waits until the other end has ended the connection, and closes this one."""
        with suppress(ConnectionError):
            while await self._arrivals.more():
                self._arrivals.bio.read()
        self.close()

    def close(self) -> None:
        self._connection.close()


def is_secured(secured: ssl.SSLObject) -> bool:
    """Takes the handshake as far as it goes."""
    try:
        secured.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def cipher_of(secured: ssl.SSLObject) -> str:
    cipher = secured.cipher()
    assert cipher is not None
    return cipher[0]


@contextmanager
def secrets_of(context: ssl.SSLContext) -> Iterator[Callable[[], bytes]]:
    """The first traffic secret of the calling end, after the handshake."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "keys"
        context.keylog_filename = str(log)

        def secret() -> bytes:
            label = "CLIENT_TRAFFIC_SECRET_0 "
            lines = log.read_text().splitlines()
            return next(bytes.fromhex(x.split()[2]) for x in lines if x.startswith(label))

        yield secret
