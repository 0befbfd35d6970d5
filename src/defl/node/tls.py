"""TLS contexts that trust the federation's own certificates and nothing else.

TLS 1.3, both sides show a certificate, no session is resumed (every connection shows it anew).
There is no plaintext mode and no public authority.
"""

import os
import ssl
from collections.abc import Sequence

from defl.node.identity import Card, Identity, certificate_pem, key_pem


def server_context(identity: Identity, cards: Sequence[Card]) -> ssl.SSLContext:
    """For those who call us: any member's certificate is let through, and nobody else's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    return _pinned(context, identity, cards)


def client_context(identity: Identity, card: Card) -> ssl.SSLContext:
    """For the one member whom we call: another member at its address is turned away too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate itself is pinned; addresses may change
    return _pinned(context, identity, (card,))


def _pinned(context: ssl.SSLContext, identity: Identity, cards: Sequence[Card]) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=b"".join(card.certificate for card in cards))
    _load_identity(context, identity)
    return context


def trust_also(context: ssl.SSLContext, card: Card) -> None:
    """A member renewed its certificate; the former passes the handshake yet, but no hello."""
    context.load_verify_locations(cadata=card.certificate)


def _load_identity(context: ssl.SSLContext, identity: Identity) -> None:
    """`ssl` reads keys from files only; pipes spare the key a second place on disk."""
    readers = []
    try:
        for pem in (certificate_pem(identity.certificate), key_pem(identity)):
            reader, writer = os.pipe()
            readers.append(reader)
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(pem)  # far less than a pipe holds, so this does not wait
        certificate, key = (f"/dev/fd/{reader}" for reader in readers)
        context.load_cert_chain(certificate, key)
    finally:
        for reader in readers:
            os.close(reader)
