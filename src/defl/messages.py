"""Every message that one node may send to another, field by field.

Frozen values only: the cores decide what a message means, `ingress` whether to believe it, and
`wire` how it becomes bytes. docs/PROTOCOL.md describes each message in prose. The file is long
because it is a list: whoever asks what a peer can say finds all of it here.
"""

from functools import cached_property, lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from defl.changes import OPERATIONS_MAX, Approve, Change, Ready
from defl.crypto import Tag, statement
from defl.fields import (
    MEMBERS_MAX,
    STATEMENTS_CACHED,
    ADigest,
    AHeight,
    AMember,
    ANumber,
    ARound,
    ASignature,
    ASignatures,
    ASigners,
    AView,
)
from defl.ids import NO_DIGEST, Digest, Height, NodeId, Round, View, digest_of
from defl.schema import Codec

# With chunks of 1 MiB this is 4 GiB, a thousand million values; larger models have larger chunks.
CHUNKS_MAX = 4096


# --- Consensus -----------------------------------------------------------------------------


class QC(Struct, frozen=True, array_like=True, cache_hash=True):
    """At least q members voted for one block of one view."""

    view: AView
    block: ADigest
    signers: ASigners
    signatures: ASignatures  # in the order of the signers


class TC(Struct, frozen=True, array_like=True, cache_hash=True):
    """At least q members gave up a view; carries the newest QC that any of them had."""

    view: AView
    signers: ASigners
    high_views: Annotated[tuple[AView, ...], Meta(max_length=MEMBERS_MAX)]
    signatures: ASignatures
    qc: QC


class Upd(Struct, frozen=True, array_like=True, cache_hash=True, tag=1):
    """TX("UPD"): this blob, available at q members, is the author's update for a round."""

    round: ARound
    author: AMember
    digest: ADigest
    size: ANumber
    base: ADigest  # digest of the aggregate that it was trained from
    ackers: ASigners
    acks: ASignatures
    signature: ASignature

    def statement(self, chain: Digest, epoch: int) -> Digest:
        # The certificate is left out: a restarted author may collect other signers.
        return statement(
            Tag.UPD, chain, epoch, self.round, self.author, self.digest, self.size, self.base
        )


class Agg(Struct, frozen=True, array_like=True, tag=2):
    """TX("AGG"): the author no longer waits for the updates that this round still lacks."""

    round: ARound
    author: AMember
    signature: ASignature

    def statement(self, chain: Digest, epoch: int) -> Digest:
        return statement(Tag.AGG, chain, epoch, self.round, self.author)


Transaction = Upd | Agg | Change | Approve | Ready
# In a block or a Gossip: a member's UPD, AGG and CHANGE, four APPROVEs, and a READY for each card
# in its CHANGE.
TRANSACTIONS_PER_MEMBER = 7 + OPERATIONS_MAX
TRANSACTIONS_MAX = TRANSACTIONS_PER_MEMBER * MEMBERS_MAX
Transactions = Annotated[tuple[Transaction, ...], Meta(max_length=TRANSACTIONS_MAX)]
Slot = tuple[type[Transaction], Round, NodeId | bytes, tuple[Digest, bool] | None]


def slot_of(transaction: Transaction) -> Slot:
    """An honest author fills each slot with one transaction."""
    kind, round_ = type(transaction), transaction.round
    match transaction:
        case Approve(author=author, change=change, agrees=agrees):
            return kind, round_, author, (change, agrees)
        case Ready(key=key):
            return kind, round_, key, None
        case _:
            return kind, round_, transaction.author, None


class Header(Struct, frozen=True, array_like=True, dict=True):
    """A block without its transactions; its hash is the block's id and covers every field."""

    epoch: ANumber
    view: AView
    height: AHeight
    parent: ADigest
    qc: QC  # certifies the parent
    tc: TC | None  # only when qc.view is not view - 1
    transactions_root: ADigest
    committed: ADigest  # c(b): the newest ancestor that the QCs in b and its ancestors commit
    state_root: ADigest  # of the ledger after executing c(b)
    author: AMember

    @cached_property
    def id(self) -> Digest:
        return digest_of(b"defl/block" + msgspec.msgpack.encode(self))


class Block(Struct, frozen=True, array_like=True):
    header: Header
    transactions: Transactions

    @property
    def id(self) -> Digest:
        return self.header.id

    @property
    def view(self) -> View:
        return self.header.view

    @property
    def height(self) -> Height:
        return self.header.height

    @property
    def parent(self) -> Digest:
        return self.header.parent

    @property
    def qc(self) -> QC:
        return self.header.qc


_NO_TRANSACTIONS = digest_of(b"defl/transactions" + msgspec.msgpack.encode(()))


def transactions_root(transactions: tuple[Transaction, ...]) -> Digest:
    if not transactions:
        return _NO_TRANSACTIONS
    return digest_of(b"defl/transactions" + msgspec.msgpack.encode(transactions))


def genesis_header(chain: Digest, epoch: int, state_root: Digest) -> Header:
    """Block 0: names the federation as its parent, so that every id depends on the chain id."""
    return Header(
        epoch=epoch,
        view=View(0),
        height=Height(0),
        parent=chain,
        qc=QC(View(0), NO_DIGEST, b"", ()),
        tc=None,
        transactions_root=_NO_TRANSACTIONS,
        committed=NO_DIGEST,
        state_root=state_root,
        author=NodeId(0),
    )


def genesis_qc(genesis: Digest) -> QC:
    """View 0, unsigned, valid by identity."""
    return QC(View(0), genesis, b"", ())


class Proposal(Struct, frozen=True, array_like=True, tag=10):
    block: Block
    signature: ASignature

    def statement(self, chain: Digest) -> Digest:
        header = self.block.header
        return statement(Tag.PROPOSAL, chain, header.epoch, header.view, header.id)


class Vote(Struct, frozen=True, array_like=True, tag=11):
    epoch: ANumber
    view: AView
    block: ADigest
    author: AMember
    signature: ASignature
    high_qc_view: AView  # unsigned hints: a peer that knows more answers with its certificates
    high_tc_view: AView


@lru_cache(STATEMENTS_CACHED)
def vote_statement(chain: Digest, epoch: int, view: View, block: Digest) -> Digest:
    return statement(Tag.VOTE, chain, epoch, view, block)


class Timeout(Struct, frozen=True, array_like=True, tag=12):
    epoch: ANumber
    view: AView
    high_qc: QC
    tc: TC | None  # led the sender into the view, if high_qc did not
    author: AMember
    signature: ASignature


@lru_cache(STATEMENTS_CACHED)
def timeout_statement(chain: Digest, epoch: int, view: View, high_qc_view: View) -> Digest:
    return statement(Tag.TIMEOUT, chain, epoch, view, high_qc_view)


class Certificates(Struct, frozen=True, array_like=True, tag=13):
    """A fresh TC for all members, or an answer to a peer that knows less."""

    qc: QC
    tc: TC | None


class Status(Struct, frozen=True, array_like=True, tag=14):
    """Sent on every connection; a peer that knows more answers with certificates."""

    view: AView
    high_qc_view: AView


class Gossip(Struct, frozen=True, array_like=True, tag=15):
    """Transactions on their way into a block."""

    transactions: Annotated[
        tuple[Transaction, ...], Meta(min_length=1, max_length=TRANSACTIONS_MAX)
    ]


class BlockRequest(Struct, frozen=True, array_like=True, tag=16):
    block: ADigest
    height: AHeight  # of the asker's newest committed block: nothing at or below is needed


# A batch is cut by bytes first; this bounds the list itself.
BLOCKS_PER_ANSWER_MAX = 64


class Blocks(Struct, frozen=True, array_like=True, tag=17):
    """Hash-linked, newest first, starting with the requested block."""

    blocks: Annotated[tuple[Block, ...], Meta(min_length=1, max_length=BLOCKS_PER_ANSWER_MAX)]


class Snapshot(Struct, frozen=True, array_like=True, tag=18):
    """The state after `block`, proven by a certified header that names it as its c(b)."""

    block: Header
    state: bytes
    proof: Header
    proof_qc: QC


class Handover(Struct, frozen=True, array_like=True, tag=19):
    """How an epoch ended: its last state, from which the next epoch's facts follow."""

    snapshot: Snapshot

    @property
    def epoch(self) -> int:
        """The epoch that ended."""
        return self.snapshot.block.epoch


# --- Pool ----------------------------------------------------------------------------------


class Manifest(Struct, frozen=True, array_like=True, dict=True):
    """The parts of a blob; its hash is the blob's digest."""

    schema: ADigest
    codec: Codec
    base: ADigest  # the model that the values were trained from; all zero for an aggregate
    size: ANumber
    chunks: Annotated[tuple[ADigest, ...], Meta(min_length=1, max_length=CHUNKS_MAX)]

    @cached_property
    def digest(self) -> Digest:
        return digest_of(b"defl/manifest" + msgspec.msgpack.encode(self))


class Offer(Struct, frozen=True, array_like=True, tag=30):
    """The author's one blob for a round, with the manifest by which it can be fetched."""

    round: ARound
    author: AMember
    manifest: Manifest
    signature: ASignature

    def statement(self, chain: Digest, epoch: int) -> Digest:
        manifest = self.manifest
        return statement(
            Tag.OFFER, chain, epoch, self.round, self.author, manifest.digest, manifest.base
        )


class StoreAck(Struct, frozen=True, array_like=True, tag=31):
    """The signer holds this blob, has checked it, and acknowledged no other of author and round."""

    round: ARound
    author: AMember
    digest: ADigest
    base: ADigest
    size: ANumber
    acker: AMember
    signature: ASignature


@lru_cache(STATEMENTS_CACHED)
def ack_statement(
    chain: Digest,
    epoch: int,
    round_: Round,
    author: NodeId,
    digest: Digest,
    base: Digest,
    size: int,
) -> Digest:
    return statement(Tag.STORE_ACK, chain, epoch, round_, author, digest, base, size)


class ManifestRequest(Struct, frozen=True, array_like=True, tag=32):
    digest: ADigest


class ManifestAnswer(Struct, frozen=True, array_like=True, tag=33):
    manifest: Manifest


class ChunkRequest(Struct, frozen=True, array_like=True, tag=34):
    digest: ADigest
    index: Annotated[int, Meta(ge=0, lt=CHUNKS_MAX)]


class Chunk(Struct, frozen=True, array_like=True, tag=35):
    digest: ADigest
    index: Annotated[int, Meta(ge=0, lt=CHUNKS_MAX)]
    data: memoryview  # decoded, it is a view of the frame: a chunk is not copied


class NotHeld(Struct, frozen=True, array_like=True, tag=36):
    """The answer to a request for a blob that this node does not hold: try another source."""

    digest: ADigest


class Have(Struct, frozen=True, array_like=True, tag=39):
    """The sender holds these chunks of a blob that is on its way: they may be fetched from it."""

    digest: ADigest
    chunks: Annotated[bytes, Meta(min_length=1, max_length=CHUNKS_MAX // 8)]  # a bitmap


class Attestation(Struct, frozen=True, array_like=True, tag=37):
    """The signer computed this digest as a round's model."""

    round: ARound
    digest: ADigest
    author: AMember
    signature: ASignature


@lru_cache(STATEMENTS_CACHED)
def attestation_statement(chain: Digest, epoch: int, round_: Round, digest: Digest) -> Digest:
    return statement(Tag.ATTESTATION, chain, epoch, round_, digest)


class Pace(Struct, frozen=True, array_like=True, tag=38):
    """The signer missed the last round, is training for this one, and usually takes this long."""

    round: ARound
    author: AMember
    milliseconds: ANumber
    signature: ASignature

    def statement(self, chain: Digest, epoch: int) -> Digest:
        return statement(Tag.PACE, chain, epoch, self.round, self.author, self.milliseconds)


# --- Evidence ------------------------------------------------------------------------------


class SignedHeader(Struct, frozen=True, array_like=True, tag=50):
    """A proposal without its transactions: enough to prove that its leader signed it."""

    header: Header
    signature: ASignature

    @property
    def author(self) -> NodeId:
        return self.header.author


Statement = SignedHeader | Vote | Timeout | Offer | Upd | Attestation


class Evidence(Struct, frozen=True, array_like=True, tag=51):
    """Two statements of one author in one epoch; no honest node signs both."""

    first: Statement
    second: Statement
    epoch: ANumber = 0


# --- Questions of a starting node -----------------------------------------------------------

# One ack per update of the sender: kept rounds (tau is at most 32), the open one and the next.
ACKS_RECALLED_MAX = 40


class StatementsRequest(Struct, frozen=True, array_like=True, tag=60):
    """Which statements of mine have you seen? Sent before the first signature after a start."""


class Statements(Struct, frozen=True, array_like=True, tag=61):
    """The newest statements of the asker that the sender has seen, as the asker signed them."""

    vote: Vote | None
    timeout: Timeout | None
    proposal: SignedHeader | None
    offer: Offer | None
    acks: Annotated[tuple[StoreAck, ...], Meta(max_length=ACKS_RECALLED_MAX)]  # of sender's updates


Message = (
    Proposal
    | Vote
    | Timeout
    | Certificates
    | Status
    | Gossip
    | BlockRequest
    | Blocks
    | Snapshot
    | Handover
    | Offer
    | StoreAck
    | ManifestRequest
    | ManifestAnswer
    | ChunkRequest
    | Chunk
    | NotHeld
    | Have
    | Attestation
    | Pace
    | Evidence
    | StatementsRequest
    | Statements
)
