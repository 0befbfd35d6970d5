"""TLS contexts that trust the federation's own certificates and nothing else.

TLS 1.3 with certificates on both sides, without session resumption: every connection shows its
certificate. There is no plaintext mode and no certification authority.

A member marks its first record, so that the node it dials can tell it from a stranger before it
spends anything on the connection. The mark proves nothing; the handshake does.
"""

import os
import ssl
from collections.abc import Sequence

from defl.cards import Card
from defl.ids import digest_of
from defl.node.setup.identity import Identity, certificate_pem, key_pem

# The mark travels as the name of an application protocol (ALPN), which may have 255 bytes.
MARK_PREFIX = b"defl/"
MARK_BYTES = len(MARK_PREFIX) + 32
# The first record of a TLS connection: its type, and the end of its length field.
HANDSHAKE = 0x16
RECORD_HEADER_BYTES = 5
# A member's has 300 to 1,600; the beginning of a longer one is enough.
FIRST_BYTES_MAX = 4096


def server_context(identity: Identity, cards: Sequence[Card]) -> ssl.SSLContext:
    """For accepted connections: any member's certificate passes, and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    return _pinned(context, identity, cards)


def client_context(identity: Identity, card: Card) -> ssl.SSLContext:
    """For dialling one member: even another member's certificate is refused."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate itself is pinned; addresses may change
    context.set_alpn_protocols([mark_of(identity.certificate, card.certificate).decode("ascii")])
    return _pinned(context, identity, (card,))


def mark_of(caller: bytes, called: bytes) -> bytes:
    """Derived from both certificates. A stranger can know the caller's only from its card: TLS 1.3
    shows it only to the node that is dialled."""
    secret = digest_of(digest_of(caller) + digest_of(called)).hex()
    return MARK_PREFIX + secret[: MARK_BYTES - len(MARK_PREFIX)].encode("ascii")


def marked(first_bytes: bytes) -> bytes:
    """The mark in a caller's first bytes, or nothing."""
    at = first_bytes.find(MARK_PREFIX)
    return first_bytes[at : at + MARK_BYTES] if at >= 0 else b""


def is_first_record(first_bytes: bytes) -> bool:
    """Enough to decide: the complete record, as much of it as is looked at, or no TLS record."""
    if first_bytes[0] != HANDSHAKE:
        return True
    length = int.from_bytes(first_bytes[3:RECORD_HEADER_BYTES], "big")
    whole = min(RECORD_HEADER_BYTES + length, FIRST_BYTES_MAX)
    return len(first_bytes) >= max(RECORD_HEADER_BYTES, whole)


def _pinned(context: ssl.SSLContext, identity: Identity, cards: Sequence[Card]) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=b"".join(card.certificate for card in cards))
    _load_identity(context, identity)
    return context


def trust_also(context: ssl.SSLContext, card: Card) -> None:
    """Adds a renewed certificate. The old one still passes the handshake, but not the hello."""
    context.load_verify_locations(cadata=card.certificate)


def _load_identity(context: ssl.SSLContext, identity: Identity) -> None:
    """`ssl` reads keys from files only; pipes avoid a second copy of the key on disk."""
    readers = []
    try:
        for pem in (certificate_pem(identity.certificate), key_pem(identity)):
            reader, writer = os.pipe()
            readers.append(reader)
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(pem)  # far less than a pipe holds, so this does not block
        certificate, key = (f"/dev/fd/{reader}" for reader in readers)
        context.load_cert_chain(certificate, key)
    finally:
        for reader in readers:
            os.close(reader)
