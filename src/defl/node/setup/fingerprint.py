"""Fingerprints: what people read to each other on the phone, and how they are typed in."""

import re

import msgspec

from defl.cards import Card
from defl.errors import UserError
from defl.ids import Digest, digest_of

# 128 bits: making two files with one fingerprint takes 2^64 tries, and the nodes would still refuse
# each other by the full id.
FINGERPRINT_BYTES = 16


def fingerprint(chain: Digest) -> str:
    """The id as people read it to each other on the phone: eight groups of four digits."""
    digits = chain[:FINGERPRINT_BYTES].hex()
    return " ".join(digits[i : i + 4] for i in range(0, len(digits), 4))


def card_fingerprint(card: Card) -> str:
    """A card as people compare it on the phone before they approve it."""
    return fingerprint(digest_of(b"defl/card" + msgspec.msgpack.encode(card)))


def fingerprint_bytes(text: str) -> bytes:
    """A fingerprint as somebody has typed it."""
    digits = re.sub(r"[\s:.-]", "", text).lower()
    if not re.fullmatch(r"[0-9a-f]*", digits) or len(digits) != 2 * FINGERPRINT_BYTES:
        raise UserError(
            f"{text[:80]!r} is not a fingerprint: it has {2 * FINGERPRINT_BYTES // 4} groups of "
            "four digits from 0 to 9 and a to f, as a member's defl federation show prints it"
        )
    return bytes.fromhex(digits)
