"""Attacks on the pool: withheld blobs, false announcements, two blobs for one round, blobs that
break the schema, also while a member that starts may not sign yet.
"""

import random
from collections.abc import Iterable, Iterator

import numpy as np
from msgspec.structs import replace

from defl.committee import Federation
from defl.crypto import Signer
from defl.fields import bitmap_of
from defl.ids import Digest, NodeId, Round, digest_of
from defl.messages import (
    Chunk,
    ChunkRequest,
    Gossip,
    Have,
    Manifest,
    ManifestAnswer,
    NotHeld,
    Offer,
    Statements,
    StatementsRequest,
    StoreAck,
    Upd,
    ack_statement,
)
from defl.output import Envelope, Event, Output, Received, ServeChunk
from defl.participant import Participant
from defl.pool.announcing import bitmap_of_chunks
from defl.pool.weights import Base, encode, manifest_of
from defl.schema import Row
from defl.sim.byzantine.liar import Item, Liar

# Rounds whose blobs are kept: as long as honest nodes request them.
ROUNDS_REMEMBERED = 8
# A recall-staller answers within this time after the last chunk that it serves: while the update is
# being checked. By default a message takes some 40 ms, a check 25 ms.
ANSWERS_WITHIN_S = 0.03


class Withholder(Liar):
    """Acknowledges blobs and never serves them; shows its own to just enough peers."""

    def __init__(self, participant: Participant, signer: Signer, rng: random.Random) -> None:
        super().__init__(participant, signer, rng)
        self._shown: dict[Digest, tuple[NodeId, ...]] = {}

    def _chosen(self, round_: Round) -> tuple[NodeId, ...]:
        """q - 1 peers, different ones each round: with this node's own ack, a certificate."""
        start = round_ % len(self._peers)
        return (self._peers[start:] + self._peers[:start])[: self._committee.quorum - 1]

    def instead(self, item: Item) -> Iterable[Item]:
        match item:
            case ServeChunk(to=peer, digest=digest):
                if peer in self._shown.get(digest, ()):
                    return (item,)
                return (Envelope((peer,), NotHeld(digest)),) if self._rng.random() < 0.5 else ()
            case Envelope(message=ManifestAnswer()):
                return ()
            case Envelope(message=Offer(author=author) as offer) if author == self._me:
                chosen = self._chosen(offer.round)
                self._shown[offer.manifest.digest] = chosen
                if len(self._shown) > ROUNDS_REMEMBERED:
                    del self._shown[next(iter(self._shown))]
                targets = chosen if item.to is None else tuple(m for m in item.to if m in chosen)
                return (Envelope(targets, offer),)
        return (item,)


class LateWithholder(Liar):
    """Serves its own update until it is committed, and no blob after that; acknowledges all."""

    def instead(self, item: Item) -> Iterable[Item]:
        match item:
            case ServeChunk(to=peer, digest=digest) if self._is_committed(digest):
                return (Envelope((peer,), NotHeld(digest)),)
            case Envelope(message=ManifestAnswer()):
                return ()
        return (item,)

    def _is_committed(self, digest: Digest) -> bool:
        state = self.participant.state
        rounds = (state.current, *(closed.updates for closed in state.closed))
        return any(ref.digest == digest for updates in rounds for ref in updates)


class Braggart(Liar):
    """Announces every update as soon as it hears of it, and serves none but its own."""

    def instead(self, item: Item) -> Iterable[Item]:
        match item:
            case ServeChunk(to=peer, digest=digest):
                if self._is_own(digest):
                    return (item,)
                return (Envelope((peer,), NotHeld(digest)),) if self._rng.random() < 0.5 else ()
            case Envelope(message=Have()):
                return ()  # it has said so already
        return (item,)

    def _is_own(self, digest: Digest) -> bool:
        labels = self.participant.pool.labels
        return any(named == digest and label[1] == self._me for label, named in labels.items())

    def besides(self, event: Event, now: float) -> Iterator[Item]:  # noqa: ARG002
        match event:
            case Received(message=Offer(author=author, manifest=manifest)) if author != self._me:
                count = len(manifest.chunks)
                yield Envelope(
                    self._peers, Have(manifest.digest, bitmap_of_chunks((1 << count) - 1, count))
                )


class FalseBlob:
    """A blob beside the honest participant's own: its offer, its chunks, and acks for it."""

    def __init__(
        self,
        federation: Federation,
        me: NodeId,
        signer: Signer,
        round_: Round,
        manifest: Manifest,
        chunks: tuple[bytes, ...],
    ) -> None:
        self._chain, self._epoch = federation.chain, federation.epoch
        self._committee = federation.committee
        self._me = me
        self._signer = signer
        self.manifest = manifest
        self.chunks = chunks
        unsigned = Offer(round_, me, manifest, b"")
        signature = signer.sign(unsigned.statement(self._chain, self._epoch))
        self.offer = replace(unsigned, signature=signature)
        statement = ack_statement(
            self._chain, self._epoch, round_, me, manifest.digest, manifest.base, manifest.size
        )
        self._acks = {me: signer.sign(statement)}

    @property
    def digest(self) -> Digest:
        return self.manifest.digest

    def answer(self, peer: NodeId, request: ChunkRequest) -> Iterator[Item]:
        if request.index < len(self.chunks):
            data = self.chunks[request.index]
            yield Envelope((peer,), Chunk(self.digest, request.index, memoryview(data)))

    def count(self, ack: StoreAck) -> Upd | None:
        """A validly certified UPD, once q members acknowledged the blob."""
        if ack.acker in self._acks:
            return None
        self._acks[ack.acker] = ack.signature
        if len(self._acks) != self._committee.quorum:
            return None
        ackers = sorted(self._acks)
        manifest = self.manifest
        upd = Upd(
            self.offer.round,
            self._me,
            manifest.digest,
            manifest.size,
            manifest.base,
            bitmap_of(ackers, self._committee.slots),
            tuple(self._acks[acker] for acker in ackers),
            b"",
        )
        return replace(upd, signature=self._signer.sign(upd.statement(self._chain, self._epoch)))


class BlobLiar(Liar):
    """Offers blobs of its own making and serves them."""

    def __init__(self, participant: Participant, signer: Signer, rng: random.Random) -> None:
        super().__init__(participant, signer, rng)
        self._false: dict[Digest, FalseBlob] = {}

    def _row(self) -> Row:
        values = self._federation.schema.values
        row: Row = np.random.default_rng(self._rng.getrandbits(32)).random(values, dtype=np.float32)
        return row

    def _build(self, round_: Round, base: Digest, row: Row) -> FalseBlob:
        federation = self._federation
        zero = Base(np.zeros_like(row), round_)
        payload = bytes(encode(row, federation.schema, federation.codec, zero))
        size = federation.chunk_bytes
        manifest = manifest_of(payload, federation.schema, federation.codec, size, base)
        chunks = tuple(payload[start : start + size] for start in range(0, len(payload), size))
        return self._offer_blob(round_, manifest, chunks)

    def _offer_blob(
        self, round_: Round, manifest: Manifest, chunks: tuple[bytes, ...]
    ) -> FalseBlob:
        blob = FalseBlob(self._federation, self._me, self._signer, round_, manifest, chunks)
        self._false[blob.digest] = blob
        if len(self._false) > ROUNDS_REMEMBERED:
            del self._false[next(iter(self._false))]
        return blob

    def _existing_offer(self, round_: Round) -> Offer | None:
        """The newest false offer for this round."""
        offers = [blob.offer for blob in self._false.values() if blob.offer.round == round_]
        return offers[-1] if offers else None

    def instead(self, item: Item) -> Iterable[Item]:
        match item:
            case Envelope(message=NotHeld(digest=digest)) if digest in self._false:
                return ()  # `besides` answers
        return (item,)

    def besides(self, event: Event, now: float) -> Iterator[Item]:  # noqa: ARG002
        match event:
            case Received(peer=peer, message=ChunkRequest(digest=digest) as request):
                if digest in self._false:
                    yield from self._false[digest].answer(peer, request)
            case Received(message=StoreAck(author=author, digest=digest) as ack):
                if author == self._me and digest in self._false:
                    upd = self._false[digest].count(ack)
                    if upd is not None:
                        yield from self._certified(upd)

    def _certified(self, upd: Upd) -> Iterable[Item]:  # noqa: ARG002
        return ()


class TwoFaced(BlobLiar):
    """Two blobs for one round, one for each half of the peers; every other one has a false base."""

    def instead(self, item: Item) -> Iterable[Item]:
        match item:
            case Envelope(message=Offer(author=author) as offer) if author == self._me:
                twin = self._existing_offer(offer.round) or self._twin(offer)
                first, second = self._halves
                return Envelope(first, offer), Envelope(second, twin)
        return super().instead(item)

    def _twin(self, offer: Offer) -> Offer:
        base = offer.manifest.base if offer.round % 2 else self._noise()
        return self._build(offer.round, base, self._row()).offer

    def _certified(self, upd: Upd) -> Iterable[Item]:
        return (Envelope(None, Gossip((upd,))),)


class MalformedBlob(BlobLiar):
    """Updates that no schema allows, malformed in a different way each round."""

    def instead(self, item: Item) -> Iterable[Item]:
        match item:
            case Envelope(to=to, message=Offer(author=author) as offer) if author == self._me:
                bad = self._existing_offer(offer.round) or self._malformed_offer(offer)
                return (Envelope(to, bad),)
        return super().instead(item)

    def _malformed_offer(self, offer: Offer) -> Offer:
        ways = (
            self._not_a_number,
            self._huge,
            self._wrong_shape,
            self._wrong_size,
            self._truncated,
            self._too_long,
        )
        return ways[(offer.round - 1) % len(ways)](offer.round, offer.manifest.base).offer

    def _not_a_number(self, round_: Round, base: Digest) -> FalseBlob:
        row = self._row()
        row[self._rng.randrange(row.size)] = np.nan
        with np.errstate(invalid="ignore"):
            return self._build(round_, base, row)

    def _huge(self, round_: Round, base: Digest) -> FalseBlob:
        return self._build(round_, base, self._row() * np.float32(1e38))

    def _wrong_shape(self, round_: Round, base: Digest) -> FalseBlob:
        blob = self._build(round_, base, self._row())
        return self._offer_blob(round_, replace(blob.manifest, schema=self._noise()), ())

    def _wrong_size(self, round_: Round, base: Digest) -> FalseBlob:
        blob = self._build(round_, base, self._row())
        return self._offer_blob(round_, replace(blob.manifest, size=blob.manifest.size + 4), ())

    def _truncated(self, round_: Round, base: Digest) -> FalseBlob:
        """The manifest is right; the chunks lack their last bytes."""
        blob = self._build(round_, base, self._row())
        return self._offer_blob(round_, blob.manifest, tuple(c[:-3] for c in blob.chunks))

    def _too_long(self, round_: Round, base: Digest) -> FalseBlob:
        """The manifest names chunks that are longer than its size says."""
        blob = self._build(round_, base, self._row())
        chunks = tuple(chunk + bytes(8) for chunk in blob.chunks)
        manifest = replace(blob.manifest, chunks=tuple(digest_of(chunk) for chunk in chunks))
        return self._offer_blob(round_, manifest, chunks)


class RecallStaller(MalformedBlob):
    """Chooses when a member that starts may sign: it withholds its answer to the recall, offers the
    member an update with NaN, serves it, and answers while the update is being checked. Otherwise
    honest. Once the update is certified, nobody gets its bytes any more."""

    def __init__(self, participant: Participant, signer: Signer, rng: random.Random) -> None:
        super().__init__(participant, signer, rng)
        self._withheld: dict[NodeId, Item] = {}  # answers, by asker
        self._due: dict[NodeId, float] = {}  # when they are given
        self._hidden: set[Digest] = set()

    def handle(self, event: Event, now: float) -> Output:
        output = super().handle(event, now)
        times = [at for at in (output.wake_at, *self._due.values()) if at is not None]
        return replace(output, wake_at=min(times, default=None))

    def instead(self, item: Item) -> Iterable[Item]:
        match item:
            case Envelope(to=(asker,), message=Statements()):
                self._withheld[asker] = item
                return ()
            case Envelope(message=Offer(author=author, round=round_)) if author == self._me:
                if self._existing_offer(round_) is None:
                    return (item,)
        return super().instead(item)

    def besides(self, event: Event, now: float) -> Iterator[Item]:
        match event:
            case Received(peer=peer, message=StatementsRequest()):
                yield Envelope((peer,), self._offer_to_starter())
            case Received(peer=peer, message=ChunkRequest(digest=digest)) if digest in self._false:
                if digest in self._hidden:
                    return
                if peer in self._withheld:
                    self._due[peer] = now + self._rng.uniform(0.0, ANSWERS_WITHIN_S)
        yield from super().besides(event, now)
        for peer in [peer for peer, at in self._due.items() if at <= now]:
            del self._due[peer]
            yield self._withheld.pop(peer)

    def _offer_to_starter(self) -> Offer:
        """For the next round if it has an honest offer out for the open one."""
        round_ = Round(self._round + 1)
        if self.participant.pool.offer_for(round_) and not self._existing_offer(round_):
            round_ = Round(round_ + 1)
        base = self.participant.model or self._federation.initial
        return self._existing_offer(round_) or self._not_a_number(round_, base).offer

    def _certified(self, upd: Upd) -> Iterable[Item]:
        self._hidden.add(upd.digest)
        return (Envelope(None, Gossip((upd,))),)
