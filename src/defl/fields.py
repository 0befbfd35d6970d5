"""The fields that messages are made of: their types with their bounds, and bitmaps of members."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated

from msgspec import Meta

from defl.crypto import SIGNATURE_BYTES
from defl.ids import DIGEST_BYTES, Digest, Height, NodeId, Round, View

# A federation has at most this many members: votes go to all, so traffic grows with n squared.
MEMBERS_MAX = 100
# An agreed weight is relative: 1 to 1,000 covers sites from 18 to 18,000 examples.
WEIGHT_DEFAULT = 1
WEIGHT_MAX = 1000
# The largest number on the wire: it fits a signed 64-bit integer everywhere.
NUMBER_MAX = 2**63 - 1
# Votes, acks and attestations of all members share few statements and bitmaps: those of the last
# few views, and of the updates of a round or two, are computed once.
STATEMENTS_CACHED = 512

_Number = Meta(ge=0, le=NUMBER_MAX)
_Hash = Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)
AView = Annotated[View, _Number]
ARound = Annotated[Round, _Number]
AHeight = Annotated[Height, _Number]
ANumber = Annotated[int, _Number]
AMember = Annotated[NodeId, Meta(ge=0, lt=MEMBERS_MAX)]
AWeight = Annotated[int, Meta(ge=1, le=WEIGHT_MAX)]
ADigest = Annotated[Digest, _Hash]
ASignature = Annotated[bytes, Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
ASigners = Annotated[bytes, Meta(max_length=(MEMBERS_MAX + 7) // 8)]  # a bitmap of members
ASignatures = Annotated[tuple[ASignature, ...], Meta(max_length=MEMBERS_MAX)]


def bitmap_of(members: Iterable[NodeId], count: int) -> bytes:
    """Member i is bit i mod 8 of byte i div 8; the length depends only on `count`."""
    bits = 0
    for member in members:
        bits |= 1 << member
    return bits.to_bytes((count + 7) // 8, "little")


@lru_cache(STATEMENTS_CACHED)
def members_in(bitmap: bytes) -> tuple[NodeId, ...]:
    members = []
    bits = int.from_bytes(bitmap, "little")
    while bits:
        lowest = bits & -bits
        members.append(NodeId(lowest.bit_length() - 1))
        bits ^= lowest
    return tuple(members)


def is_in(bitmap: bytes, member: NodeId) -> bool:
    return len(bitmap) > member >> 3 and bool(bitmap[member >> 3] >> (member & 7) & 1)
