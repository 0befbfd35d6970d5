"""For tests of the pool and of the round client: one of each, without a network.

`PoolBench` adds a simulated disk, `ClientBench` a pool and a ledger.
"""

from defl.client import ClientEffects, RoundClient
from defl.finish import Finish
from defl.ids import Digest, NodeId, Round, digest_of
from defl.messages import (
    Agg,
    Attestation,
    ChunkRequest,
    Manifest,
    ManifestAnswer,
    ManifestRequest,
    Message,
    StoreAck,
    Transaction,
)
from defl.output import (
    Aggregated,
    Envelope,
    Persist,
    ReceivedChunk,
)
from defl.pool.pool import Pool, PoolEffects
from defl.sim.disk import Disk
from defl.work import model_blob, model_row, validate
from support.builders import Small

ME = NodeId(0)


class PoolBench:
    """One node's pool with its disk; effects are carried out in the order of duty."""

    def __init__(self, small: Small, round_: int = 0) -> None:
        self.small = small
        self.round = Round(round_)
        self.disk = Disk(small.durable())
        self.disk.store_blob(small.initial, small.initial_payload, 256)
        self.pool = self._pool()

    def _pool(self) -> Pool:
        signer = self.small.signers[ME]
        return Pool(self.small.federation, ME, signer, self.disk.recovered(), self.round)

    def restart(self, *, power_lost: bool = False) -> PoolEffects:
        if power_lost:
            self.disk.lose_power()
        self.pool = self._pool()
        self.pool.resume()
        return self.settle(100.0)

    def settle(self, now: float = 0.0) -> PoolEffects:
        self.pool.send_due(now)
        done = self.pool.take()
        self.disk.apply(Persist(acks=tuple(done.acks), offer=done.offer))
        for chunk in done.store:
            self.disk.store_chunk(chunk)
        for digest in done.drop:
            self.disk.drop(digest)
        return done

    def receive(self, peer: int, message: Message, now: float = 0.0) -> PoolEffects:
        self.pool.receive(NodeId(peer), message, now)
        return self.settle(now)

    def chunk(
        self, peer: int, digest: Digest, index: int, data: bytes, now: float = 0.0
    ) -> PoolEffects:
        event = ReceivedChunk(NodeId(peer), digest, index, data, digest_of(data))
        self.pool.receive_chunk(event, now)
        return self.settle(now)

    def deliver(self, peer: int, manifest: Manifest, payload: bytes) -> PoolEffects:
        """Deliver all chunks; returns the effects of the last one."""
        self.chunk(peer, manifest.digest, 0, payload[:256])
        return self.chunk(peer, manifest.digest, 1, payload[256:])

    def validate(self, digest: Digest) -> PoolEffects:
        self.pool.validated(digest, validate(self.small.federation, self.disk.read(digest)))
        return self.settle()

    def acknowledge(
        self, author: int, round_: int, manifest: Manifest, payload: bytes
    ) -> PoolEffects:
        """All steps from an offer to its ack."""
        self.receive(author, self.small.offer(author, round_, manifest))
        self.deliver(author, manifest, payload)
        return self.validate(manifest.digest)

    def publish(self, round_: int, manifest: Manifest, payload: bytes) -> PoolEffects:
        self.disk.store_blob(manifest, payload, 256)
        self.pool.publish(Round(round_), manifest)
        return self.settle()


def sent(
    effects: PoolEffects, kind: type[Message]
) -> list[tuple[tuple[NodeId, ...] | None, Message]]:
    return [
        (item.to, item.message)
        for item in effects.send
        if isinstance(item, Envelope) and isinstance(item.message, kind)
    ]


def acks_sent(effects: PoolEffects) -> list[Message]:
    return [message for _, message in sent(effects, StoreAck)]


def chunk_requests(effects: PoolEffects) -> list[tuple[int, int]]:
    """(peer, chunk index) of each request."""
    return [
        (item.to[0], item.message.index)
        for item in effects.send
        if isinstance(item, Envelope) and item.to and isinstance(item.message, ChunkRequest)
    ]


class ClientBench:
    """One node's round client with its pool, and a ledger that the test commits to."""

    def __init__(self, rounds: int = 5, *, muted: bool = False) -> None:
        self.small = Small(real=False, rounds=rounds)
        federation, signer = self.small.federation, self.small.signers[ME]
        durable = self.small.durable()
        self.pool = Pool(federation, ME, signer, durable, Round(0))
        self.finish = Finish(federation, ME, signer)
        self.client = RoundClient(federation, ME, signer, self.pool, durable.models, self.finish)
        self.pool.muted = self.client.muted = self.finish.muted = muted
        self.client.observing = muted
        self.state = self.small.ledger.genesis()
        self.model = self.small.initial
        self.blobs: dict[Digest, tuple[Manifest, bytes]] = {}
        self.client.set_state(self.state, 0.0)

    def restart(self, now: float, *, blobs_lost: bool = False) -> None:
        """Replaces the client by a new one, which has lost everything kept only in memory."""
        federation, signer = self.small.federation, self.small.signers[ME]
        if blobs_lost:
            self.pool = Pool(federation, ME, signer, self.small.durable(), self.state.round)
        self.client = RoundClient(federation, ME, signer, self.pool, (), self.finish)
        self.client.set_state(self.state, now)

    def at(self, now: float) -> ClientEffects:
        self.client.advance(now)
        return self.client.take()

    def aggs_at(self, now: float) -> list[int]:
        return [tx.round for tx in self.at(now).submit if isinstance(tx, Agg)]

    def commit(self, *transactions: Transaction, now: float) -> None:
        block = self.small.block(tuple(transactions), view=self.state.round + 1)
        self.state, _ = self.small.ledger.execute(self.state, block)
        self.client.set_state(self.state, now)

    def close_round(self, *authors: int, now: float) -> None:
        """Commits these members' updates and a quorum of AGGs, which closes the round."""
        round_ = self.state.round + 1
        updates = []
        for author in authors:
            manifest, payload = self.small.blob(10 * round_ + author, self.model.digest)
            self.blobs[manifest.digest] = manifest, payload
            digest, base = manifest.digest, manifest.base
            updates.append(self.small.upd(author, round_, digest=digest, base=base))
        self.commit(*updates, *(self.small.agg(member, round_) for member in range(3)), now=now)
        assert self.state.round == round_

    def requested(self, now: float) -> set[Digest]:
        """Return the blobs whose manifest or chunks the pool requests."""
        self.pool.send_due(now)
        return {
            item.message.digest
            for item in self.pool.take().send
            if isinstance(item, Envelope)
            and isinstance(item.message, ManifestRequest | ChunkRequest)
        }

    def fetch(self) -> None:
        """A peer delivers all committed blobs."""
        for manifest, payload in self.blobs.values():
            self.pool.receive(NodeId(1), ManifestAnswer(manifest), 0.0)
            for index in range(len(manifest.chunks)):
                data = payload[index * 256 : (index + 1) * 256]
                event = ReceivedChunk(NodeId(1), manifest.digest, index, data, digest_of(data))
                self.pool.receive_chunk(event, 0.0)

    def aggregated(self, round_: int) -> ClientEffects:
        row = model_row(self.small.federation, self.small.initial_payload) + round_
        self.model, _ = model_blob(self.small.federation, row)
        self.client.aggregated(Aggregated(Round(round_), self.model))
        return self.client.take()

    def to_round(self, round_: int, now: float) -> None:
        """Close, fetch and aggregate all rounds up to this one."""
        while self.state.round < round_:
            self.close_round(0, 1, 2, 3, now=now)
            self.at(now)
            self.fetch()
            self.at(now)
            self.aggregated(self.state.round)

    def serve(self, member: int, now: float) -> None:
        """This member returns the node's own attestation: it has the proof."""
        own = self.small.attestation(ME, self.state.round, self.model.digest)
        self.finish.answer(NodeId(member), own, now)

    def attestations(self, now: float) -> list[Envelope]:
        self.at(now)
        return [item for item in self.finish.take().send if isinstance(item.message, Attestation)]
