"""Signed statements: what exactly is signed, and by which scheme.

A statement is SHA-256(tag ‖ chain id ‖ epoch ‖ fields…). The tag separates the kinds (a vote
can never be read as a timeout), the chain id the federations, the epoch the memberships.
"""

from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from defl.ids import Digest, digest_of

KEY_BYTES = 32
SIGNATURE_BYTES = 64


class Tag(Enum):
    """One tag for each kind of statement."""

    PROPOSAL = b"defl/proposal"
    VOTE = b"defl/vote"
    TIMEOUT = b"defl/timeout"
    OFFER = b"defl/offer"
    STORE_ACK = b"defl/store-ack"
    UPD = b"defl/upd"
    AGG = b"defl/agg"
    CHANGE = b"defl/change"
    APPROVE = b"defl/approve"
    READY = b"defl/ready"
    PACE = b"defl/pace"
    ATTESTATION = b"defl/attestation"
    CARD = b"defl/card"


@lru_cache(maxsize=256)
def _prefix(tag: Tag, chain: Digest, epoch: int) -> bytes:
    return bytes([len(tag.value)]) + tag.value + chain + epoch.to_bytes(8, "big")


def statement(tag: Tag, chain: Digest, epoch: int, *fields: int | bytes) -> Digest:
    """The 32 bytes that are signed. Integers take 8 bytes; bytes are prefixed with their length."""
    parts = [_prefix(tag, chain, epoch)]
    for field in fields:
        if isinstance(field, int):
            parts.append(field.to_bytes(8, "big"))
        else:
            parts.append(len(field).to_bytes(4, "big"))
            parts.append(field)
    return digest_of(b"".join(parts))


class Signer(Protocol):
    """Holds one member's private key."""

    @property
    def public_key(self) -> bytes: ...

    def sign(self, message: Digest) -> bytes: ...


class Scheme(Protocol):
    """Verifies the signature of any member."""

    def verify(self, public_key: bytes, message: Digest, signature: bytes) -> bool: ...


class Ed25519Signer:
    """RFC 8032 signatures; deterministic, so the same statement always gives the same bytes."""

    def __init__(self, private_key: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(private_key)
        self._public_key = self._key.public_key().public_bytes_raw()

    @property
    def public_key(self) -> bytes:
        return self._public_key

    def sign(self, message: Digest) -> bytes:
        return self._key.sign(message)


class ReportingSigner:
    """Another signer that reports each signature it makes."""

    def __init__(self, signer: Signer, report: Callable[[Digest, bytes], None]) -> None:
        self._signer = signer
        self._report = report

    @property
    def public_key(self) -> bytes:
        return self._signer.public_key

    def sign(self, message: Digest) -> bytes:
        signature = self._signer.sign(message)
        self._report(message, signature)
        return signature


class Ed25519Scheme:
    def verify(self, public_key: bytes, message: Digest, signature: bytes) -> bool:
        try:
            _loaded_key(public_key).verify(signature, message)
        except InvalidSignature:
            return False
        return True


@lru_cache(maxsize=256)
def _loaded_key(public_key: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(public_key)
