"""One blob being fetched: what is missing, what is on its way, and who holds what."""

from collections.abc import Iterator
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
    rarity: list[int] = field(default_factory=list)  # how many announced each chunk
    resting: dict[NodeId, Rest] = field(default_factory=dict)
    unreliable: set[NodeId] = field(default_factory=set)  # did not send what they announced
    scatter: Scatter | None = None
    share: int = 0
    share_at: float | None = None  # when the own share was complete
    place: int = 0  # from where on equally rare chunks are requested

    def start_chunks(self, manifest: Manifest, held: frozenset[int]) -> None:
        self.manifest = manifest
        self.missing = sum(1 << i for i in range(len(manifest.chunks)) if i not in held)
        self.rarity = [0] * len(manifest.chunks)

    def is_author(self, source: NodeId) -> bool:
        """Of an update that is on its way to all."""
        return self.scatter is not None and self.scatter.author == source

    def is_resting(self, source: NodeId, now: float) -> bool:
        rest = self.resting.get(source)
        return rest is not None and now < rest.until

    def rarest(self, chunks: int) -> int:
        """Of these chunks the one that fewest members announced; members begin at different ones,
        and in different rows of shares."""
        width = len(self.scatter.receivers) if self.scatter is not None else 1
        rows = -(-len(self.rarity) // width)

        def order(index: int) -> tuple[int, int, int]:
            row, column = divmod(index, width)
            return self.rarity[index], (row - self.place) % rows, (column - self.place) % width

        return min(bits(chunks), key=order)


def bits(bitmap: int) -> Iterator[int]:
    while bitmap:
        lowest = bitmap & -bitmap
        yield lowest.bit_length() - 1
        bitmap ^= lowest
