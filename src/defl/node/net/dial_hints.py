"""Dial hints, called marks: a called node tells contacts from strangers before TLS costs anything.

A mark is the name of a second application protocol (ALPN) in the caller's first record. Only the
two nodes of a pair can make it: its key is the X25519 secret of their Ed25519 keys, converted as
libsodium and age do. One key pair may be used for both (Thormarker, "On using the same key pair for
Ed25519 and an X25519 based KEM", 2021). A mark states a time and a nonce, and is good for one
connection: whoever copies it from the line is a stranger. It does not replace the handshake.
"""

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from hashlib import sha512

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from defl.crypto import KEY_BYTES, Ed25519Signer
from defl.node.net.pending import Caller, RelayCaller, Stranger
from defl.node.setup.identity import Identity

MARK_PREFIX = b"defl/mark/"
# The mark of a caller without a certificate. No member's: those are hexadecimal.
LETTERBOX_MARK = MARK_PREFIX + b"handover"
# A caller of a relay says so, also where its mark is not believed: it may share a node's port.
RELAY_PREFIX = MARK_PREFIX + b"relay/"
NAME_BYTES = 8
TIME_BYTES = 8
NONCE_BYTES = 8
TAG_BYTES = 16
HEX_DIGITS = 2 * (NAME_BYTES + TIME_BYTES + NONCE_BYTES + TAG_BYTES)

# How far the clocks of caller and called node may be apart. A caller with a worse one waits among
# the strangers.
MARK_SKEW_S = 600
# Marks of one contact that are remembered as used. It may reconnect two lanes every 3 s for twice
# MARK_SKEW_S, and some more; one that connects more often makes only its own marks forgotten.
USED_MARKS_MAX = 1024

# The prime of both curves: 2^255 - 19.
FIELD = 2**255 - 19


class MarkUse(Enum):
    """Purpose of a call: the node itself, or its relay."""

    MEMBER = b"defl/mark/member"
    RELAY = b"defl/mark/relay"


def fresh_mark(identity: Identity, called: bytes, use: MarkUse) -> bytes:
    """Return a mark for one call to the owner of this public key; empty if the key has none."""
    key = _mark_key(identity.key, called, use, calling=True)
    if key is None:
        return b""
    return mark_of(key, int(time.time()), secrets.token_bytes(NONCE_BYTES), use)


def mark_of(key: bytes, time_s: int, nonce: bytes, use: MarkUse) -> bytes:
    """Return the mark that states this time and nonce; `key` is the pair's, for one direction."""
    stated = time_s.to_bytes(TIME_BYTES, "big") + nonce
    prefix = RELAY_PREFIX if use is MarkUse.RELAY else MARK_PREFIX
    return prefix + (key[:NAME_BYTES] + stated + _tag(key, stated)).hex().encode("ascii")


class ExpectedMarks:
    """The callers that a node expects, each with the marks that it has used up."""

    def __init__(self, identity: Identity, clock: Callable[[], float] = time.time) -> None:
        self._identity = identity
        self._clock = clock
        self._expected: dict[bytes, tuple[Caller, bytes]] = {}  # by the key's name
        self._used: dict[bytes, OrderedDict[bytes, int]] = {}  # name -> nonce -> stated time

    def expect(self, callers: Mapping[Caller, bytes]) -> None:
        """Believe the marks of these callers only, each given with its public key."""
        self._expected = {}
        for caller, public_key in callers.items():
            use = MarkUse.RELAY if isinstance(caller, RelayCaller) else MarkUse.MEMBER
            key = _mark_key(self._identity.key, public_key, use, calling=False)
            if key is not None:
                self._expected[key[:NAME_BYTES]] = caller, key
        self._used = {name: self._used.get(name, OrderedDict()) for name in self._expected}

    def caller_of(self, first_bytes: bytes) -> Caller:
        """Return whose mark a first record bears. The mark is used up."""
        at = first_bytes.find(MARK_PREFIX)
        if at < 0:
            return Stranger.UNMARKED
        if first_bytes.startswith(LETTERBOX_MARK, at):
            return Stranger.LETTERBOX
        relayed = first_bytes.startswith(RELAY_PREFIX, at)
        start = at + len(RELAY_PREFIX if relayed else MARK_PREFIX)
        caller = self._believed(first_bytes[start : start + HEX_DIGITS])
        if caller is None or isinstance(caller, RelayCaller) is not relayed:
            return Stranger.UNMARKED_AT_RELAY if relayed else Stranger.UNMARKED
        return caller

    def _believed(self, digits: bytes) -> Caller | None:
        try:
            mark = bytes.fromhex(digits.decode("ascii"))
        except ValueError:
            return None
        caller, key = self._expected.get(mark[:NAME_BYTES], (None, b""))
        stated = mark[NAME_BYTES:-TAG_BYTES]
        if caller is None or not hmac.compare_digest(mark[-TAG_BYTES:], _tag(key, stated)):
            return None
        return caller if self._is_unused(mark[:NAME_BYTES], stated) else None

    def _is_unused(self, name: bytes, stated: bytes) -> bool:
        """Note a genuine mark; only its owner can add one."""
        now, used = self._clock(), self._used[name]
        time_s, nonce = int.from_bytes(stated[:TIME_BYTES], "big"), stated[TIME_BYTES:]
        if abs(time_s - now) > MARK_SKEW_S or nonce in used:
            return False
        while used and (
            len(used) >= USED_MARKS_MAX or next(iter(used.values())) < now - MARK_SKEW_S
        ):
            used.popitem(last=False)
        used[nonce] = time_s
        return True


def _tag(key: bytes, stated: bytes) -> bytes:
    return hmac.digest(key[NAME_BYTES:], stated, "sha256")[:TAG_BYTES]


@lru_cache(maxsize=512)  # 0.2 ms each; both directions and uses of 100 members
def _mark_key(private_key: bytes, peer: bytes, use: MarkUse, *, calling: bool) -> bytes | None:
    """Return the key of one pair, direction and use: 8 bytes that name it and 24 that make tags."""
    secret = shared_secret(private_key, peer)
    if secret is None:
        return None
    own = Ed25519Signer(private_key).public_key
    caller, called = (own, peer) if calling else (peer, own)
    return hmac.digest(secret, use.value + caller + called, "sha256")


def shared_secret(private_key: bytes, public_key: bytes) -> bytes | None:
    """Return the X25519 secret of an Ed25519 private key and another one's public key, or None if
    the public key has a small order: then everybody would know the secret."""
    scalar = sha512(private_key).digest()[:KEY_BYTES]  # RFC 8032, 5.1.5; X25519 clamps it
    u = montgomery_u(public_key)
    if u is None:
        return None
    try:
        return X25519PrivateKey.from_private_bytes(scalar).exchange(
            X25519PublicKey.from_public_bytes(u)
        )
    except ValueError:  # the secret would be zero
        return None


def montgomery_u(public_key: bytes) -> bytes | None:
    """Convert an Ed25519 public key to X25519's (RFC 7748, 4.1: u = (1 + y) / (1 - y)); None if it
    is not the one encoding of a point, or the neutral one."""
    y = int.from_bytes(public_key, "little") & (2**255 - 1)  # the highest bit is x's sign
    if len(public_key) != KEY_BYTES or y >= FIELD or y == 1:
        return None
    return ((1 + y) * pow(1 - y, -1, FIELD) % FIELD).to_bytes(KEY_BYTES, "little")
