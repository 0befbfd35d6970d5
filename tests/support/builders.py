"""For most test files: small federations and correctly signed messages.

`Small` holds the private keys of all its members, so it can sign any message that any of them,
honest or not, could send. `tampered` changes fields of a frozen message and keeps the signature.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from defl.cards import Card
from defl.changes import Approve, Change, Operation, Ready, Rounds
from defl.committee import Federation
from defl.consensus.chain import genesis_of
from defl.consensus.leaders import leader_of
from defl.crypto import Signer, Tag, statement
from defl.fields import bitmap_of
from defl.ids import Digest, Height, NodeId, Round, View, digest_of
from defl.ingress import Ingress
from defl.ledger import Ledger
from defl.messages import (
    QC,
    TC,
    Agg,
    Attestation,
    Block,
    BlockRequest,
    Blocks,
    Certificates,
    Chunk,
    ChunkRequest,
    Evidence,
    Gossip,
    Handover,
    Have,
    Header,
    Manifest,
    ManifestAnswer,
    ManifestRequest,
    Message,
    NotHeld,
    Offer,
    Pace,
    Proposal,
    SignedHeader,
    Snapshot,
    Statements,
    StatementsRequest,
    Status,
    StoreAck,
    Timeout,
    Transaction,
    Upd,
    Vote,
    ack_statement,
    attestation_statement,
    genesis_qc,
    timeout_statement,
    transactions_root,
    vote_statement,
)
from defl.output import ClosedRound, Durable, Output, Received, Tick
from defl.participant import Participant
from defl.participant_parts import first_durable
from defl.pool.weights import encode, manifest_of
from defl.recall import NOTHING_SEEN
from defl.sim.scenario import federation_of, signers_of
from defl.verifier import Verifier

UNSIGNED = bytes(64)

T = TypeVar("T", bound=Struct)


def tampered(message: T, **fields: Any) -> T:
    return replace(message, **fields)


def with_charter(federation: Federation, **fields: Any) -> Federation:
    return replace(federation, charter=replace(federation.charter, **fields))


def name(text: str) -> Digest:
    """A digest of something that the test refers to but does not need."""
    return digest_of(text.encode())


def nodes(*members: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(member) for member in members)


def let_sign(participant: Participant, now: float = 0.0) -> Output:
    """Enough peers report that they have seen nothing from the node, so it may sign from now on."""
    committee = participant.federation.committee
    others = [member for member in committee.members if member != participant.me]
    output = participant.handle(Tick(), now)
    for peer in others[: committee.quorum - 1]:
        output = participant.handle(Received(peer, NOTHING_SEEN, participant.epoch), now)
    return output


class Small:
    """A federation whose members' keys are all known."""

    def __init__(
        self,
        size: int = 4,
        *,
        real: bool = True,
        seed: int = 1,
        rounds: int = 3,
        values: int = 100,
        chunk_bytes: int = 256,
        aggregation: str = "fed_avg",  # remembers nothing, so a row has exactly `values` values
        **facts: Any,
    ) -> None:
        self.signers, self.scheme = signers_of(size, seed=seed, real=real)
        self.federation, (self.initial, self.initial_payload) = federation_of(
            self.signers,
            rounds=rounds,
            values=values,
            chunk_bytes=chunk_bytes,
            aggregation=aggregation,
            **facts,
        )
        self.size = size
        self._enter(self.federation)

    def _enter(self, federation: Federation, closed: tuple[ClosedRound, ...] = ()) -> None:
        self.federation = federation
        self.chain, self.epoch = federation.chain, federation.epoch
        self.ledger = Ledger(federation, closed)
        self.genesis = genesis_of(federation, self.ledger)
        self.genesis_qc = genesis_qc(self.genesis.id)
        self.quorum = federation.committee.quorum

    def in_epoch_of(self, participant: Participant) -> "Small":
        """Return the same members, with the same keys, in the epoch that this one is in."""
        small = copy(self)
        small._enter(participant.federation, participant.closed)
        return small

    def verifier(self) -> Verifier:
        return Verifier(self.federation, self.scheme, self.genesis.id)

    def ingress(self) -> Ingress:
        return Ingress(self.federation, self.scheme)

    def durable(self) -> Durable:
        return first_durable(self.federation, self.initial)

    def sign(self, member: int, message: Digest) -> bytes:
        return self.signers[member].sign(message)

    def first(self, count: int | None = None) -> tuple[NodeId, ...]:
        """The first `count` members, by default a quorum."""
        return nodes(*range(self.quorum if count is None else count))

    # --- Consensus -------------------------------------------------------------------------

    def vote(self, author: int, view: int, block: Digest) -> Vote:
        message = vote_statement(self.chain, self.epoch, View(view), block)
        signature = self.sign(author, message)
        return Vote(self.epoch, View(view), block, NodeId(author), signature, View(0), View(0))

    def qc(self, view: int, block: Digest, members: Sequence[NodeId] | None = None) -> QC:
        members = self.first() if members is None else members
        signatures = tuple(self.vote(member, view, block).signature for member in members)
        return QC(View(view), block, bitmap_of(members, self.size), signatures)

    def timeout(
        self, author: int, view: int, high_qc: QC | None = None, tc: TC | None = None
    ) -> Timeout:
        high_qc = self.genesis_qc if high_qc is None else high_qc
        message = timeout_statement(self.chain, self.epoch, View(view), high_qc.view)
        signature = self.sign(author, message)
        return Timeout(self.epoch, View(view), high_qc, tc, NodeId(author), signature)

    def tc(self, view: int, qc: QC | None = None, high_views: Sequence[int] | None = None) -> TC:
        """A TC of the first q members; it carries `qc`, whatever views they report."""
        qc = self.genesis_qc if qc is None else qc
        views = tuple(View(v) for v in (high_views or [qc.view] * self.quorum))
        signatures = tuple(
            self.sign(member, timeout_statement(self.chain, self.epoch, View(view), high))
            for member, high in enumerate(views)
        )
        members = self.first(len(views))
        return TC(View(view), bitmap_of(members, self.size), views, signatures, qc)

    def block(
        self,
        transactions: tuple[Transaction, ...] = (),
        *,
        view: int = 1,
        parent: Block | None = None,
        **fields: Any,
    ) -> Block:
        """A block on `parent` (default: genesis) with a valid QC; `fields` replace honest ones."""
        parent = self.genesis if parent is None else parent
        qc = self.genesis_qc if parent.height == 0 else self.qc(parent.view, parent.id)
        honest = Header(
            epoch=self.epoch,
            view=View(view),
            height=Height(parent.height + 1),
            parent=parent.id,
            qc=qc,
            tc=None if qc.view == view - 1 else self.tc(view - 1, qc),
            transactions_root=transactions_root(transactions),
            committed=self.genesis.id,
            state_root=self.genesis.header.state_root,
            author=leader_of(self.chain, self.federation.committee.members, View(view)),
        )
        return Block(replace(honest, **fields), transactions)

    def proposal(self, block: Block) -> Proposal:
        header = block.header
        message = statement(Tag.PROPOSAL, self.chain, header.epoch, header.view, header.id)
        return Proposal(block, self.sign(header.author, message))

    def snapshot(self) -> Snapshot:
        """The state after block 1, named by the certified block 2."""
        return self._snapshot_of((self.agg(0, self.federation.first_round),))

    def handover(self) -> Handover:
        """Round 1 closes while a later end is agreed, which ends the epoch."""
        return Handover(self._snapshot_of(self._ending()))

    def _ending(self) -> tuple[Transaction, ...]:
        round_ = self.federation.first_round
        change = self.change(0, round_, Rounds(Round(self.federation.rounds + 1)))
        others = self.federation.committee.members[1:]
        approvals = tuple(self.approve(member, round_, change) for member in others)
        updates = tuple(self.upd(member, round_) for member in self.federation.committee.members)
        return (change, *approvals, *updates)

    def ending_chain(self) -> tuple[Block, ...]:
        """Blocks in consecutive views: the first one ends the epoch, as `handover` does. A QC on
        the third commits the first, a QC on the fourth proves the end."""
        first = self.block(self._ending())
        second = self.block(view=2, parent=first)
        third = self.block(view=3, parent=second)
        state, _ = self.ledger.execute(self.ledger.genesis(), first)
        root = self.ledger.root_of(self.ledger.encode(state))
        fourth = self.block(view=4, parent=third, committed=first.id, state_root=root)
        return first, second, third, fourth

    def _snapshot_of(self, transactions: tuple[Transaction, ...]) -> Snapshot:
        first = self.block(transactions)
        state, _ = self.ledger.execute(self.ledger.genesis(), first)
        data = self.ledger.encode(state)
        proof = self.block(
            view=2, parent=first, committed=first.id, state_root=self.ledger.root_of(data)
        )
        return Snapshot(first.header, data, proof.header, self.qc(2, proof.id))

    # --- Pool and ledger -------------------------------------------------------------------

    def blob(self, seed: int, base: Digest | None = None) -> tuple[Manifest, bytes]:
        """A valid update; each seed gives other bytes."""
        schema = self.federation.schema
        row = np.random.default_rng(seed).standard_normal(schema.values).astype(np.float32)
        payload = bytes(encode(row, schema, "fp32"))
        base = self.federation.initial if base is None else base
        return manifest_of(payload, schema, "fp32", self.federation.chunk_bytes, base), payload

    def offer(self, author: int, round_: int, manifest: Manifest) -> Offer:
        unsigned = Offer(Round(round_), NodeId(author), manifest, UNSIGNED)
        signature = self.sign(author, unsigned.statement(self.chain, self.epoch))
        return replace(unsigned, signature=signature)

    def ack(self, acker: int, offer: Offer) -> StoreAck:
        manifest = offer.manifest
        about = (offer.round, offer.author, manifest.digest, manifest.base, manifest.size)
        signature = self.sign(acker, ack_statement(self.chain, self.epoch, *about))
        return StoreAck(*about, NodeId(acker), signature)

    def upd(
        self,
        author: int,
        round_: int,
        *,
        digest: Digest | None = None,
        base: Digest | None = None,
        size: int = 400,
        ackers: Sequence[NodeId] | None = None,
    ) -> Upd:
        digest = name(f"update {author} {round_}") if digest is None else digest
        base = self.federation.initial if base is None else base
        ackers = self.first() if ackers is None else ackers
        message = ack_statement(
            self.chain, self.epoch, Round(round_), NodeId(author), digest, base, size
        )
        acks = tuple(self.sign(acker, message) for acker in ackers)
        bitmap = bitmap_of(ackers, self.size)
        unsigned = Upd(Round(round_), NodeId(author), digest, size, base, bitmap, acks, UNSIGNED)
        signature = self.sign(author, unsigned.statement(self.chain, self.epoch))
        return replace(unsigned, signature=signature)

    def agg(self, author: int, round_: int) -> Agg:
        unsigned = Agg(Round(round_), NodeId(author), UNSIGNED)
        signature = self.sign(author, unsigned.statement(self.chain, self.epoch))
        return replace(unsigned, signature=signature)

    def change(self, author: int, round_: int, *operations: Operation) -> Change:
        unsigned = Change(Round(round_), NodeId(author), operations, UNSIGNED)
        signature = self.sign(author, unsigned.statement(self.chain, self.epoch))
        return replace(unsigned, signature=signature)

    def approve(self, author: int, round_: int, change: Change, *, agrees: bool = True) -> Approve:
        unsigned = Approve(Round(round_), NodeId(author), change.digest, agrees, UNSIGNED)
        signature = self.sign(author, unsigned.statement(self.chain, self.epoch))
        return replace(unsigned, signature=signature)

    def ready(self, newcomer: Signer, round_: int, model: Digest) -> Ready:
        unsigned = Ready(Round(round_), newcomer.public_key, model, UNSIGNED)
        message = unsigned.statement(self.chain, self.epoch)
        return replace(unsigned, signature=newcomer.sign(message))

    def card(self, newcomer: Signer, name: str = "newcomer", certificate: bytes = b"") -> Card:
        """The card by which a machine asks for a place in this federation."""
        unsigned = Card(name, newcomer.public_key, certificate, "", 1, UNSIGNED)
        message = unsigned.statement(self.federation.origin)
        return replace(unsigned, signature=newcomer.sign(message))

    def attestation(self, author: int, round_: int, digest: Digest) -> Attestation:
        message = attestation_statement(self.chain, self.epoch, Round(round_), digest)
        return Attestation(Round(round_), digest, NodeId(author), self.sign(author, message))

    def pace(self, author: int, round_: int, milliseconds: int) -> Pace:
        unsigned = Pace(Round(round_), NodeId(author), milliseconds, b"")
        signature = self.sign(author, unsigned.statement(self.chain, self.epoch))
        return replace(unsigned, signature=signature)

    # --- One of each -----------------------------------------------------------------------

    def messages(self) -> list[Message]:
        """One valid message of every kind, by member 1 where it names an author."""
        transactions = (self.upd(0, 1), self.agg(2, 1))
        block = self.block(transactions)
        by_member_1 = Block(replace(block.header, author=NodeId(1)), transactions)
        child = self.block(view=4, parent=block)
        manifest, payload = self.blob(1)
        other, _ = self.blob(2)
        offer = self.offer(1, 1, manifest)
        qc = self.qc(1, block.id)
        return [
            self.proposal(by_member_1),
            self.vote(1, 1, block.id),
            self.timeout(1, 3, qc, self.tc(2, qc)),
            Certificates(qc, self.tc(2)),
            Status(View(3), View(2)),
            Gossip(transactions),
            BlockRequest(block.id, Height(0)),
            Blocks((child, block)),
            self.snapshot(),
            self.handover(),
            offer,
            self.ack(1, self.offer(0, 1, manifest)),
            ManifestRequest(manifest.digest),
            ManifestAnswer(manifest),
            ChunkRequest(manifest.digest, 0),
            Chunk(manifest.digest, 0, memoryview(payload[:256])),
            NotHeld(manifest.digest),
            Have(manifest.digest, b"\x02"),
            self.attestation(1, 3, name("model")),
            self.pace(1, 1, 50_000),
            Evidence(offer, self.offer(1, 1, other)),
            StatementsRequest(),
            self.statements(1, offer),
        ]

    def statements(self, author: int, offer: Offer) -> Statements:
        """One statement of each kind, all by this author."""
        header = replace(self.block().header, author=NodeId(author))
        signed = self.proposal(Block(header, ()))
        return Statements(
            vote=self.vote(author, 1, name("block")),
            timeout=self.timeout(author, 3),
            proposal=SignedHeader(header, signed.signature),
            offer=offer,
            acks=(self.ack(author, self.offer(0, 1, offer.manifest)),),
        )
