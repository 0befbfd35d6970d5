"""Blobs being fetched: which chunk to request from which source next.

Chunks are requested, never pushed, so a node receives nothing that it does not want, and nothing
twice. Several sources serve one blob at once. A source that does not answer in time, or does not
hold the blob, rests while others are tried.
"""

from dataclasses import dataclass, field

from defl.ids import Digest, NodeId
from defl.messages import ChunkRequest, Manifest, ManifestRequest

# Outstanding chunks per source: they keep a link busy while the next request travels and the
# source reads the chunk from its disk.
IN_FLIGHT_PER_SOURCE = 4
# How long an answer may take, and how long a failed source rests. It doubles with each failure to
# outlast a slow link (a 4 MiB chunk takes half a minute at 1 Mbit/s).
ANSWER_WAIT_S = 4.0
ANSWER_WAIT_MAX_S = 128.0

NEVER = float("inf")
MANIFEST = -1  # the index of the manifest among the pieces of a blob


@dataclass(slots=True)
class ChunkRequestState:
    source: NodeId
    until: float


@dataclass(slots=True)
class ChunkSource:
    failures: int = 0
    ready_at: float = float("-inf")

    @property
    def wait_s(self) -> float:
        return float(min(ANSWER_WAIT_MAX_S, ANSWER_WAIT_S * 2.0 ** min(self.failures, 8)))

    def failed(self, now: float) -> None:
        self.ready_at = now + self.wait_s
        self.failures += 1


@dataclass(slots=True)
class Fetch:
    missing: set[int]
    manifest: Manifest | None = None
    sources: dict[NodeId, ChunkSource] = field(default_factory=dict)
    outstanding: dict[int, ChunkRequestState] = field(default_factory=dict)


class Transfer:
    def __init__(self, me: NodeId) -> None:
        self._me = me
        self._fetches: dict[Digest, Fetch] = {}
        # Most events change no fetch, so what follows from all fetches is kept until one changes.
        self._changed = True
        self._quiet_until = NEVER  # nothing is due before
        self._next_at: float | None = None

    def __contains__(self, digest: Digest) -> bool:
        return digest in self._fetches

    def __len__(self) -> int:
        return len(self._fetches)

    def want(
        self,
        digest: Digest,
        sources: tuple[NodeId, ...],
        manifest: Manifest | None,
        held: frozenset[int] = frozenset(),
    ) -> None:
        """Fetch a blob, or add sources for one that is being fetched."""
        self._changed = True
        fetch = self._fetches.get(digest)
        if fetch is None:
            fetch = self._fetches[digest] = Fetch({MANIFEST})
        if fetch.manifest is None and manifest is not None:
            self._start_chunks(fetch, manifest, held)
        for source in sources:
            if source != self._me:
                fetch.sources.setdefault(source, ChunkSource())

    def cancel(self, digest: Digest) -> None:
        self._changed = True
        self._fetches.pop(digest, None)

    def enter(self, me: NodeId, sources: tuple[NodeId, ...]) -> None:
        """Another epoch begins: ask only these from now on, and not this node under its new id."""
        self._changed = True
        self._me = me
        for fetch in self._fetches.values():
            fetch.sources = {
                source: known
                for source, known in fetch.sources.items()
                if source in sources and source != me
            }
            fetch.outstanding = {
                index: request
                for index, request in fetch.outstanding.items()
                if request.source in fetch.sources
            }

    def keep_only(self, digests: set[Digest]) -> None:
        self._changed = True
        for digest in [wanted for wanted in self._fetches if wanted not in digests]:
            del self._fetches[digest]

    @staticmethod
    def _start_chunks(fetch: Fetch, manifest: Manifest, held: frozenset[int]) -> None:
        fetch.manifest = manifest
        fetch.missing = set(range(len(manifest.chunks))) - held
        fetch.outstanding.clear()

    def got_manifest(self, manifest: Manifest) -> bool:
        fetch = self._fetches.get(manifest.digest)
        if fetch is None or fetch.manifest is not None:
            return False
        self._changed = True
        self._start_chunks(fetch, manifest, frozenset())
        return True

    def manifest(self, digest: Digest) -> Manifest | None:
        fetch = self._fetches.get(digest)
        return fetch.manifest if fetch is not None else None

    def expects(self, digest: Digest, index: int) -> bool:
        fetch = self._fetches.get(digest)
        return fetch is not None and fetch.manifest is not None and index in fetch.missing

    def got_chunk(self, source: NodeId, digest: Digest, index: int) -> None:
        self._changed = True
        fetch = self._fetches[digest]
        fetch.missing.discard(index)
        fetch.outstanding.pop(index, None)
        if source in fetch.sources:
            fetch.sources[source].failures = 0
        if not fetch.missing:
            del self._fetches[digest]

    def failed(self, source: NodeId, digest: Digest, now: float) -> None:
        """The source holds nothing or sent a bad piece: its open requests go to other sources."""
        fetch = self._fetches.get(digest)
        if fetch is None or source not in fetch.sources:
            return
        self._changed = True
        for index in [i for i, request in fetch.outstanding.items() if request.source == source]:
            del fetch.outstanding[index]
        fetch.sources[source].failed(now)

    def due(self, now: float) -> list[tuple[NodeId, ManifestRequest | ChunkRequest]]:
        """The requests to send now."""
        requests: list[tuple[NodeId, ManifestRequest | ChunkRequest]] = []
        if not self._changed and now < self._quiet_until:
            return requests
        self._quiet_until = NEVER
        for digest, fetch in self._fetches.items():
            for index in [i for i, request in fetch.outstanding.items() if now >= request.until]:
                fetch.sources[fetch.outstanding.pop(index).source].failed(now)
            for index in sorted(fetch.missing - fetch.outstanding.keys()):
                source = _idle_source(fetch, now)
                if source is None:
                    break
                fetch.outstanding[index] = ChunkRequestState(
                    source, now + fetch.sources[source].wait_s
                )
                requests.append((source, _request(digest, index)))
            self._quiet_until = min(self._quiet_until, _next_change(fetch, now))
        self._next_at = self._earliest()
        self._changed = False
        return requests

    @property
    def next_at(self) -> float | None:
        return self._earliest() if self._changed else self._next_at

    def _earliest(self) -> float | None:
        times: list[float] = []
        for fetch in self._fetches.values():
            times.extend(request.until for request in fetch.outstanding.values())
            if len(fetch.outstanding) < len(fetch.missing):
                resting = {*fetch.sources} - {
                    request.source for request in fetch.outstanding.values()
                }
                times.extend(fetch.sources[source].ready_at for source in resting)
        return min(times, default=None)


def _request(digest: Digest, index: int) -> ManifestRequest | ChunkRequest:
    return ManifestRequest(digest) if index == MANIFEST else ChunkRequest(digest, index)


def _next_change(fetch: Fetch, now: float) -> float:
    """When a request expires or, if more are to be sent, a source has rested."""
    times = [request.until for request in fetch.outstanding.values()]
    if len(fetch.outstanding) < len(fetch.missing):
        times.extend(source.ready_at for source in fetch.sources.values() if source.ready_at > now)
    return min(times, default=NEVER)


def _idle_source(fetch: Fetch, now: float) -> NodeId | None:
    """The source with the fewest failures, then the lowest load, among those not resting."""
    load = dict.fromkeys(fetch.sources, 0)
    for request in fetch.outstanding.values():
        load[request.source] += 1
    idle = [
        source
        for source, known in fetch.sources.items()
        if known.ready_at <= now and load[source] < IN_FLIGHT_PER_SOURCE
    ]
    return min(
        idle, key=lambda source: (fetch.sources[source].failures, load[source]), default=None
    )
