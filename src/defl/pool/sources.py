"""The peers that serve this node: how fast each one is, what it was asked for, and how long it may
take to answer.

A peer's rate is remembered across blobs and rounds. A peer answers in order, so an answer gives
those asked for after it more time, and none to those before it.
"""

from dataclasses import dataclass, field

from defl.ids import Digest

# How long an answer may take: so long in any case, and some times what a chunk usually takes.
ANSWER_WAIT_S = 4.0
ANSWER_WAIT_CHUNKS = 4.0
ANSWER_WAIT_MAX_S = 128.0
# The rate of a source that has sent nothing yet: with the waits above, a line of 2 Mbit/s that six
# members share is not given up (a chunk of 1 MiB takes 24 s).
FIRST_BYTES_PER_S = 175_000.0
# The weight of the newest chunk in the estimate.
NEWEST_SHARE = 0.3
# Outstanding chunks per source: one, and as many as come within this time. They keep the link busy
# while the next request travels and the source reads its disk.
IN_FLIGHT_S = 0.5
IN_FLIGHT_MAX = 8
SHORTEST_CHUNK_S = 1e-6  # two may come in one moment

Piece = tuple[Digest, int]  # of a blob: the chunk's index, or MANIFEST
MANIFEST = -1


@dataclass(slots=True)
class ChunkSource:
    first_s: float  # what a chunk takes as long as nothing is known
    # Seconds per chunk, measured while its answers share this node's line with those of others.
    chunk_s: float | None = None
    asked: dict[Piece, float] = field(default_factory=dict)  # since when each may be on its way
    answered_at: float = float("-inf")
    failures: int = 0  # in a row
    ready_at: float = float("-inf")
    away: bool = False  # not connected
    is_met: bool = False  # it was connected once; else it may never have been there
    fetches: dict[Digest, None] = field(default_factory=dict)  # blobs that it serves

    @property
    def expected_s(self) -> float:
        """What one chunk takes."""
        return max(SHORTEST_CHUNK_S, self.first_s if self.chunk_s is None else self.chunk_s)

    @property
    def next_s(self) -> float:
        """When one more chunk, asked for now, will be here."""
        return (len(self.asked) + 1) * self.expected_s

    @property
    def turn(self) -> tuple[bool, float]:
        """Whoever has not been met is asked for what is left by the others."""
        return not self.is_met, self.next_s

    @property
    def manifest_turn(self) -> tuple[bool, int, float]:
        """A new connection forgives failures. A slow source may still take minutes to fail, and a
        manifest is requested of one source at a time."""
        return not self.is_met, self.failures, self.expected_s

    @property
    def wait_s(self) -> float:
        return min(ANSWER_WAIT_MAX_S, ANSWER_WAIT_S + ANSWER_WAIT_CHUNKS * self.expected_s)

    @property
    def has_room(self) -> bool:
        in_time = 0 if self.failures else int(IN_FLIGHT_S / self.expected_s)
        return len(self.asked) < min(IN_FLIGHT_MAX, 1 + in_time)

    def is_ready(self, now: float) -> bool:
        return not self.away and self.ready_at <= now

    def ask(self, piece: Piece, now: float) -> None:
        self.asked[piece] = now

    def answered(self, piece: Piece, now: float) -> None:
        since = self.asked.get(piece)
        if since is None:
            return
        self.failures = 0
        self.answered_at = now
        behind = False
        for other in self.asked:
            if behind:
                self.asked[other] = now
            behind = behind or other == piece
        del self.asked[piece]
        if piece[1] != MANIFEST:
            self._learn(now - since)

    def _learn(self, seconds: float) -> None:
        if self.chunk_s is None:
            self.chunk_s = seconds
        else:
            self.chunk_s += NEWEST_SHARE * (seconds - self.chunk_s)

    def timed_out(self, now: float) -> None:
        """It was silent for too long: it rests, longer each time, and counts as slower."""
        self.slow_down()
        self.ready_at = now + rest_s(self.failures)
        self.failures += 1

    def put_last(self, digest: Digest) -> None:
        """A blob that it does not serve must not keep others waiting."""
        if digest in self.fetches:
            del self.fetches[digest]
            self.fetches[digest] = None

    def slow_down(self) -> None:
        self.chunk_s = min(ANSWER_WAIT_MAX_S, 2 * self.expected_s)

    def met(self) -> None:
        """It is connected again."""
        self.away = False
        self.is_met = True
        self.failures = 0
        self.ready_at = float("-inf")

    @property
    def due_at(self) -> float:
        """When the oldest answer is overdue."""
        return min(self.asked.values(), default=float("inf")) + self.wait_s


def rest_s(failures: int) -> float:
    return float(min(ANSWER_WAIT_MAX_S, ANSWER_WAIT_S * 2.0 ** min(failures, 8)))
