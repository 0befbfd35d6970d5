"""Blobs being fetched: which chunk to request from which source next.

Chunks are requested, never pushed, so a node receives nothing that it does not want. A chunk is
not requested twice while it is on its way. Several sources serve one blob at once, and a source
that is much slower than the others is left alone. A source that does not answer in time, or does
not hold the blob, rests while others are tried.

A node that fetches from many members does not weigh all its requests at each event: it looks only
where one may have become possible, and now and then at everything.

An update that is on its way to all is fetched as `scatter.py` says: first the own share from its
author, then what other members announce, the rarest chunk first.
"""

from collections.abc import Iterator

from defl.ids import Digest, NodeId
from defl.messages import ChunkRequest, Have, Manifest, ManifestRequest
from defl.pool.announcing import Announcer
from defl.pool.choosing import Chooser, is_slow
from defl.pool.fetch import NEVER, Fetch, Rest
from defl.pool.scatter import Scatter
from defl.pool.sources import FIRST_BYTES_PER_S, MANIFEST, ChunkSource, Piece, rest_s

# However many waits end, all requests are weighed no more often than this.
LOOK_EVERY_S = 0.25
ALL = -1  # the bitmap of any number of chunks

Request = tuple[NodeId, ManifestRequest | ChunkRequest]


class Transfer:
    def __init__(self, me: NodeId, chunk_bytes: int) -> None:
        """`chunk_bytes`: the largest chunk that there is."""
        self._me = me
        self._first_s = chunk_bytes / FIRST_BYTES_PER_S
        self._fetches: dict[Digest, Fetch] = {}
        self._sources: dict[NodeId, ChunkSource] = {}
        self._chooser = Chooser(self._fetches, self._sources)
        self._announcer = Announcer(me)
        # Where a request may have become possible: the blobs of each source.
        self._look: dict[NodeId, set[Digest]] = {}
        self._looked_at = float("-inf")  # at everything
        # Most events change no fetch, so what follows from all fetches is kept until one changes.
        self._changed = True
        self._next_at = NEVER  # nothing is due before

    def __contains__(self, digest: Digest) -> bool:
        return digest in self._fetches

    def __len__(self) -> int:
        return len(self._fetches)

    # --- What is wanted --------------------------------------------------------------------

    def want(
        self,
        digest: Digest,
        sources: tuple[NodeId, ...],
        manifest: Manifest | None,
        held: frozenset[int] = frozenset(),
        scatter: Scatter | None = None,
    ) -> None:
        """Fetch a blob that these sources hold, or add sources for one that is being fetched. With
        `scatter` other members announce what they hold; without it there are holders enough."""
        fetch = self._fetches.get(digest)
        if fetch is None:
            self._changed = True
            fetch = self._fetches[digest] = Fetch(scatter=scatter, place=self._me)
            if scatter is not None:
                fetch.share = scatter.share_of(self._me, self._away)
                fetch.place = scatter.receivers.index(self._me)
                self._source(scatter.author)
                self._announcer.begin(digest, scatter, held)
        elif scatter is None and fetch.scatter is not None:
            fetch.scatter = None
            self._look_for(digest, fetch)
        if fetch.manifest is None and manifest is not None:
            self._start_chunks(digest, fetch, manifest, held)
        for source in sources:
            if source != self._me and fetch.holders.get(source) != ALL:
                fetch.announcers.discard(source)
                self._add_holder(digest, fetch, source, ALL)

    def cancel(self, digest: Digest) -> None:
        self._announcer.forget(digest)
        self._end(digest)

    def certified(self, digest: Digest) -> None:
        """The blob has holders enough that all know of: nothing need be announced."""
        self._announcer.forget(digest)

    def _end(self, digest: Digest) -> None:
        fetch = self._fetches.pop(digest, None)
        if fetch is None:
            return
        self._changed = True
        for index in list(fetch.asked):
            self._release(digest, fetch, index)
        for source in fetch.holders:
            self._sources[source].fetches.pop(digest, None)

    def enter(self, me: NodeId, sources: tuple[NodeId, ...]) -> None:
        """Another epoch begins: ask only these from now on, and not this node under its new id."""
        self._changed = True
        self._me = me
        self._announcer.enter(me)
        for digest, fetch in self._fetches.items():
            fetch.scatter = None
            self._look_for(digest, fetch)
            for source in [s for s in fetch.holders if s not in sources or s == me]:
                self._remove_holder(digest, fetch, source)

    def keep_only(self, digests: set[Digest]) -> None:
        for digest in [wanted for wanted in self._fetches if wanted not in digests]:
            self._end(digest)
        self._announcer.keep_only(digests)

    def manifest(self, digest: Digest) -> Manifest | None:
        fetch = self._fetches.get(digest)
        return fetch.manifest if fetch is not None else None

    def expects(self, digest: Digest, index: int) -> bool:
        fetch = self._fetches.get(digest)
        return fetch is not None and bool(fetch.missing >> index & 1)

    def is_asked(self, digest: Digest, index: int, source: NodeId) -> bool:
        fetch = self._fetches.get(digest)
        return fetch is not None and fetch.asked.get(index) == source

    def wants_have(self, digest: Digest) -> bool:
        return digest in self._fetches or digest in self._announcer

    def is_slow(self, peer: NodeId) -> bool:
        return is_slow(self._source(peer))

    # --- What comes ------------------------------------------------------------------------

    def got_manifest(self, source: NodeId, manifest: Manifest, now: float) -> bool:
        fetch = self._fetches.get(manifest.digest)
        if fetch is None or fetch.manifest is not None:
            return False
        self._changed = True
        if source in self._sources:
            self._sources[source].answered((manifest.digest, MANIFEST), now)
        self._start_chunks(manifest.digest, fetch, manifest, frozenset())
        return True

    def got_chunk(self, source: NodeId, digest: Digest, index: int, now: float) -> None:
        self._changed = True
        fetch = self._fetches[digest]
        fetch.missing &= ~(1 << index)
        if source in self._sources:
            self._sources[source].answered((digest, index), now)
            if fetch.resting.pop(source, None) is not None:
                self._look_at(source, self._sources[source])
        self._release(digest, fetch, index)
        self._announcer.stored(digest, index)
        if not fetch.missing:
            self._end(digest)

    def have(self, peer: NodeId, digest: Digest, chunks: int) -> None:
        """A member announces which chunks it holds."""
        self._announcer.heard(peer, digest, chunks)
        fetch = self._fetches.get(digest)
        if fetch is None or peer == self._me or peer in fetch.unreliable:
            return
        chunks &= ~fetch.holders.get(peer, 0)
        if not chunks:
            return  # nothing new
        fetch.announcers.add(peer)
        fetch.count_announced(chunks)
        self._add_holder(digest, fetch, peer, chunks)

    def failed(self, source: NodeId, digest: Digest, now: float) -> None:
        """The source holds nothing or sent a bad piece: its open requests go to other sources."""
        fetch = self._fetches.get(digest)
        if fetch is None or source not in fetch.holders:
            return
        asked = [index for index, by in fetch.asked.items() if by == source]
        if not asked and fetch.is_resting(source, now):
            return  # one answer of many, or a late one
        self._changed = True
        for index in asked:
            self._release(digest, fetch, index)
        self._distrust(digest, fetch, source, now)

    def connected(self, peer: NodeId) -> None:
        """What was requested of it was lost with the last connection."""
        self._announcer.connected(peer)
        self._changed = True
        source = self._source(peer)
        self._lose_link(source)
        source.met()
        self._look_at(peer, source)
        self._share_anew()
        for digest in source.fetches:
            self._fetches[digest].resting.pop(peer, None)

    def disconnected(self, peer: NodeId) -> None:
        self._changed = True
        self._announcer.disconnected(peer)
        source = self._source(peer)
        self._lose_link(source)
        source.away = True
        self._share_anew()

    # --- What to request -------------------------------------------------------------------

    def due(self, now: float) -> list[Request]:
        """The requests to send now."""
        if not self._changed and now < self._next_at:
            return []
        if now >= self._next_at:
            self._look_around(now)
        requests: list[Request] = []
        for digest, fetch in self._fetches.items():
            if fetch.share_at is None and not fetch.missing & fetch.share:
                fetch.share_at = now
            if fetch.manifest is None and MANIFEST not in fetch.asked:
                requests.extend(self._ask_manifest(digest, fetch, now))
        self._chooser.compare(now)
        look, self._look = self._look, {}
        for source_id in sorted(look, key=lambda id_: self._sources[id_].turn):
            requests.extend(self._ask_chunks(source_id, look[source_id], now))
        self._changed = False
        self._next_at = self._earliest()
        return requests

    def _look_around(self, now: float) -> None:
        """Waits have ended: what was not possible before may be so now."""
        self._looked_at = now
        self._chooser.look_again_at = NEVER
        for source_id, source in list(self._sources.items()):
            if now >= source.due_at:
                self._time_out(source_id, source, now)
        for source_id, source in self._sources.items():
            self._look_at(source_id, source)

    def _ask_chunks(self, source_id: NodeId, digests: set[Digest], now: float) -> Iterator[Request]:
        source = self._sources[source_id]
        while source.is_ready(now) and source.has_room:
            piece = self._chooser.choose(source_id, digests, now)
            if piece is None:
                break
            self._ask(source_id, piece, now)
            yield source_id, ChunkRequest(*piece)

    def announcements(self, now: float) -> list[tuple[tuple[NodeId, ...], Have]]:
        """What to announce now, and to whom."""
        return self._announcer.due(now, self.is_slow)

    @property
    def next_at(self) -> float | None:
        at = min(self._earliest() if self._changed else self._next_at, self._announcer.next_at)
        return None if at == NEVER else at

    def _earliest(self) -> float:
        """When an answer is overdue, a source has rested, or patience ends."""
        times = [self._chooser.look_again_at]
        for source in self._sources.values():
            times.append(source.due_at)
            if source.fetches and not source.away:
                times.append(source.ready_at)
        for fetch in self._fetches.values():
            times.extend(rest.until for rest in fetch.resting.values())
            if fetch.scatter is not None:
                times.append(self._chooser.patient_until(fetch))
        earliest = min((at for at in times if at > self._looked_at), default=NEVER)
        return max(earliest, self._looked_at + LOOK_EVERY_S)

    def _ask_manifest(self, digest: Digest, fetch: Fetch, now: float) -> Iterator[Request]:
        ready = [
            id_
            for id_ in fetch.holders
            if self._sources[id_].is_ready(now) and not fetch.is_resting(id_, now)
        ]
        if ready:
            source = min(ready, key=lambda id_: self._sources[id_].manifest_turn)
            self._ask(source, (digest, MANIFEST), now)
            yield source, ManifestRequest(digest)

    @property
    def _away(self) -> set[NodeId]:
        return {id_ for id_, source in self._sources.items() if source.away}

    def _share_anew(self) -> None:
        """Others do the part of members that are not connected."""
        away = self._away
        for digest, fetch in self._fetches.items():
            if fetch.scatter is not None:
                fetch.share = fetch.scatter.share_of(self._me, away)
                if fetch.scatter.author in fetch.holders:
                    self._look.setdefault(fetch.scatter.author, set()).add(digest)

    # --- Bookkeeping -----------------------------------------------------------------------

    def _source(self, peer: NodeId) -> ChunkSource:
        return self._sources.setdefault(peer, ChunkSource(self._first_s))

    def _look_at(self, source_id: NodeId, source: ChunkSource) -> None:
        """Something may be requested of this source."""
        if source.fetches:
            self._changed = True
            self._look[source_id] = set(source.fetches)

    def _look_for(self, digest: Digest, fetch: Fetch) -> None:
        """Something of this blob may be requested."""
        self._changed = True
        for source in fetch.holders:
            self._look.setdefault(source, set()).add(digest)

    def _start_chunks(
        self, digest: Digest, fetch: Fetch, manifest: Manifest, held: frozenset[int]
    ) -> None:
        self._release(digest, fetch, MANIFEST)
        fetch.start_chunks(manifest, held)
        self._look_for(digest, fetch)

    def _add_holder(self, digest: Digest, fetch: Fetch, source: NodeId, chunks: int) -> None:
        fetch.holders[source] = fetch.holders.get(source, 0) | chunks
        self._source(source).fetches[digest] = None
        self._look.setdefault(source, set()).add(digest)
        self._changed = True

    def _remove_holder(self, digest: Digest, fetch: Fetch, source: NodeId) -> None:
        chunks = fetch.holders.pop(source)
        self._sources[source].fetches.pop(digest, None)
        if source in fetch.announcers:
            fetch.announcers.discard(source)
            fetch.uncount_announced(chunks)
        for index in [i for i, asked in fetch.asked.items() if asked == source]:
            self._release(digest, fetch, index)

    def _ask(self, source: NodeId, piece: Piece, now: float) -> None:
        digest, index = piece
        fetch = self._fetches[digest]
        fetch.asked[index] = source
        if index != MANIFEST:
            fetch.under_way |= 1 << index
        self._sources[source].ask(piece, now)

    def _release(self, digest: Digest, fetch: Fetch, index: int) -> None:
        """This piece is not on its way any more: its source has room, and others may be asked."""
        if index != MANIFEST:
            fetch.under_way &= ~(1 << index)
        source_id = fetch.asked.pop(index, None)
        if source_id is not None:
            source = self._sources[source_id]
            source.asked.pop((digest, index), None)
            self._look_at(source_id, source)
            if index != MANIFEST and fetch.missing >> index & 1:
                self._look_for(digest, fetch)

    def _lose_link(self, source: ChunkSource) -> None:
        """A source that breaks off again and again must not be preferred for ever."""
        if source.asked:
            source.slow_down()
        for digest, index in list(source.asked):
            self._release(digest, self._fetches[digest], index)

    def _time_out(self, source_id: NodeId, source: ChunkSource, now: float) -> None:
        """Answers come in order: those that were overtaken are lost. If nothing came, the source is
        silent, and everything goes to others."""
        overdue = [piece for piece, since in source.asked.items() if now >= since + source.wait_s]
        overtaken = [piece for piece in overdue if source.asked[piece] < source.answered_at]
        lost = overtaken or list(source.asked)
        if not overtaken:
            source.timed_out(now)
        for digest, index in lost:
            fetch = self._fetches[digest]
            self._release(digest, fetch, index)
            if overtaken or source_id in fetch.announcers:
                self._distrust(digest, fetch, source_id, now)
        source.put_last(lost[0][0])

    def _distrust(self, digest: Digest, fetch: Fetch, source: NodeId, now: float) -> None:
        """It rests for this blob. If only its own word said that it holds chunks, it is asked for
        this one no more."""
        if source in fetch.announcers:
            self._remove_holder(digest, fetch, source)
            fetch.unreliable.add(source)
            return
        rest = fetch.resting.get(source)
        failures = rest.failures if rest is not None else 0
        fetch.resting[source] = Rest(failures + 1, now + rest_s(failures))
