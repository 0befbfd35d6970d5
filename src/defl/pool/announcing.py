"""Which chunks of an update that is on its way this node announces, to whom, and when.

The share of a slow author's update is announced as soon as it is complete, since nobody else has
it. Everything else is announced now and then, in one message for all that is new.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from defl.ids import Digest, NodeId
from defl.messages import Have
from defl.pool.scatter import Scatter

# Announcements of one blob are this far apart; among many members further, so that a node does not
# send or receive more than about so many per second.
HAVE_EVERY_S = 1.0
HAVES_PER_S = 200.0


@dataclass(slots=True)
class Announcement:
    scatter: Scatter
    share: int  # of this node, a bitmap like all below
    held: int
    next_at: float | None = None  # None: at once
    share_announced: bool = False
    told: dict[NodeId, int] = field(default_factory=dict)
    theirs: dict[NodeId, int] = field(default_factory=dict)  # as they announced

    def targets(self) -> tuple[NodeId, ...]:
        """Who may lack something that it has not been told of."""
        return tuple(
            member
            for member in self.scatter.receivers
            if self.held & ~(self.told.get(member, 0) | self.theirs.get(member, 0))
        )


class Announcer:
    def __init__(self, me: NodeId) -> None:
        self._me = me
        self._blobs: dict[Digest, Announcement] = {}
        self._news: dict[Digest, None] = {}
        self._away: set[NodeId] = set()

    def __contains__(self, digest: Digest) -> bool:
        return digest in self._blobs

    def enter(self, me: NodeId) -> None:
        self._me = me
        self._blobs.clear()
        self._news.clear()

    def begin(self, digest: Digest, scatter: Scatter, held: Iterable[int]) -> None:
        """Nobody can pass on a part of a blob of one chunk."""
        if digest not in self._blobs and scatter.chunks > 1:
            share = scatter.share_of(self._me)
            self._blobs[digest] = Announcement(scatter, share, sum(1 << i for i in held))

    def forget(self, digest: Digest) -> None:
        self._blobs.pop(digest, None)
        self._news.pop(digest, None)

    def keep_only(self, digests: set[Digest]) -> None:
        for digest in [known for known in self._blobs if known not in digests]:
            self.forget(digest)

    def stored(self, digest: Digest, index: int) -> None:
        blob = self._blobs.get(digest)
        if blob is not None:
            blob.held |= 1 << index
            self._news[digest] = None

    def heard(self, peer: NodeId, digest: Digest, chunks: int) -> None:
        blob = self._blobs.get(digest)
        if blob is not None:
            blob.theirs[peer] = chunks

    def connected(self, peer: NodeId) -> None:
        """It may have lost everything that it was told."""
        self._away.discard(peer)
        for digest, blob in self._blobs.items():
            blob.told.pop(peer, None)
            blob.theirs.pop(peer, None)
            self._news[digest] = None

    def disconnected(self, peer: NodeId) -> None:
        self._away.add(peer)

    def due(
        self, now: float, is_slow: Callable[[NodeId], bool]
    ) -> list[tuple[tuple[NodeId, ...], Have]]:
        """The announcements to send now. `is_slow`: does this author send one copy only?"""
        announcements = []
        for digest in list(self._news):
            blob = self._blobs[digest]
            targets = self._due(digest, blob, now, is_slow)
            if targets:
                bitmap = bitmap_of_chunks(blob.held, blob.scatter.chunks)
                announcements.append((targets, Have(digest, bitmap)))
        return announcements

    def _due(
        self, digest: Digest, blob: Announcement, now: float, is_slow: Callable[[NodeId], bool]
    ) -> tuple[NodeId, ...]:
        every_s = max(HAVE_EVERY_S, len(blob.scatter.receivers) ** 2 / HAVES_PER_S)
        if blob.next_at is None:
            blob.next_at = now + every_s
        share_is_new = not blob.share_announced and blob.share & ~blob.held == 0
        if now < blob.next_at and not (share_is_new and is_slow(blob.scatter.author)):
            return ()
        del self._news[digest]
        blob.next_at = now + every_s
        blob.share_announced = blob.share_announced or share_is_new
        targets = tuple(m for m in blob.targets() if m != self._me and m not in self._away)
        blob.told.update(dict.fromkeys(targets, blob.held))
        return targets

    @property
    def next_at(self) -> float:
        times = (self._blobs[digest].next_at for digest in self._news)
        return min((at for at in times if at is not None), default=float("inf"))


def bitmap_of_chunks(chunks: int, count: int) -> bytes:
    """Chunk i is bit i mod 8 of byte i div 8; the length depends only on the blob."""
    return chunks.to_bytes((count + 7) // 8, "little")


def chunks_in(bitmap: bytes, count: int) -> int | None:
    """None if it is no bitmap of so many chunks."""
    chunks = int.from_bytes(bitmap, "little")
    return chunks if len(bitmap) == (count + 7) // 8 and chunks >> count == 0 else None
