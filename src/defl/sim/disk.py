"""A simulated disk: what survives a killed process, and what survives a power cut.

Persists are atomic and synced. Other members' blobs are written but not synced, so a power cut
loses them. An update is synced before it is offered, together with the aggregate it was trained
from: even if all members lose power at once, every author has its update, and every model exists
or can be aggregated again.
"""

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace

from msgspec.msgpack import encode

from defl.ids import Digest, NodeId, Round
from defl.messages import Block, Evidence, Manifest, Offer, Snapshot, StoreAck
from defl.output import Durable, Persist, SafetyRecord, StoreChunk


@dataclass(slots=True)
class StoredBlob:
    manifest: Manifest
    chunks: dict[int, bytes]
    synced: bool = False
    own: bool = False  # this node computed it

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
        self.blobs: dict[Digest, StoredBlob] = {}
        self.full = False

    def copy(self) -> "Disk":
        """A copy, as an operator would copy the folder."""
        copied = copy(self)
        for name in ("blocks", "acks", "offers", "models"):
            setattr(copied, name, dict(getattr(self, name)))
        copied.evidence = list(self.evidence)
        copied.blobs = {
            digest: replace(blob, chunks=dict(blob.chunks)) for digest, blob in self.blobs.items()
        }
        return copied

    def apply(self, persist: Persist) -> None:
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
        forget = persist.forget_round
        if forget is not None:
            self.acks = {slot: ack for slot, ack in self.acks.items() if slot[0] > forget}
            self.offers = {r: offer for r, offer in self.offers.items() if r > forget}
            self.models = {r: model for r, model in self.models.items() if r > forget}

    def store_chunk(self, chunk: StoreChunk) -> None:
        digest = chunk.manifest.digest
        blob = self.blobs.setdefault(digest, StoredBlob(chunk.manifest, {}))
        blob.chunks[chunk.index] = bytes(chunk.data)

    def place(self, manifest: Manifest, payload: bytes | memoryview, chunk_bytes: int) -> None:
        """Place a blob that this node computed: complete, but not synced yet."""
        chunks = {
            index: bytes(payload[index * chunk_bytes : (index + 1) * chunk_bytes])
            for index in range(len(manifest.chunks))
        }
        self.blobs[manifest.digest] = StoredBlob(manifest, chunks, own=True)

    def store_blob(self, manifest: Manifest, payload: bytes | memoryview, chunk_bytes: int) -> None:
        """Place it and sync it together with all of this node's earlier blobs."""
        self.place(manifest, payload, chunk_bytes)
        for blob in self.blobs.values():
            blob.synced |= blob.own

    def drop(self, digest: Digest) -> None:
        self.blobs.pop(digest, None)

    def read(self, digest: Digest) -> bytes:
        return self.blobs[digest].payload

    def lose_power(self) -> None:
        self.blobs = {digest: blob for digest, blob in self.blobs.items() if blob.synced}

    def recovered(self) -> Durable:
        return Durable(
            record=self.record,
            snapshot=self.snapshot,
            blocks=tuple(self.blocks.values()),
            acks=tuple(self.acks.values()),
            offers=tuple(self.offers.values()),
            models=tuple(self.models.items()),
            evidence=tuple(self.evidence),
            held=tuple((blob.manifest, frozenset(blob.chunks)) for blob in self.blobs.values()),
        )

    @property
    def stored_bytes(self) -> int:
        """Blobs, blocks, snapshot and records, as they would be written."""
        blobs = sum(len(data) for blob in self.blobs.values() for data in blob.chunks.values())
        records = (self.record, self.snapshot, self.blocks, self.acks, self.offers, self.models)
        return blobs + sum(len(encode(list(_values(record)))) for record in records)


def _values(record: object) -> Iterable[object]:
    return record.values() if isinstance(record, dict) else (record,)
