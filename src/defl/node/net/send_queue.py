"""Frames that wait to be sent on one lane, and the counts of its traffic."""

import asyncio
from collections import deque
from dataclasses import dataclass

Frame = bytes | memoryview  # a large one is a read-only view of its own memory


@dataclass(slots=True)
class Traffic:
    """Counts of one lane; bytes include the frames' headers, not beats."""

    bytes_in: int = 0
    bytes_out: int = 0
    frames_in: int = 0
    frames_out: int = 0
    dropped: int = 0  # frames for a full queue, and the oldest ones while the peer was away

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.bytes_in + other.bytes_in,
            self.bytes_out + other.bytes_out,
            self.frames_in + other.frames_in,
            self.frames_out + other.frames_out,
            self.dropped + other.dropped,
        )


class SendQueue:
    """Frames to be sent on one lane; outlives the lane's connections."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._frames: deque[Frame] = deque()
        self.bytes = 0
        self.empty = asyncio.Event()
        self.empty.set()

    def __len__(self) -> int:
        return len(self._frames)

    def __bool__(self) -> bool:
        return bool(self._frames)

    def offer(self, frame: Frame, *, frames_max: int, bytes_max: int) -> bool:
        """Queues the frame unless that exceeds a bound; an empty queue takes any frame."""
        full = len(self._frames) >= frames_max or self.bytes + len(frame) > bytes_max
        if full and self._frames:
            self._traffic.dropped += 1
            return False
        self._frames.append(frame)
        self.bytes += len(frame)
        self.empty.clear()
        return True

    def push(self, frame: Frame, *, frames_max: int, bytes_max: int) -> None:
        """Queues the frame and drops the oldest: while a peer is away, newer frames matter more."""
        while not self.offer(frame, frames_max=frames_max, bytes_max=bytes_max):
            self.pop()

    def pop(self) -> Frame:
        frame = self._frames.popleft()
        self.bytes -= len(frame)
        if not self._frames:
            self.empty.set()
        return frame

    def head_bytes(self) -> int:
        return len(self._frames[0])

    def clear(self) -> None:
        self._traffic.dropped += len(self._frames)
        self._frames.clear()
        self.bytes = 0
        self.empty.set()
