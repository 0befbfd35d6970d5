"""One blob being fetched: what is missing, what is on its way, and who holds what."""

from dataclasses import dataclass, field

from defl.ids import NodeId
from defl.messages import Manifest
from defl.pool.scatter import Scatter

NEVER = float("inf")


@dataclass(slots=True)
class Rest:
    failures: int
    until: float


@dataclass(slots=True)
class Fetch:
    manifest: Manifest | None = None
    missing: int = 0  # bitmaps of chunks, like all below
    under_way: int = 0
    asked: dict[int, NodeId] = field(default_factory=dict)  # of whom each piece was requested
    holders: dict[NodeId, int] = field(default_factory=dict)
    announcers: set[NodeId] = field(default_factory=set)  # holders by their own word alone
    announced: list[int] = field(default_factory=lambda: [0])  # k: the chunks that k members did
    resting: dict[NodeId, Rest] = field(default_factory=dict)
    unreliable: set[NodeId] = field(default_factory=set)  # did not send what they announced
    scatter: Scatter | None = None
    share: int = 0
    share_at: float | None = None  # when the own share was complete
    place: int = 0  # from where on equally rare chunks are requested

    def start_chunks(self, manifest: Manifest, held: frozenset[int]) -> None:
        self.manifest = manifest
        self.missing = sum(1 << i for i in range(len(manifest.chunks)) if i not in held)
        self.announced = [(1 << len(manifest.chunks)) - 1]

    def is_author(self, source: NodeId) -> bool:
        """Of an update that is on its way to all."""
        return self.scatter is not None and self.scatter.author == source

    def is_resting(self, source: NodeId, now: float) -> bool:
        rest = self.resting.get(source)
        return rest is not None and now < rest.until

    def count_announced(self, chunks: int) -> None:
        """One more member announces these."""
        self.announced.append(0)
        for count in reversed(range(len(self.announced) - 1)):
            more = self.announced[count] & chunks
            self.announced[count] ^= more
            self.announced[count + 1] |= more
        self._trim()

    def uncount_announced(self, chunks: int) -> None:
        for count in range(1, len(self.announced)):
            fewer = self.announced[count] & chunks
            self.announced[count] ^= fewer
            self.announced[count - 1] |= fewer
        self._trim()

    def _trim(self) -> None:
        while len(self.announced) > 1 and not self.announced[-1]:
            self.announced.pop()

    def rarest(self, chunks: int) -> int:
        """Of these chunks the one that fewest members announced; members begin at different ones,
        and in different rows of shares."""
        rarest = next(fewest for known in self.announced if (fewest := known & chunks))
        width = len(self.scatter.receivers) if self.scatter is not None else 1
        rows = -(-len(self.manifest.chunks) // width) if self.manifest is not None else 1
        row = _first_from(rarest, self.place % rows * width) // width
        in_row = rarest >> row * width & (1 << width) - 1
        return row * width + _first_from(in_row, self.place % width)


def _first_from(bitmap: int, start: int) -> int:
    """The lowest bit from this one on, or else the lowest."""
    above = bitmap >> start << start
    return lowest_bit(above or bitmap)


def lowest_bit(bitmap: int) -> int:
    return (bitmap & -bitmap).bit_length() - 1
