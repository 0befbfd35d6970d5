"""The bounds of a node's traffic in one place."""

from dataclasses import dataclass, field

from defl.budget import TokenBucket
from defl.node.net.acceptor import AcceptLimits
from defl.node.net.dialler import DialLimits
from defl.node.net.letterbox import LetterboxLimits


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """Bounds of a node's traffic. Rates are per peer and lane; beyond them we read more slowly."""

    accept: AcceptLimits = field(default_factory=AcceptLimits)
    dial: DialLimits = field(default_factory=DialLimits)
    letterbox: LetterboxLimits = field(default_factory=LetterboxLimits)
    connect_s: float = 10.0  # TLS and hello together, for a connection that we dial
    queue_frames_max: int = 8192
    # A peer that does not read must not make us hold more small messages. Only one chunk is queued.
    queue_bytes_max: int = 16 * 2**20
    away_frames_max: int = 256  # for a peer that is not connected
    away_bytes_max: int = 2 * 2**20
    messages_per_s: float = 5_000.0
    messages_burst: float = 20_000.0
    bytes_per_s: float = 1e9
    bytes_burst: float = 5e8

    def new_buckets(self, now: float) -> tuple[TokenBucket, TokenBucket]:
        """For the messages and the bytes of one peer and lane."""
        return (
            TokenBucket(self.messages_per_s, self.messages_burst, now),
            TokenBucket(self.bytes_per_s, self.bytes_burst, now),
        )
