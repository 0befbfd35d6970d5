"""TLS contexts that trust the contacts' own certificates and nothing else.

TLS 1.3 with certificates on both sides, without session resumption: every connection shows its
certificate. There is no plaintext mode and no certification authority. Only a letterbox asks its
caller for no certificate (letterbox.py); the caller still pins the certificate of the node it
calls.

A member marks its first record (dial_hints.py), so that the node it dials can tell it from
a stranger before it spends anything on the connection. A context for dialling is good for one
connection: its mark is used up.
"""

import os
import ssl
from collections.abc import Sequence

from defl.cards import Card, Reach
from defl.errors import UserError
from defl.node.net.dial_hints import LETTERBOX_MARK, MarkUse, fresh_mark
from defl.node.setup.identity import (
    Identity,
    certificate_key,
    certificate_pem,
    key_pem,
    split_address,
)

# What the connection speaks, for whoever looks at it on the way (ALPN).
PROTOCOL = "defl/1"
# The first record of a TLS connection: its type, and the end of its length field.
HANDSHAKE = 0x16
RECORD_HEADER_BYTES = 5
# A member's has 300 to 1,600; the beginning of a longer one is enough.
FIRST_BYTES_MAX = 4096


def server_context(identity: Identity, cards: Sequence[Card]) -> ssl.SSLContext:
    """For accepted connections: any contact's certificate passes, and no other."""
    return _pinned(_listening_context(identity), cards)


def client_context(identity: Identity, card: Card) -> ssl.SSLContext:
    """For dialling one member: even another member's certificate is refused."""
    context = _dialling_context(card, fresh_mark(identity, card.key, MarkUse.MEMBER))
    _load_identity(context, identity)
    return context


def relay_client_context(identity: Identity, relay: Card) -> ssl.SSLContext:
    """For dialling a relay; what the relay passes on has a context of its own."""
    context = _dialling_context(relay, fresh_mark(identity, relay.key, MarkUse.RELAY))
    _load_identity(context, identity)
    return context


def letterbox_server_context(identity: Identity) -> ssl.SSLContext:
    """For accepted calls to the letterbox: the caller shows no certificate."""
    context = _listening_context(identity)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_NONE
    return context


def letterbox_client_context(card: Card) -> ssl.SSLContext:
    """For calling one member's letterbox: its certificate is pinned as usual."""
    return _dialling_context(card, LETTERBOX_MARK)


def looking_context() -> ssl.SSLContext:
    """For a look at the certificate that an address shows, whosever it is. Nothing may be sent on
    such a connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def server_name(address: str) -> str:
    """For the SNI: proxies and firewalls decide by it. `ssl` leaves it out for an IP address."""
    return split_address(address)[0].rstrip(".")


def unusable(card: Card) -> str | None:
    """Why no connection can be made with this card, or None. Whether to trust it is decided by
    those who agreed on it."""
    try:
        if card.reach is Reach.BOTH:
            split_address(card.address)[0].encode("idna")  # as for a look-up
        if certificate_key(card.certificate) != card.key:
            return "the certificate's key is not the card's"
        _pinned(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), (card,))
    except (UserError, UnicodeError, ssl.SSLError) as error:
        return str(error)
    return None


def is_first_record(first_bytes: bytes) -> bool:
    """Enough to decide: the complete record, as much of it as is looked at, or no TLS record."""
    if first_bytes[0] != HANDSHAKE:
        return True
    length = int.from_bytes(first_bytes[3:RECORD_HEADER_BYTES], "big")
    whole = min(RECORD_HEADER_BYTES + length, FIRST_BYTES_MAX)
    return len(first_bytes) >= max(RECORD_HEADER_BYTES, whole)


def _listening_context(identity: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    context.set_alpn_protocols([PROTOCOL])
    _load_identity(context, identity)
    return context


def _dialling_context(card: Card, mark: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate itself is pinned; addresses may change
    context.set_alpn_protocols([PROTOCOL, *([mark.decode("ascii")] if mark else [])])
    return _pinned(context, (card,))


def _pinned(context: ssl.SSLContext, cards: Sequence[Card]) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    if cards:  # without any, every certificate is refused
        context.load_verify_locations(cadata=b"".join(card.certificate for card in cards))
    return context


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
