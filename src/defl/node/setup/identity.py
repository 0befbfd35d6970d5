"""A node's private identity, and the signed card that it gives to the other members.

One key signs consensus statements, the card, and the TLS certificate. A member's card therefore
states its key, and no third party has to vouch for it. config.py decides which files hold
an identity. The file is long because key, certificate and card are checked against each other.
"""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec.structs import replace

from defl.cards import (
    ADDRESS_CHARACTERS_MAX,
    CERTIFICATE_BYTES_MAX,
    NAME_CHARACTERS_MAX,
    RELAY_ORIGIN,
    SERIAL_MAX,
    Card,
    Reach,
)
from defl.crypto import KEY_BYTES, SIGNATURE_BYTES, Ed25519Scheme, Ed25519Signer
from defl.errors import UserError
from defl.ids import NO_DIGEST, Digest
from defl.node.setup.typed_toml import toml_table

CARD_CHARACTERS_MAX = 4 * CERTIFICATE_BYTES_MAX

# A member whose clock is slow must still accept a certificate that has just been created.
CLOCK_SKEW = timedelta(days=1)
# What `cryptography` raises for parts of a certificate that it reads only when they are asked for.
UNREADABLE = (ValueError, TypeError)
# RFC 5280, 4.1.2.5: no planned expiry. Members leave by an epoch, not by a date.
NO_END = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Identity:
    """A member's secret; it never leaves its machine."""

    name: str
    key: bytes  # the raw private key
    certificate: bytes  # DER

    def __repr__(self) -> str:
        return f"Identity(name={self.name!r}, public_key={self.public_key.hex()})"

    @property
    def public_key(self) -> bytes:
        return self.signer.public_key

    @property
    def signer(self) -> Ed25519Signer:
        return Ed25519Signer(self.key)


def make_identity(
    name: str,
    *,
    key: bytes | None = None,
    valid_from: datetime | None = None,
    valid_until: datetime = NO_END,
) -> Identity:
    """A new key (or the given one) with a self-signed certificate."""
    if defect := _name_defect(name):
        raise UserError(defect)
    private = Ed25519PrivateKey.generate() if key is None else _private_key(key)
    certificate = _certificate(
        private, valid_from or datetime.now(UTC) - CLOCK_SKEW, valid_until
    ).public_bytes(Encoding.DER)
    return Identity(name, private.private_bytes_raw(), certificate)


def _private_key(key: bytes) -> Ed25519PrivateKey:
    if len(key) != KEY_BYTES:
        raise UserError(f"a private key has {KEY_BYTES} bytes, not {len(key)}")
    return Ed25519PrivateKey.from_private_bytes(key)


def _certificate(
    private: Ed25519PrivateKey, valid_from: datetime, valid_until: datetime
) -> x509.Certificate:
    public = private.public_key()
    number = x509.random_serial_number()
    # The subject is unique, so that no certificate hides another one in a trust store.
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, public.public_bytes_raw().hex()),
            x509.NameAttribute(NameOID.SERIAL_NUMBER, f"{number:x}"),
        ]
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public)
        .serial_number(number)
        .not_valid_before(valid_from)
        .not_valid_after(valid_until)
        # Not a certificate authority: a member cannot vouch for other certificates.
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage(
                [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            ),
            critical=False,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(private, algorithm=None)
    )


def key_pem(identity: Identity) -> bytes:
    """The private key in the format that TLS libraries read (PKCS 8)."""
    return Ed25519PrivateKey.from_private_bytes(identity.key).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )


def certificate_pem(certificate: bytes) -> bytes:
    return x509.load_der_x509_certificate(certificate).public_bytes(Encoding.PEM)


def certificate_key(certificate: bytes) -> bytes:
    """The public key in a certificate; a UserError if it is not an Ed25519 key."""
    try:
        key = _loaded(certificate).public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"the certificate's key cannot be read: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise UserError("the certificate's key is not an Ed25519 key")
    return key.public_bytes_raw()


def node_key_of(certificate: bytes) -> bytes | None:
    """The key of a certificate in the form that nodes make; None for any other."""
    try:
        key = certificate_key(certificate)
        if _certificate_defect(certificate, key) is not None:
            return None
        subject = _loaded(certificate).subject
    except (UserError, *UNREADABLE):
        return None
    names = [name.value for name in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return key if names == [key.hex()] else None


def certificate_names(certificate: bytes) -> tuple[str, str]:
    """Subject and issuer; empty if they cannot be read."""
    try:
        loaded = _loaded(certificate)
        return loaded.subject.rfc4514_string(), loaded.issuer.rfc4514_string()
    except (UserError, *UNREADABLE):
        return "", ""


def certificate_validity(certificate: bytes) -> tuple[datetime, datetime]:
    """The start and the end of the certificate's validity."""
    loaded = _loaded(certificate)
    return loaded.not_valid_before_utc, loaded.not_valid_after_utc


def _loaded(certificate: bytes) -> x509.Certificate:
    try:
        return x509.load_der_x509_certificate(certificate)
    except (ValueError, x509.InvalidVersion) as error:
        raise UserError(f"not an X.509 certificate: {error}") from error


def make_card(
    identity: Identity,
    address: str,
    serial: int = 0,
    origin: Digest = NO_DIGEST,
    *,
    reach: Reach = Reach.BOTH,
    relay: bool = False,
) -> Card:
    """A signed card. A member that moves signs another one with a higher serial.

    With `origin` it asks for a place in that running federation, or is a relay's (RELAY_ORIGIN).
    """
    unsigned = Card(
        identity.name,
        identity.public_key,
        identity.certificate,
        address,
        serial,
        b"",
        reach,
        relay,
    )
    if defect := _field_defect(unsigned):
        raise UserError(defect)
    return replace(unsigned, signature=identity.signer.sign(unsigned.statement(origin)))


def says_the_same(one: Card, other: Card) -> bool:
    """Do the cards differ in serial and signature at most?"""
    return replace(one, serial=0, signature=b"") == replace(other, serial=0, signature=b"")


def card_defect(card: Card, origin: Digest = NO_DIGEST) -> str | None:
    """The reason to reject this card, or None. `origin`: as in `make_card`."""
    if defect := _field_defect(card):
        return defect
    if len(card.signature) != SIGNATURE_BYTES:
        return f"the card's signature has {len(card.signature)} bytes, not {SIGNATURE_BYTES}"
    if not _is_signed_for(card, origin):
        return _signature_defect(card, origin)
    if origin == RELAY_ORIGIN and not card.relay:
        return "a relay's card says relay = true"
    return None


def _signature_defect(card: Card, origin: Digest) -> str:
    if mistake := _wrong_kind(card, origin):
        return mistake
    if origin in (NO_DIGEST, RELAY_ORIGIN):
        return "the card's signature does not match its fields: it was altered"
    return "it asks for a place in another federation, or it was altered"


def _wrong_kind(card: Card, origin: Digest) -> str | None:
    """A sound card, but not the one that is asked for."""
    if origin == NO_DIGEST and _is_signed_for(card, RELAY_ORIGIN):
        return "it is a relay's card, and a relay is no member: name it with --relay"
    if origin == NO_DIGEST or not _is_signed_for(card, NO_DIGEST):
        return None
    if origin == RELAY_ORIGIN:
        return (
            "it is a member's card; a member relays if its own card says so: relay = true in its "
            "node.toml, then defl node card"
        )
    return (
        f"it is the card of `defl node init`, which founds federations; {card.name} asks for a "
        "place in this one with defl node join, which writes a .join.toml"
    )


def _is_signed_for(card: Card, origin: Digest) -> bool:
    return Ed25519Scheme().verify(card.key, card.statement(origin), card.signature)


def _field_defect(card: Card) -> str | None:
    if defect := _name_defect(card.name):
        return defect
    if len(card.key) != KEY_BYTES:
        return f"the card's key has {len(card.key)} bytes, not {KEY_BYTES}"
    if not 0 <= card.serial <= SERIAL_MAX:
        return f"the card's serial is {card.serial}, but 0 to {SERIAL_MAX} are allowed"
    if card.relay and card.reach is Reach.DIAL:
        return "a member that nobody can dial cannot be a relay"
    try:
        if card.address or card.reach is Reach.BOTH:
            split_address(card.address)
        return _certificate_defect(card.certificate, card.key)
    except UserError as error:
        return str(error)


def _name_defect(name: str) -> str | None:
    if not 1 <= len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
        return f"a name has 1 to {NAME_CHARACTERS_MAX} printable characters, not {name[:80]!r}"
    return None


def _certificate_defect(certificate: bytes, key: bytes) -> str | None:
    if len(certificate) > CERTIFICATE_BYTES_MAX:
        return f"the certificate has {len(certificate)} bytes, at most {CERTIFICATE_BYTES_MAX}"
    if certificate_key(certificate) != key:
        return "the certificate's key is not the card's"
    loaded = _loaded(certificate)
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(
            loaded.signature, loaded.tbs_certificate_bytes
        )
    except InvalidSignature:
        return "the certificate is not signed by its own key"
    return None


def require_distinct(cards: Sequence[Card], sources: Sequence[object]) -> None:
    """No two members or relays share a name, a key or an address; `sources` say where each card is
    from."""
    first: dict[tuple[str, object], int] = {}
    for index, card in enumerate(cards):
        distinct: list[tuple[str, object, str]] = [
            ("name", card.name, card.name),
            ("key", card.key, card.name),
        ]
        if card.address:
            host, port = split_address(card.address)
            distinct.append(("address", (host.lower(), port), card.address))
        for what, value, shown in distinct:
            earlier = first.setdefault((what, value), index)
            if earlier != index:
                raise UserError(
                    f"{sources[earlier]} and {sources[index]} are cards of one {what} ({shown}); "
                    f"leave one out, or ask one of the two owners for a card with another {what}"
                )


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[IPv6]:port"."""
    refusal = UserError(
        f"{address[:80]!r} is not an address: write host:port, for example node.example.org:7400 "
        "or [2001:db8::1]:7400"
    )
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise refusal
    if not (colon and host and len(address) <= ADDRESS_CHARACTERS_MAX and address.isascii()):
        raise refusal
    if not host.isprintable() or set(host) & set(" /@\"'[]"):
        raise refusal
    if not (port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise refusal
    return host, int(port)


FOUNDER = (
    "# The public card of a DeFL member: give it to the other organisations. Nothing here is\n"
    "# secret, and nothing can be changed: the member's key signs every line.\n"
)
JOINER = (
    "# The public card of a machine that asks for a place in a running federation: give it to a\n"
    "# member, who proposes it. Nothing here is secret, and nothing can be changed: the machine's\n"
    "# key signs every line for this federation alone.\n"
)


RELAY = (
    "# The public card of a DeFL relay: give it to whoever creates the federation's file. Nothing\n"
    "# here is secret, and nothing can be changed: the relay's key signs every line.\n"
)


def card_text(card: Card, about: str = FOUNDER) -> str:
    """The card as a small TOML file."""
    certificate = base64.b64encode(card.certificate).decode()
    return (
        f"{about}"
        f"name = {_quoted(card.name)}\n"
        f"address = {_quoted(card.address)}\n"
        f"reach = {_quoted(card.reach)}\n"
        f"relay = {str(card.relay).lower()}\n"
        f"serial = {card.serial}\n"
        f'key = "{card.key.hex()}"\n'
        f'certificate = "{certificate}"\n'
        f'signature = "{card.signature.hex()}"\n'
    )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def read_card(text: str, source: str = "card", origin: Digest = NO_DIGEST) -> Card:
    """A valid card; a UserError names the source and the field to fix."""
    if len(text) > CARD_CHARACTERS_MAX:
        raise UserError(f"{source}: too long for a card ({len(text)} characters)")
    try:
        fields = toml_table(text)
    except ValueError as error:  # tomllib's errors are ValueErrors too
        raise UserError(f"{source}: not a card: {error}; ask its owner to send it again") from error
    return card_of(fields, source, origin)


CARD_FIELDS: dict[str, type] = {
    "name": str,
    "address": str,
    "reach": str,
    "relay": bool,
    "serial": int,
    "key": str,
    "certificate": str,
    "signature": str,
}


def card_of(fields: dict[str, Any], source: str, origin: Digest = NO_DIGEST) -> Card:
    """A card from the table of a TOML file, checked like `read_card`."""
    for field in fields:
        if field not in CARD_FIELDS:
            raise UserError(f"{source}: a card has no {field!r}; it has {', '.join(CARD_FIELDS)}")
    for field, kind in CARD_FIELDS.items():
        if type(fields.get(field)) is not kind:
            raise UserError(f"{source}: {field!r} must be a {kind.__name__}")
    if fields["reach"] not in set(Reach):
        raise UserError(f"{source}: 'reach' must be one of {', '.join(Reach)}")
    card = Card(
        name=fields["name"],
        key=_bytes(fields["key"], "key", source),
        certificate=_bytes(fields["certificate"], "certificate", source),
        address=fields["address"],
        serial=fields["serial"],
        signature=_bytes(fields["signature"], "signature", source),
        reach=Reach(fields["reach"]),
        relay=fields["relay"],
    )
    if defect := card_defect(card, origin):
        is_sound = _field_defect(card) is None and _wrong_kind(card, origin) is not None
        advice = "" if is_sound else "; ask its owner to send it again"
        raise UserError(f"{source}: {defect}{advice}")
    return card


def _bytes(text: str, field: str, source: str) -> bytes:
    try:
        if field == "certificate":
            return base64.b64decode(text, validate=True)
        return bytes.fromhex(text)
    except (binascii.Error, ValueError) as error:
        form = "base64" if field == "certificate" else "hexadecimal"
        raise UserError(f"{source}: {field!r} is not {form}: {error}") from error
