"""Encodes a baseline's messages as transport frames, and decodes them: bounded, typed, canonical.

A message longer than a part travels as several consecutive frames on one lane. Messages with
weights use the weights lane, all others the control lane, as in DeFL.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from defl.committee import Federation
from defl.errors import Malformed
from defl.ids import NodeId
from defl.lab.baselines.machine import Message
from defl.node.net.framing import Lane
from defl.node.net.send_queue import Frame

# With parts of 4 MiB this bounds a message to 64 GiB, beyond any block of any model.
PARTS_MAX = 2**14
# Around the bytes of a part: the tag, three integers, the length, each at its longest.
PART_BYTES_AROUND = 64


class FramePart(Message, frozen=True, tag=0):
    number: Annotated[bytes, Meta(min_length=4, max_length=4)]  # of the message on its lane
    index: Annotated[int, Meta(ge=0, lt=PARTS_MAX)]
    count: Annotated[int, Meta(ge=1, le=PARTS_MAX)]
    data: bytes


class Frames:
    """The wire form of one system's messages."""

    def __init__(self, kinds: Any, *, part_bytes: int, message_bytes_max: int) -> None:
        """`kinds` is the union of the system's messages."""
        self.part_bytes = part_bytes
        self.message_bytes_max = message_bytes_max
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(kinds)
        self._part_decoder = msgspec.msgpack.Decoder(FramePart)

    @property
    def frame_bytes_max(self) -> int:
        return self.part_bytes + PART_BYTES_AROUND

    def encode(self, message: Message, number: int) -> list[bytes]:
        whole = self._encoder.encode(message)
        size = self.part_bytes
        count = -(-len(whole) // size)
        label = (number % 2**32).to_bytes(4, "big")  # fixed length, so sizes do not depend on it
        return [
            self._encoder.encode(FramePart(label, i, count, whole[i * size : (i + 1) * size]))
            for i in range(count)
        ]

    def decode(self, whole: bytes) -> Message:
        try:
            message = self._decoder.decode(whole)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Malformed(f"not a message: {error}") from error
        if self._encoder.encode(message) != whole:
            raise Malformed(f"a {type(message).__name__} that is not in canonical form")
        return message

    def part(self, frame: Frame) -> FramePart:
        try:
            return self._part_decoder.decode(frame)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Malformed(f"not a part of a message: {error}") from error


def frames_for(
    federation: Federation, kinds: Any, *, payloads: int = 1, bytes_around: int
) -> Frames:
    """For messages with at most `payloads` updates or models and `bytes_around` other bytes."""
    schema = federation.schema
    # No codec exceeds float32, or a byte per value and a scale per entry.
    payload = 4 * schema.values + len(schema.shared)
    return Frames(
        kinds,
        part_bytes=federation.chunk_bytes,
        message_bytes_max=payloads * payload + bytes_around,
    )


def lane_of(message: Message) -> Lane:
    return Lane.WEIGHTS if message.weights_bytes else Lane.CONTROL


class Inbox:
    """Reassembles parts; holds one incomplete message per peer and lane."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._open: dict[tuple[NodeId, Lane], tuple[bytes, int, list[bytes]]] = {}

    def take(self, peer: NodeId, lane: Lane, frame: Frame) -> Message | None:
        """The message that this frame completes, if any."""
        part = self._frames.part(frame)
        number, count, data = self._open.pop((peer, lane), (part.number, part.count, []))
        if (number, count, len(data)) != (part.number, part.count, part.index):
            if part.index:
                raise Malformed("a part whose beginning was lost")
            number, count, data = part.number, part.count, []
        if sum(map(len, data)) + len(part.data) > self._frames.message_bytes_max:
            raise Malformed(f"a message of more than {self._frames.message_bytes_max} bytes")
        data.append(part.data)
        if len(data) < count:
            self._open[peer, lane] = (number, count, data)
            return None
        return self._frames.decode(b"".join(data))
