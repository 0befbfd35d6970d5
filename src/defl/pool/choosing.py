"""Which chunk to request of one source, if any: what it holds, whether it is worth waiting for, and
whether others would be faster.
"""

from defl.ids import Digest, NodeId
from defl.pool.fetch import NEVER, Fetch
from defl.pool.sources import ChunkSource, Piece

# An author that sends a chunk within this time is asked for everything at once.
FAST_S = 1.0
# A slow author sends each member its share at about the same time. Members that have not announced
# theirs are waited for so much longer than the author takes for one more chunk.
PATIENCE_S = 5.0
# A source that was slower than others is weighed against them again after this time.
LOOK_AGAIN_S = 1.0
# It is weighed against so many, the fastest ones: with a hundred members, all would be costly.
RIVALS = 8


def is_slow(source: ChunkSource) -> bool:
    return source.expected_s > FAST_S


class Chooser:
    def __init__(self, fetches: dict[Digest, Fetch], sources: dict[NodeId, ChunkSource]) -> None:
        """Reads both; its owner changes them."""
        self._fetches = fetches
        self._sources = sources
        self._fastest: list[tuple[NodeId, ChunkSource]] = []  # those that are ready
        self.look_again_at = NEVER  # at sources that were left alone

    def compare(self, now: float) -> None:
        """Puts the sources in order; to be called before a series of choices."""
        ready = [(id_, s) for id_, s in self._sources.items() if s.fetches and s.is_ready(now)]
        self._fastest = sorted(ready, key=lambda item: item[1].expected_s)

    def choose(self, source_id: NodeId, digests: set[Digest], now: float) -> Piece | None:
        """This node's shares first, since others count on them; then the oldest of these blobs."""
        for only_shares in (True, False):
            for digest in self._sources[source_id].fetches:
                if digest not in digests:
                    continue
                fetch = self._fetches[digest]
                chunks = self._available(fetch, source_id, now)
                if only_shares:
                    chunks &= fetch.share if fetch.is_author(source_id) else 0
                if not chunks:
                    continue
                index = fetch.rarest(chunks)
                if not self._others_are_faster(fetch, source_id, index, now):
                    return digest, index
                self.look_again_at = min(self.look_again_at, now + LOOK_AGAIN_S)
        return None

    def _available(self, fetch: Fetch, source: NodeId, now: float) -> int:
        """The chunks to request of this source, if they are worth it."""
        chunks = fetch.missing & ~fetch.under_way & fetch.holders[source]
        if not chunks or fetch.is_resting(source, now):
            return 0
        if (
            fetch.is_author(source)
            and is_slow(self._sources[source])
            and now < self.patient_until(fetch)
        ):
            return chunks & fetch.share  # it sends each chunk once, and others pass it on
        return chunks

    def patient_until(self, fetch: Fetch) -> float:
        """Until then members are expected to announce their shares of a slow author's update."""
        if fetch.scatter is None or fetch.share_at is None:
            return NEVER
        return fetch.share_at + PATIENCE_S + self._sources[fetch.scatter.author].expected_s

    def _others_are_faster(self, fetch: Fetch, source: NodeId, index: int, now: float) -> bool:
        """Would the others be done with the whole blob before this source has sent one chunk?
        Whoever was never met is no rival of those who were."""
        next_s, is_met = self._sources[source].next_s, self._sources[source].is_met
        wanted = fetch.missing & ~fetch.under_way
        rivals, left, queued, rate, soonest_s = 0, 0, 0, 0.0, NEVER
        for other_id, other in self._fastest:
            if rivals == RIVALS:
                break
            chunks = fetch.holders.get(other_id, 0)
            if other_id == source or not chunks >> index & 1 or fetch.is_resting(other_id, now):
                continue
            if is_met and not other.is_met:
                continue
            rivals += 1
            left |= chunks & wanted
            queued += len(other.asked)
            rate += 1 / other.expected_s
            soonest_s = min(soonest_s, other.next_s)
            if next_s > max(soonest_s, (left.bit_count() + queued) / rate):
                return True  # these are enough
        return False
