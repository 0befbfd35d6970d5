"""A simulated disk: what survives a killed process, and what survives a power cut.

Persists are atomic and synced. A blob is written first and survives a power cut only once it is
synced. A sync may fail: the blob can still be read, but no later sync makes it durable. Chunks may
rot, which whoever reads them notices. `writes.py` says when a write reaches this disk.
"""

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, replace

from msgspec.msgpack import encode

from defl.ids import Digest, NodeId, Round, digest_of
from defl.messages import (
    Block,
    Evidence,
    Handover,
    Manifest,
    Offer,
    Snapshot,
    StoreAck,
)
from defl.output import Durable, Persist, SafetyRecord, StoreChunk, Switch


@dataclass(slots=True)
class StoredBlob:
    manifest: Manifest
    chunks: dict[int, bytes]
    synced: bool = False
    sync_failed: bool = False
    rotten: set[int] = field(default_factory=set)  # chunks, until somebody reads them
    damaged: bool = False  # a rotten chunk was discarded

    @property
    def whole(self) -> bool:
        return len(self.chunks) == len(self.manifest.chunks)

    @property
    def payload(self) -> bytes:
        return b"".join(self.chunks[index] for index in sorted(self.chunks))


class Disk:
    def __init__(self, durable: Durable) -> None:
        self.record: SafetyRecord | None = durable.record
        self.snapshot: Snapshot | None = durable.snapshot
        self.blocks: dict[Digest, Block] = {block.id: block for block in durable.blocks}
        self.acks: dict[tuple[Round, NodeId], StoreAck] = {}
        self.offers: dict[Round, Offer] = {}
        self.models: dict[Round, Manifest] = dict(durable.models)
        self.evidence: list[Evidence] = list(durable.evidence)
        self.attestations = {(a.round, a.author): a for a in durable.attestations}
        self.blobs: dict[Digest, StoredBlob] = {}
        self.switch: Switch | None = durable.switch
        self.handovers: dict[int, Handover] = {}
        self.full = False
        self.lost: set[Digest] = set()  # blobs dropped after a failed sync

    def copy(self) -> "Disk":
        """A copy, as an operator would copy the folder."""
        copied = copy(self)
        for name in ("blocks", "acks", "offers", "models", "handovers", "attestations"):
            setattr(copied, name, dict(getattr(self, name)))
        copied.evidence = list(self.evidence)
        copied.blobs = {
            digest: replace(blob, chunks=dict(blob.chunks), rotten=set(blob.rotten))
            for digest, blob in self.blobs.items()
        }
        return copied

    def apply(self, persist: Persist) -> None:
        if persist.switch is not None:
            self._enter(persist.switch)
        if persist.record is not None:
            self.record = persist.record
        self.blocks.update((block.id, block) for block in persist.blocks)
        if persist.snapshot is not None:
            self.snapshot = persist.snapshot
            lowest = persist.snapshot.block.height
            self.blocks = {i: b for i, b in self.blocks.items() if b.height > lowest}
        self.acks.update(((ack.round, ack.author), ack) for ack in persist.acks)
        if persist.offer is not None:
            self.offers[persist.offer.round] = persist.offer
        if persist.model is not None:
            self.models[persist.model[0]] = persist.model[1]
        self.evidence.extend(persist.evidence)
        self.attestations.update(((a.round, a.author), a) for a in persist.attestations)
        forget = persist.forget_round
        if forget is not None:
            self.acks = {slot: ack for slot, ack in self.acks.items() if slot[0] > forget}
            self.offers = {r: offer for r, offer in self.offers.items() if r > forget}
            self.models = {r: model for r, model in self.models.items() if r > forget}

    def _enter(self, switch: Switch) -> None:
        self.switch = switch
        self.handovers[switch.handover.epoch] = switch.handover
        self.snapshot = None
        self.blocks.clear()
        self.acks.clear()
        self.offers.clear()
        self.attestations.clear()

    def store_chunk(self, chunk: StoreChunk) -> None:
        digest = chunk.manifest.digest
        blob = self.blobs.setdefault(digest, StoredBlob(chunk.manifest, {}))
        if chunk.index in blob.chunks:
            return  # an equal chunk stays, like an equal blob
        blob.chunks[chunk.index] = bytes(chunk.data)
        blob.synced = False
        if blob.whole:
            self.lost.discard(digest)

    def place(self, manifest: Manifest, payload: bytes | memoryview, chunk_bytes: int) -> None:
        """Put a whole blob in place, not synced yet. An equal one that is here stays."""
        held = self.blobs.get(manifest.digest)
        if held is not None and held.whole:
            return
        chunks = {
            index: bytes(payload[index * chunk_bytes : (index + 1) * chunk_bytes])
            for index in range(len(manifest.chunks))
        }
        self.blobs[manifest.digest] = StoredBlob(manifest, chunks)
        self.lost.discard(manifest.digest)

    def sync(self, digest: Digest) -> None:
        blob = self.blobs.get(digest)
        if blob is not None:
            blob.synced = blob.whole and not blob.sync_failed

    def store_blob(self, manifest: Manifest, payload: bytes | memoryview, chunk_bytes: int) -> None:
        self.place(manifest, payload, chunk_bytes)
        self.sync(manifest.digest)

    def discard(self, digest: Digest, index: int) -> None:
        """Stop holding a damaged chunk."""
        blob = self.blobs[digest]
        del blob.chunks[index]
        blob.damaged = True
        blob.rotten.discard(index)
        blob.synced = False

    def drop(self, digest: Digest) -> None:
        blob = self.blobs.pop(digest, None)
        if blob is not None and blob.sync_failed:
            self.lost.add(digest)

    def is_whole(self, digest: Digest) -> bool:
        """All chunks are here, or were until the disk failed."""
        blob = self.blobs.get(digest)
        return (blob is not None and blob.whole) or self._failed(digest)

    def is_synced(self, digest: Digest) -> bool:
        """It survives a power cut, or would have if the disk had not failed."""
        blob = self.blobs.get(digest)
        return (blob is not None and blob.synced) or self._failed(digest)

    def survives(self, digest: Digest) -> bool:
        """Whether a new process still has this blob after a power cut."""
        blob = self.blobs.get(digest)
        return blob is not None and blob.synced and not blob.rotten

    def _failed(self, digest: Digest) -> bool:
        blob = self.blobs.get(digest)
        return digest in self.lost or (blob is not None and blob.damaged)

    def holds(self, digest: Digest) -> bool:
        """All bytes are here, and they are the right ones."""
        blob = self.blobs.get(digest)
        if blob is None or blob.manifest.digest != digest:
            return False
        return all(
            index in blob.chunks and digest_of(blob.chunks[index]) == chunk
            for index, chunk in enumerate(blob.manifest.chunks)
        )

    def read(self, digest: Digest) -> bytes:
        return self.blobs[digest].payload

    def lose_power(self) -> None:
        self.blobs = {digest: blob for digest, blob in self.blobs.items() if blob.synced}

    def recovered(self) -> Durable:
        """What a new process finds; it checks every chunk and discards the damaged ones. It cannot
        tell that an earlier process saw a sync fail and died before it dropped the blob."""
        for digest, blob in self.blobs.items():
            if blob.sync_failed:
                self.lost.add(digest)
            for index in sorted(blob.rotten):
                self.discard(digest, index)
        return Durable(
            record=self.record,
            snapshot=self.snapshot,
            blocks=tuple(self.blocks.values()),
            acks=tuple(self.acks.values()),
            offers=tuple(self.offers.values()),
            models=tuple(self.models.items()),
            evidence=tuple(self.evidence),
            attestations=tuple(self.attestations.values()),
            held=tuple((blob.manifest, frozenset(blob.chunks)) for blob in self.blobs.values()),
            switch=self.switch,
        )

    @property
    def stored_bytes(self) -> int:
        """Blobs, blocks, snapshot and records, as they would be written."""
        blobs = sum(len(data) for blob in self.blobs.values() for data in blob.chunks.values())
        records = (self.record, self.snapshot, self.blocks, self.acks, self.offers, self.models)
        return blobs + sum(len(encode(list(_values(record)))) for record in records)


def _values(record: object) -> Iterable[object]:
    return record.values() if isinstance(record, dict) else (record,)
