"""What a member and a relay say to each other before the relay copies bytes.

The member, whose key its certificate proves, makes one request per connection. To a PARK the relay
answers PARKED; from then on the member sends a BEAT now and then, which the relay returns. When
the other member calls, the relay says GO, and the parked member answers READY, its last frame. To
a CALL the relay answers GO once the parked member is ready, or ABSENT. What follows on both
connections is the members' own, and no business of the relay's. Nothing here waits or reads.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from defl.crypto import KEY_BYTES
from defl.ids import DIGEST_BYTES, NO_DIGEST
from defl.node.net.framing import Lane

# Apart from the members' own version: a relay need not change with every release of theirs.
RELAY_VERSION = 1
# A request has about 100, a refusal somewhat more.
RELAY_FRAME_BYTES_MAX = 256
REASON_CHARACTERS_MAX = 160


class Verb(StrEnum):
    PARK = "park"  # wait for the peer's call
    CALL = "call"  # connect me to the peer, which has parked for me
    PROBE = "probe"  # do you serve me? (`defl node check`); the peer is not looked at


class Request(Struct, frozen=True, array_like=True):
    version: int
    origin: Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    verb: Verb
    peer: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    lane: Lane


class Signal(StrEnum):
    PARKED = "parked"
    ABSENT = "absent"  # the peer is not parked here
    GO = "go"  # the next byte is the peer's
    READY = "ready"  # the parked member's answer to GO
    BEAT = "beat"
    KNOWN = "known"  # the answer to a probe
    REFUSED = "refused"


class Notice(Struct, frozen=True, array_like=True):
    signal: Signal
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)] = ""


class _AnyRequest(Struct, frozen=True, array_like=True):
    """What the requests of all versions begin with."""

    version: int


_requests = msgspec.msgpack.Decoder(Request)
_any_requests = msgspec.msgpack.Decoder(_AnyRequest)
_notices = msgspec.msgpack.Decoder(Notice)


def encode(frame: Request | Notice) -> bytes:
    return msgspec.msgpack.encode(frame)


def decode_request(frame: bytes) -> Request | None:
    """Of another version's request only the version is read."""
    try:
        version = _any_requests.decode(frame).version
        if version != RELAY_VERSION:
            return Request(version, NO_DIGEST, Verb.CALL, bytes(KEY_BYTES), Lane.CONTROL)
        return _requests.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def decode_notice(frame: bytes) -> Notice | None:
    try:
        return _notices.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def calls(key: bytes, peer: bytes) -> bool:
    """Of a pair the member with the lower key calls, and the other one parks."""
    return key < peer
