"""Swarm Learning's ledger: a log of signed metadata, the same at every node.

Seat n orders: it appends every valid record, signs the block and sends it to all nodes, which check
both signatures and execute in order. A record has 200 to 300 bytes with its block; weights never
enter the log.

Left out: Swarm Learning runs a private Ethereum with proof of authority. Here one live and honest
ordering service replaces its sealers, so the log never forks and never stops: only Swarm Learning's
own protocol can stop a federation. The service can withhold records but not forge them.
"""

from enum import StrEnum

import msgspec

from defl.committee import Federation
from defl.crypto import Scheme, Signer
from defl.errors import BadBlock, BadSignature, WrongAuthor
from defl.fields import ADigest, AMember, ANumber, ARound, ASignature
from defl.ids import NO_DIGEST, Digest, NodeId, Round, digest_of
from defl.lab.baselines.machine import (
    Duties,
    Event,
    Message,
    SeatEnvelope,
    SeatOutput,
    SeatReceived,
    Store,
)

# Blocks that arrived early; the log grows by a few records per node and round.
AHEAD_MAX = 4096
# More leaders than this in one round mean that none will succeed.
ATTEMPTS_MAX = 1000


class OrderingKind(StrEnum):
    ENROLL = "ENROLL"  # the author takes part
    READY = "READY"  # the author's model of this round has this digest
    LEAD = "LEAD"  # the author was designated and is merging
    MERGED = "MERGED"  # the merged model of this round has this digest
    ALIVE = "ALIVE"  # the author waits for another leader
    DONE = "DONE"  # the author holds the last model


class Record(Message, frozen=True, tag=1):
    kind: OrderingKind
    round: ARound
    author: AMember
    digest: ADigest
    number: ANumber  # which attempt at a leader
    signature: ASignature

    def statement(self, chain: Digest) -> Digest:
        fields = (self.kind, self.round, self.author, self.digest, self.number)
        return digest_of(b"defl/swarm/record" + chain + msgspec.msgpack.encode(fields))


class LogBlock(Message, frozen=True, tag=2):
    height: ANumber
    previous: ADigest
    record: Record
    signature: ASignature

    @property
    def id(self) -> Digest:
        fields = (self.height, self.previous, self.record)
        return digest_of(b"defl/swarm/block" + msgspec.msgpack.encode(fields))


def check_record(record: Record, federation: Federation, scheme: Scheme) -> None:
    committee = federation.committee
    if record.author >= committee.size:
        raise WrongAuthor(f"{record.author} is no member")
    if not scheme.verify(
        committee.keys[record.author], record.statement(federation.chain), record.signature
    ):
        raise BadSignature(f"a {record.kind} record that {record.author} did not sign")


class Orderer:
    """The ordering service."""

    def __init__(self, federation: Federation, signer: Signer, scheme: Scheme) -> None:
        self._federation = federation
        self._signer = signer
        self._scheme = scheme
        self._height = 0
        self._tip = NO_DIGEST
        self._seen: set[tuple[OrderingKind, Round, NodeId, int]] = set()
        self._done: set[NodeId] = set()

    @property
    def finished(self) -> bool:
        return len(self._done) == self._federation.committee.size

    def handle(self, event: Event, now: float) -> SeatOutput:  # noqa: ARG002 - it has no timer
        duties = Duties.none()
        match event:
            case SeatReceived(peer=peer, message=Record() as record):
                self._order(peer, record, duties)
            case _:
                pass
        return duties.output()

    def _order(self, peer: NodeId, record: Record, duties: Duties) -> None:
        if record.author != peer:
            raise WrongAuthor(f"{peer} submits a record of {record.author}")
        check_record(record, self._federation, self._scheme)
        slot = (record.kind, record.round, record.author, record.number)
        far = record.round > self._federation.rounds or record.number > ATTEMPTS_MAX
        if far or slot in self._seen:
            return  # one record per slot: no node can grow the log without bound
        self._seen.add(slot)
        if record.kind is OrderingKind.DONE:
            self._done.add(record.author)
        unsigned = LogBlock(self._height, self._tip, record, b"")
        block = msgspec.structs.replace(unsigned, signature=self._signer.sign(unsigned.id))
        self._height += 1
        self._tip = block.id
        duties.store.append(_stored(block))
        duties.send.append(SeatEnvelope(self._federation.committee.members, block))


class OrderingReplica:
    """A node's copy of the log, in order, and its own records."""

    def __init__(
        self,
        federation: Federation,
        me: NodeId,
        signer: Signer,
        scheme: Scheme,
        orderer_key: bytes,
    ) -> None:
        self._federation = federation
        self._orderer_key = orderer_key
        self._me = me
        self._signer = signer
        self._scheme = scheme
        self._orderer = NodeId(federation.committee.size)
        self._height = 0
        self._tip = NO_DIGEST
        self._ahead: dict[int, LogBlock] = {}

    def record(self, kind: OrderingKind, round_: Round, digest: Digest, number: int) -> Record:
        unsigned = Record(kind, round_, self._me, digest, number, b"")
        signature = self._signer.sign(unsigned.statement(self._federation.chain))
        return msgspec.structs.replace(unsigned, signature=signature)

    def blocks(self, peer: NodeId, block: LogBlock) -> list[LogBlock]:
        """The blocks that can be executed after this one arrived."""
        if peer != self._orderer:
            raise WrongAuthor(f"{peer} orders nothing")
        if not self._scheme.verify(self._orderer_key, block.id, block.signature):
            raise BadSignature(f"block {block.height} that the ordering service did not sign")
        check_record(block.record, self._federation, self._scheme)
        if self._height <= block.height < self._height + AHEAD_MAX:
            self._ahead[block.height] = block
        ready = []
        while self._height in self._ahead:
            following = self._ahead.pop(self._height)
            if following.previous != self._tip:
                raise BadBlock(f"block {following.height} does not follow the one before it")
            self._tip = following.id
            self._height += 1
            ready.append(following)
        return ready

    def stored(self, block: LogBlock) -> Store:
        return _stored(block)


def _stored(block: LogBlock) -> Store:
    return Store(f"log/{block.height:08d}", msgspec.msgpack.encode(block))
