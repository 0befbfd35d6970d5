"""Messages as bytes: MessagePack arrays, one canonical form, bounded.

Decoding accepts exactly the bytes that encoding produces (shortest integers, no extra fields, no
other types): every message has one encoding, so equal messages are equal bytes. Anything else is a
`Malformed` peer fault. A peer's bytes never become arbitrary Python objects.
"""

import msgspec

from defl.changes import CHANGE_BYTES_MAX
from defl.errors import Malformed
from defl.ids import DIGEST_BYTES, Digest
from defl.messages import (
    CHUNKS_MAX,
    Chunk,
    ChunkRequest,
    Handover,
    ManifestAnswer,
    ManifestRequest,
    Message,
    NotHeld,
)

# The epoch of the message, big-endian, in front of it.
EPOCH_BYTES = 8
# Named by digest, or proving their own epoch: they mean the same in every epoch, and state none.
EPOCHLESS = (Handover, ManifestRequest, ManifestAnswer, ChunkRequest, Chunk, NotHeld)
NO_EPOCH = bytes(EPOCH_BYTES)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)

# A message's fixed fields and list headers: all but its members' signatures and its chunk.
FRAME_BYTES_BASE = 64 * 2**10
# The largest part per member: its UPD with a signature of each acker, its AGG, its entry in a
# QC, a TC and a state.
BYTES_PER_MEMBER = 2048 + CHANGE_BYTES_MAX  # and a CHANGE, in a block or pending in a state
BYTES_PER_SIGNATURE = 72
# A manifest names every chunk by its digest, with two bytes in front of each.
MANIFEST_BYTES_MAX = CHUNKS_MAX * (DIGEST_BYTES + 2)


def control_frame_bytes_max(members: int) -> int:
    """The longest frame that is not a chunk: a block in which every member updates, or two
    contradicting offers."""
    by_members = members * (BYTES_PER_MEMBER + members * BYTES_PER_SIGNATURE)
    return FRAME_BYTES_BASE + max(by_members, 2 * MANIFEST_BYTES_MAX)


def chunk_frame_bytes_max(chunk_bytes: int) -> int:
    return FRAME_BYTES_BASE + chunk_bytes


def encode(message: Message, epoch: int = 0) -> bytes:
    """One frame."""
    if epoch == 0 or isinstance(message, EPOCHLESS):
        return NO_EPOCH + _encoder.encode(message)
    return epoch.to_bytes(EPOCH_BYTES, "big") + _encoder.encode(message)


# The number of fields, and the tag: which message a frame claims to be, before it is decoded.
_HEAD_BYTES = 2
_CHUNK_HEAD = b"\x94\x23"
_HANDOVER_HEAD = b"\x92\x13"


def says_chunk(frame: bytes | memoryview) -> bool:
    return frame[EPOCH_BYTES : EPOCH_BYTES + _HEAD_BYTES] == _CHUNK_HEAD


def says_handover(frame: bytes | memoryview) -> bool:
    return frame[EPOCH_BYTES : EPOCH_BYTES + _HEAD_BYTES] == _HANDOVER_HEAD


def epoch_of(frame: bytes | memoryview, message: Message) -> int | None:
    """The epoch that the frame of this message states; None: the message is of none."""
    if isinstance(message, EPOCHLESS):
        return None
    return int.from_bytes(frame[:EPOCH_BYTES], "big")


def decode(frame: bytes | memoryview, bytes_max: int) -> Message:
    if len(frame) > bytes_max:
        raise Malformed(f"a frame of {len(frame)} bytes, at most {bytes_max} are allowed")
    try:
        message = _decoder.decode(memoryview(frame)[EPOCH_BYTES:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"not a message: {error}") from error
    if not _is_canonical(message, frame):
        raise Malformed(f"a {type(message).__name__} that is not in canonical form")
    return message


def _is_canonical(message: Message, frame: bytes | memoryview) -> bool:
    """Is this frame what encoding would produce?

    A chunk's data is not encoded again. If the head is canonical and the length is right, the rest
    of the frame is the data itself.
    """
    if not isinstance(message, Chunk):
        stated = frame[:EPOCH_BYTES]
        if isinstance(message, EPOCHLESS) and stated != NO_EPOCH:
            return False
        return _encoder.encode(message) == frame[EPOCH_BYTES:]
    head = chunk_head(message.digest, message.index, len(message.data))
    return len(frame) == len(head) + len(message.data) and frame[: len(head)] == head


def chunk_head(digest: Digest, index: int, size: int) -> bytes:
    """The bytes before a chunk's data in its frame."""
    empty = encode(Chunk(digest, index, memoryview(b"")))
    return empty[: -len(_bin_head(0))] + _bin_head(size)


def _bin_head(size: int) -> bytes:
    """MessagePack's bin 8, bin 16 or bin 32: the shortest that can state the size."""
    if size < 2**8:
        return b"\xc4" + size.to_bytes(1, "big")
    if size < 2**16:
        return b"\xc5" + size.to_bytes(2, "big")
    return b"\xc6" + size.to_bytes(4, "big")
