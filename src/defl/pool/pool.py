"""The life of a blob at one node: offered, fetched, checked, acknowledged, certified, deleted.

The driver's store holds the bytes; the pool knows which ones it holds. It decides nothing about
rounds: the client says what it needs, and the ledger's round moves retention.

The file is long because a blob has one life: every step reads or moves the same few tables. What
can be decided without them is elsewhere: certify.py, transfer.py, blob_index.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from defl.committee import Federation
from defl.crypto import Signer
from defl.errors import BadBlob
from defl.ids import NO_DIGEST, Digest, NodeId, Round
from defl.messages import (
    Chunk,
    ChunkRequest,
    Evidence,
    Have,
    Manifest,
    ManifestAnswer,
    ManifestRequest,
    Message,
    NotHeld,
    Offer,
    StoreAck,
    Upd,
)
from defl.output import (
    Durable,
    Envelope,
    EvidenceFound,
    Notice,
    PeerMisbehaved,
    ReceivedChunk,
    ServeChunk,
    StoreChunk,
    Validate,
)
from defl.pool.announcing import chunks_in
from defl.pool.blob_index import BlobIndex, Label
from defl.pool.certify import Certifier
from defl.pool.scatter import Scatter, scatter_of
from defl.pool.transfer import Transfer
from defl.pool.weights import FP32, check_manifest, chunk_size
from defl.schema import Codec
from defl.verifier import IsProven

# A blob whose sync fails again is fetched back after this long, doubling up to the maximum: its
# bytes come from others, and a disk may fail for hours.
LOST_AGAIN_S = 1.0
LOST_AGAIN_MAX_S = 60.0


@dataclass(slots=True)
class PoolEffects:
    acks: list[StoreAck] = field(default_factory=list)
    offer: Offer | None = None
    store: list[StoreChunk] = field(default_factory=list)
    send: list[Envelope | ServeChunk] = field(default_factory=list)
    work: list[Validate] = field(default_factory=list)
    drop: list[Digest] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    certified: list[Upd] = field(default_factory=list)


class Pool:
    def __init__(
        self, federation: Federation, me: NodeId, signer: Signer, durable: Durable, round_: Round
    ) -> None:
        self._federation = federation
        self._signer = signer
        self._me = me
        self._repeat_s = federation.timing.view_base_s
        self._members = federation.committee.members
        self._index = BlobIndex()
        self._certifier = Certifier(federation, me, signer, durable, self._index)
        largest = min(federation.chunk_bytes, 4 * federation.schema.values)
        self._transfer = Transfer(me, largest)
        self._offers: dict[tuple[Round, NodeId], Offer] = {}  # the first of each
        self._refused: set[tuple[Round, NodeId]] = set()  # whose bytes broke the rules
        self._validating: set[Digest] = set()
        self._losses: dict[Digest, tuple[int, float]] = {}  # failed syncs, and when to fetch again
        self._held_back: set[Digest] = set()  # lost several times, and not fetched yet
        self._repeat_at: float | None = None
        self._round = round_
        self._effects = PoolEffects()
        self.muted = False  # sign no acks, offers and UPDs
        for manifest, chunks in durable.held:
            self._index.restore(manifest, chunks)
        for ack in durable.acks:
            self._index.label((ack.round, ack.author), ack.digest)
        for model_round, manifest in durable.models:
            self._index.label((model_round, None), manifest.digest)
        for closed in durable.switch.closed if durable.switch is not None else ():
            for ref in closed.updates:  # their acks were of an earlier epoch
                self._index.label((closed.round, ref.author), ref.digest)
        for offer in durable.offers:
            self._offers[offer.round, me] = offer
            self._index.label((offer.round, me), offer.manifest.digest)
        self._effects.drop.extend(self._index.unlabelled())

    def enter(self, federation: Federation, me: NodeId) -> None:
        """Another epoch begins. What was offered and acknowledged for rounds that the last one
        did not close counts no more; blobs of closed rounds stay."""
        self._federation = federation
        self._me = me
        self._members = federation.committee.members
        self._certifier = Certifier(federation, me, self._signer, Durable(None), self._index)
        self._offers.clear()
        self._refused.clear()
        self._repeat_at = None
        for digest in self._index.expire_from(Round(federation.first_round)):
            self._transfer.cancel(digest)
            self._effects.drop.append(digest)
        self._transfer.enter(me, self._members)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def stored(self) -> dict[str, int]:
        return {
            "blobs": len(self._index),
            "fetches": len(self._transfer),
            "offers": len(self._offers),
            "acks": len(self._certifier),
        }

    @property
    def labels(self) -> dict[Label, Digest]:
        return self._index.labels

    @property
    def wake_at(self) -> float | None:
        times = [at for at in (self._transfer.next_at, self._repeat_at) if at is not None]
        times.extend(self._losses[digest][1] for digest in self._held_back)
        return min(times, default=None)

    def has(self, digest: Digest) -> bool:
        return self._index.has(digest)

    def oldest_round(self, digest: Digest) -> Round | None:
        """The oldest round that this blob is kept for; None: it is not kept."""
        return self._index.oldest_round(digest)

    def manifest(self, digest: Digest) -> Manifest | None:
        return self._index.manifest(digest)

    def offer_for(self, round_: Round) -> Offer | None:
        """This node's own offer, even from before a restart: it is resumed, never replaced."""
        return self._offers.get((round_, self._me))

    def has_update(self, round_: Round, author: NodeId) -> bool:
        """Are all bytes of the update here that this member has offered?"""
        offer = self._offers.get((round_, author))
        return offer is not None and self._index.has(offer.manifest.digest)

    def ack_for(self, round_: Round, author: NodeId) -> Digest | None:
        """Which update of this author and round this node has acknowledged."""
        ack = self._certifier.given_for(round_, author)
        return ack.digest if ack is not None else None

    def acks_from(self, member: NodeId) -> tuple[StoreAck, ...]:
        return self._certifier.collected_from(member)

    def take(self) -> PoolEffects:
        effects = self._effects
        self._effects = PoolEffects()
        return effects

    def send_due(self, now: float) -> None:
        """Send the requests that are due, and repeat this node's offer until it is certified."""
        self._fetch_what_was_held_back(now)
        for source, request in self._transfer.due(now):
            self._send(source, request)
        for targets, have in self._transfer.announcements(now):
            self._effects.send.append(Envelope(targets, have))
        offer = self.offer_for(Round(self._round + 1))
        if offer is None or self.muted or self._certifier.is_certified(offer):
            self._repeat_at = None
        elif self._repeat_at is None or now >= self._repeat_at:
            self._repeat_at = now + self._repeat_s
            self._send_offer(offer)

    def _send_offer(self, offer: Offer) -> None:
        missing = tuple(m for m in self._members if not self._certifier.has_ack(offer, m))
        self._effects.send.append(Envelope(missing, offer))

    def connected(self, peer: NodeId) -> None:
        self._transfer.connected(peer)

    def disconnected(self, peer: NodeId) -> None:
        self._transfer.disconnected(peer)

    # --- Own offers ------------------------------------------------------------------------

    def publish(self, round_: Round, manifest: Manifest) -> None:
        """Offer this node's update, whose bytes the driver has stored and synced."""
        if self.offer_for(round_) is not None or self.muted:
            return
        offer = self._certifier.sign_offer(round_, manifest)
        self._offers[round_, self._me] = offer
        self._index.add_whole(manifest)
        self._index.mark_checked(manifest.digest)  # this node made it
        self._relabel((round_, self._me), manifest.digest)
        self._effects.offer = offer
        self._acknowledge(offer)
        self._repeat_at = None

    def resume(self) -> None:
        """Resume after a restart, and again when this node may sign: acknowledge our own offers and
        what was checked meanwhile, check the rest, and refetch lost blobs. A Byzantine member may
        choose when this happens, so waiting does not replace the check of an update."""
        for slot, offer in self._offers.items():
            if self._index.labelled(slot) != offer.manifest.digest:
                continue  # another update of this author is committed
            if self._index.has(offer.manifest.digest):
                self._validate_or_acknowledge(offer)
            elif offer.author == self._me:  # the updates of others are being fetched
                self._fetch(offer.manifest, self._members)
        # Others rely on what this node acknowledged, but a power cut may have lost the bytes.
        for ack in self._certifier.given:
            named = self._index.labelled((ack.round, ack.author)) == ack.digest
            if named and not self._index.has(ack.digest):
                self._want(ack.digest, self._members)

    def refetch(self, digest: Digest, chunks: Iterable[int]) -> None:
        """The disk lost chunks. Others rely on this copy, so fetch it back."""
        lost = self._index.chunks(digest) & frozenset(chunks)
        if not lost:
            return
        self._index.lose_chunks(digest, lost)
        self._transfer.cancel(digest)  # a fetch under way starts again, with these chunks too
        self._want(digest, self._members)

    def refetch_whole(self, digest: Digest, now: float) -> None:
        """The disk could not sync a blob and has dropped it. Fetch it back, the first time at once:
        a disk that fails for long must not use up the other members' lines."""
        held = self._index.chunks(digest)
        if not held:
            return
        losses, _ = self._losses.get(digest, (0, now))
        if losses:
            wait_s = min(LOST_AGAIN_MAX_S, LOST_AGAIN_S * 2.0 ** min(losses - 1, 8))
            self._losses[digest] = losses + 1, now + wait_s
            self._held_back.add(digest)
        else:
            self._losses[digest] = 1, now
        self.refetch(digest, held)

    def _fetch_what_was_held_back(self, now: float) -> None:
        for digest in sorted(self._held_back):
            if now >= self._losses[digest][1]:
                self._held_back.discard(digest)
                if self._index.oldest_round(digest) is not None and not self._index.has(digest):
                    self._want(digest, self._members)

    def _want(
        self,
        digest: Digest,
        sources: tuple[NodeId, ...],
        manifest: Manifest | None = None,
        scatter: Scatter | None = None,
    ) -> None:
        if digest in self._held_back:
            return  # whoever wants it asks again, and all members are asked when its time comes
        manifest = manifest or self._index.manifest(digest) or self._transfer.manifest(digest)
        self._transfer.want(digest, sources, manifest, self._index.chunks(digest), scatter)

    # --- Offers of others ------------------------------------------------------------------

    def receive(self, peer: NodeId, message: Message, now: float) -> None:
        match message:
            case Offer():
                self._on_offer(peer, message)
            case StoreAck():
                self._on_ack(message)
            case ManifestRequest(digest=digest):
                manifest = self._index.manifest(digest) or self._transfer.manifest(digest)
                answer = NotHeld(digest) if manifest is None else ManifestAnswer(manifest)
                self._send(peer, answer)
            case ManifestAnswer(manifest=manifest):
                self._on_manifest(peer, manifest, now)
            case ChunkRequest(digest=digest, index=index):
                if self._index.has_chunk(digest, index):
                    self._effects.send.append(ServeChunk(peer, digest, index))
                else:
                    self._send(peer, NotHeld(digest))
            case NotHeld(digest=digest):
                self._transfer.failed(peer, digest, now)
            case Have():
                self._on_have(peer, message, now)
            case Chunk():
                raise AssertionError("ingress turns chunks into events of their own")

    def wants_offer(self, offer: Offer, is_proven: IsProven) -> bool | None:
        """Is it worth verifying? None: it deserves no answer either."""
        slot = (offer.round, offer.author)
        if not self._in_window(offer.round) or slot in self._refused:
            return None
        known = self._offers.get(slot)
        if known is None:
            return True if self._certifier.may_ack(offer) else None
        return known.manifest != offer.manifest and not is_proven(offer.author, Offer)

    def wants_ack(self, ack: StoreAck) -> bool:
        """Does this node's own offer still need it for its certificate?"""
        offer = self._offers.get((ack.round, self._me))
        if ack.author != self._me or offer is None or self._certifier.is_certified(offer):
            return False
        manifest = offer.manifest
        return (ack.digest, ack.base, ack.size) == (
            manifest.digest,
            manifest.base,
            manifest.size,
        ) and not self._certifier.has_ack(offer, ack.acker)

    def wants_chunk(self, chunk: Chunk) -> bool:
        return self._transfer.expects(chunk.digest, chunk.index)

    def has_requested(self, chunk: Chunk, peer: NodeId) -> bool:
        """Whether this node waits for the peer to send this chunk."""
        return self._transfer.is_asked(chunk.digest, chunk.index, peer)

    def wants_have(self, have: Have) -> bool:
        """Is it about an update that is on its way to this node or to others?"""
        return self._transfer.wants_have(have.digest)

    def answer_offer(self, peer: NodeId, offer: Offer) -> None:
        """Answer an unverified offer for a known slot: its author lacks the ack, or has forgotten
        what it offered first. Only the known offer, which is verified, has an effect."""
        known = self._offers.get((offer.round, offer.author))
        if known is None:
            return
        if known.manifest == offer.manifest:
            self._on_offer(peer, known)
        elif peer == offer.author:
            self._send(peer, known)

    def _in_window(self, round_: Round) -> bool:
        oldest = max(self._federation.first_round - 1, self._round - self._federation.tau)
        return oldest < round_ <= self._round + 2

    def _on_offer(self, peer: NodeId, offer: Offer) -> None:
        slot = (offer.round, offer.author)
        if not self._in_window(offer.round):
            return
        known = self._offers.get(slot)
        if known is not None and known.manifest != offer.manifest:
            self._effects.notices.append(EvidenceFound(Evidence(known, offer)))
            if peer == offer.author:
                self._send(peer, known)
            return
        if slot in self._refused or not self._certifier.may_ack(offer):
            return
        if known is None:
            try:
                self._check_manifest(offer.manifest, self._federation.codec)
            except BadBlob as fault:
                self._refuse(slot, str(fault))
                return
            self._offers[slot] = offer
            if offer.author == self._me:
                self._effects.offer = offer  # older than this disk's state: never make another
        digest = offer.manifest.digest
        if self._index.labelled(slot) not in (None, digest):
            return  # another update of this author is committed
        # An equal blob of another author may be present; this label keeps it for as long as the
        # ack promises.
        self._relabel(slot, digest)
        if self._index.has(digest):
            self._validate_or_acknowledge(offer)
        else:
            self._fetch(offer.manifest, (offer.author, peer), self._scatter(offer))

    def _on_ack(self, ack: StoreAck) -> None:
        offer = self._offers.get((ack.round, self._me))
        if ack.author != self._me or offer is None:
            return
        self._certifier.count(offer, ack)
        upd = self._certifier.certify(offer) if not self.muted else None
        if upd is not None:
            self._effects.certified.append(upd)

    def _on_have(self, peer: NodeId, have: Have, now: float) -> None:
        digest = have.digest
        manifest = self._transfer.manifest(digest) or self._index.manifest(digest)
        if manifest is None:
            return
        chunks = chunks_in(have.chunks, len(manifest.chunks))
        if chunks is None:
            self._transfer.failed(peer, digest, now)
            reason = f"it announces chunks that blob {digest.hex()[:16]} does not have"
            self._effects.notices.append(PeerMisbehaved(peer, reason))
            return
        self._transfer.have(peer, digest, chunks)

    def _on_manifest(self, peer: NodeId, manifest: Manifest, now: float) -> None:
        codec = self._federation.codec if manifest.base != NO_DIGEST else FP32
        try:
            self._check_manifest(manifest, codec)
        except BadBlob as fault:
            self._transfer.failed(peer, manifest.digest, now)
            self._effects.notices.append(PeerMisbehaved(peer, str(fault)))
            return
        self._transfer.got_manifest(peer, manifest, now)

    def receive_chunk(self, event: ReceivedChunk, now: float) -> None:
        if not self._transfer.expects(event.digest, event.index):
            return
        manifest = self._transfer.manifest(event.digest)
        if manifest is None:
            return
        size = chunk_size(manifest, event.index, self._federation.chunk_bytes)
        if manifest.chunks[event.index] != event.chunk_digest or len(event.data) != size:
            self._transfer.failed(event.peer, event.digest, now)
            reason = f"chunk {event.index} is not the one that the manifest names"
            self._effects.notices.append(PeerMisbehaved(event.peer, reason))
            return
        self._transfer.got_chunk(event.peer, event.digest, event.index, now)
        self._effects.store.append(StoreChunk(manifest, event.index, event.data))
        if self._index.add_chunk(manifest, event.index):
            for offer in self._offers.values():
                is_late = offer.round <= self._round and self._certifier.acked(offer) is not None
                if offer.manifest.digest == event.digest and not is_late:
                    self._validate_or_acknowledge(offer)

    def _validate_or_acknowledge(self, offer: Offer) -> None:
        checked = self._index.is_checked(offer.manifest.digest)
        if checked or self._certifier.acked(offer) is not None:
            self._acknowledge(offer)
        elif self._certifier.may_ack(offer) and offer.manifest.digest not in self._validating:
            self._validating.add(offer.manifest.digest)
            self._effects.work.append(Validate(offer.manifest))

    def validated(self, digest: Digest, fault: str | None) -> None:
        """The driver has checked all bytes of a blob, which are in place."""
        self._validating.discard(digest)
        if fault is None:
            self._index.mark_checked(digest)
        for slot, offer in list(self._offers.items()):
            if offer.manifest.digest != digest:
                continue
            if fault is not None:
                self._refuse(slot, fault)
            else:
                self._acknowledge(offer)

    def not_validated(self, digest: Digest) -> None:
        """The check itself failed; the next repetition of the offer requests it again."""
        self._validating.discard(digest)

    def _acknowledge(self, offer: Offer) -> None:
        """Sign once per (round, author), and only what was checked; the record is durable before
        the ack leaves. Without the bytes there is no ack, nor if a committed update of this author
        has taken the blob's place."""
        slot, digest = (offer.round, offer.author), offer.manifest.digest
        if self.muted or not self._index.has(digest) or self._index.labelled(slot) != digest:
            return
        ack = self._certifier.acked(offer)
        if ack is None:
            if not self._index.is_checked(digest) or not self._certifier.may_ack(offer):
                return
            ack = self._certifier.sign_ack(offer)
            self._effects.acks.append(ack)
        if offer.author == self._me:
            self._on_ack(ack)
        else:
            self._send(offer.author, ack)

    def _refuse(self, slot: tuple[Round, NodeId], reason: str) -> None:
        self._refused.add(slot)
        offer = self._offers.pop(slot, None)
        if offer is not None and self._index.labelled(slot) == offer.manifest.digest:
            self._index.remove(offer.manifest.digest)
            self._transfer.cancel(offer.manifest.digest)
            self._effects.drop.append(offer.manifest.digest)
        self._effects.notices.append(PeerMisbehaved(slot[1], f"round {slot[0]}: {reason}"))

    # --- What the client needs -------------------------------------------------------------

    def keep(self, label: Label, digest: Digest) -> bool:
        """Keep this committed blob under this label; False if it is missing."""
        self._transfer.certified(digest)
        if self._index.labelled(label) != digest:
            self._relabel(label, digest)
        return self._index.has(digest)

    def need(self, label: Label, digest: Digest, sources: tuple[NodeId, ...]) -> bool:
        """Keep this blob under this label and fetch it if it is missing; True if it is present."""
        if self.keep(label, digest):
            return True
        if label[0] <= self._round:
            self._held_back.discard(digest)  # of a closed round: it is not acknowledged any more
        self._want(digest, sources)
        return False

    def keep_model(self, round_: Round, manifest: Manifest) -> None:
        self._index.add_whole(manifest)
        self._transfer.cancel(manifest.digest)
        self._relabel((round_, None), manifest.digest)

    def discard(self, digest: Digest) -> None:
        """Drop a blob that the driver stored but that came too late to be used."""
        if self._index.manifest(digest) is None:
            self._effects.drop.append(digest)

    def set_round(self, round_: Round) -> None:
        """Move retention to the committed round: keep tau rounds and one of grace."""
        if round_ == self._round:
            return
        self._round = round_
        tau = self._federation.tau
        self._repeat_at = None
        self._effects.drop.extend(self._index.expire(Round(round_ - tau - 1)))
        self._certifier.forget(Round(round_ - tau))
        self._offers = {slot: o for slot, o in self._offers.items() if slot[0] > round_ - tau}
        self._refused = {slot for slot in self._refused if slot[0] > round_ - tau}
        named = set(self._index.labels.values())
        self._transfer.keep_only(named)
        self._losses = {digest: loss for digest, loss in self._losses.items() if digest in named}
        self._held_back &= named

    def _relabel(self, label: Label, digest: Digest) -> None:
        for dropped in self._index.label(label, digest):
            self._transfer.cancel(dropped)
            self._effects.drop.append(dropped)

    def _fetch(
        self, manifest: Manifest, sources: tuple[NodeId, ...], scatter: Scatter | None = None
    ) -> None:
        self._want(manifest.digest, sources, manifest, scatter)

    def _scatter(self, offer: Offer) -> Scatter | None:
        return scatter_of(offer.author, self._members, self._me, len(offer.manifest.chunks))

    def _check_manifest(self, manifest: Manifest, codec: Codec) -> None:
        federation = self._federation
        check_manifest(manifest, federation.schema, codec, federation.chunk_bytes)

    def _send(self, peer: NodeId, message: Message) -> None:
        self._effects.send.append(Envelope((peer,), message))
