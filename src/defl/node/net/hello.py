"""The hello: the first frame on a connection, each way. admission.py judges it."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from defl.crypto import KEY_BYTES
from defl.fields import NUMBER_MAX
from defl.ids import DIGEST_BYTES, NO_DIGEST
from defl.node.net.framing import Lane
from defl.node.net.send_queue import Frame
from defl.node.net.sessions import SESSION_BYTES

# Nodes of another version are refused by name. 2: Pace, Statements, another order of leaders.
# 3: charter and membership make the chain id. 4: epochs. 5: reach, relays, beats, Have.
# 6: sessions. 7: agreed weights. 8: replaced keys in the membership, approvals can be withdrawn.
PROTOCOL_VERSION = 9

NO_SESSION = bytes(SESSION_BYTES)


class Hello(Struct, frozen=True, array_like=True):
    version: int
    origin: Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    epoch: Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
    key: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    lane: Lane
    session: Annotated[bytes, Meta(min_length=SESSION_BYTES, max_length=SESSION_BYTES)]
    # A session of the receiver's key that the sender refuses, since another process has its place.
    refused: Annotated[bytes, Meta(max_length=SESSION_BYTES)] = b""


class _AnyHello(Struct, frozen=True, array_like=True):
    """What the hellos of all versions begin with."""

    version: int


_hello_decoder = msgspec.msgpack.Decoder(Hello)
_any_decoder = msgspec.msgpack.Decoder(_AnyHello)


def encode_hello(hello: Hello) -> bytes:
    return msgspec.msgpack.encode(hello)


def decode_hello(frame: Frame) -> Hello | None:
    """Of another version's hello only the version is read: its other fields may be different."""
    try:
        version = _any_decoder.decode(frame).version
        if version != PROTOCOL_VERSION:
            return Hello(version, NO_DIGEST, 0, bytes(KEY_BYTES), Lane.CONTROL, NO_SESSION)
        return _hello_decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
