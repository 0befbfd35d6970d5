"""Messages as bytes: golden files, one canonical form, and garbage as a peer fault.

`tests/golden/KIND.hex` holds the bytes of one message of each kind. They are a contract with
other implementations: after an intended change of format, `python tests/test_wire.py` rewrites
them, and docs/PROTOCOL.md changes with them.
"""

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defl.cards import CERTIFICATE_BYTES_MAX, Card
from defl.changes import (
    CHANGE_BYTES_MAX,
    OPERATIONS_MAX,
    Add,
    Approve,
    Change,
    Operation,
    Ready,
    Remove,
    ReplaceKey,
    Rounds,
)
from defl.committee import MEMBERS_MIN, TAU_MAX
from defl.consensus.mempool import APPROVALS_AT_ONCE
from defl.errors import Malformed, PeerFault
from defl.fields import MEMBERS_MAX, NUMBER_MAX
from defl.ids import Digest, Height, NodeId, Round, View, digest_of
from defl.ledger import LedgerState
from defl.messages import (
    CHUNKS_MAX,
    QC,
    TC,
    TRANSACTIONS_PER_MEMBER,
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
)
from defl.output import ClosedRound, OtherEpoch, Received, ReceivedChunk, Reference
from defl.schema import Codec
from defl.succession import PendingChange, ReadyKey
from defl.wire import (
    EPOCHLESS,
    chunk_frame_bytes_max,
    control_frame_bytes_max,
    decode,
    encode,
    epoch_of,
    says_chunk,
    says_handover,
)
from support.builders import Small

GOLDEN = Path(__file__).parent / "golden"
FRAME_MAX = 10_000
EPOCH = 6  # of the golden frames
NO_EPOCH = bytes(8)


def digest(byte: int) -> Digest:
    return Digest(bytes([byte]) * 32)


def signature(byte: int) -> bytes:
    return bytes([byte]) * 64


def samples() -> list[Message]:
    """One message of each kind and, in the Gossip, one transaction and operation of each kind;
    from literals alone: the bytes depend on the format only."""
    qc = QC(View(5), digest(0xA0), b"\x07", (signature(1), signature(2), signature(3)))
    signed = (signature(4), signature(5), signature(6))
    tc = TC(View(7), b"\x0b", (View(5), View(0), View(4)), signed, qc)
    upd = Upd(Round(2), NodeId(1), digest(0xB0), 400, digest(0xB1), b"\x0e", signed, signature(7))
    agg = Agg(Round(2), NodeId(3), signature(8))
    card = Card("erin", b"e" * 32, b"certificate", "erin.example:7000", 3, signature(18))
    operations = (
        Add(card, 7),
        Remove(NodeId(2)),
        ReplaceKey(NodeId(0), card),
        Rounds(Round(500)),
    )
    change = Change(Round(2), NodeId(1), operations, signature(19))
    approve = Approve(Round(2), NodeId(3), digest(0xC0), True, signature(20))
    ready = Ready(Round(2), b"e" * 32, digest(0xB1), signature(21))
    header = Header(
        epoch=0,
        view=View(8),
        height=Height(300),
        parent=digest(0xA0),
        qc=qc,
        tc=tc,
        transactions_root=digest(0xA1),
        committed=digest(0xA2),
        state_root=digest(0xA3),
        author=NodeId(0),
    )
    block = Block(header, (upd, agg))
    manifest = Manifest(digest(0xB2), "fp32", digest(0xB1), 400, (digest(0xB3), digest(0xB4)))
    offer = Offer(Round(2), NodeId(1), manifest, signature(9))
    vote = Vote(0, View(8), digest(0xA4), NodeId(2), signature(10), View(5), View(7))
    timeout = Timeout(0, View(8), qc, tc, NodeId(2), signature(12))
    ack = StoreAck(Round(2), NodeId(1), digest(0xB0), digest(0xB1), 400, NodeId(3), signature(13))
    return [
        Proposal(block, signature(11)),
        vote,
        timeout,
        Certificates(qc, None),
        Status(View(70_000), View(5)),
        Gossip((upd, agg, change, approve, ready)),
        BlockRequest(digest(0xA4), Height(299)),
        Blocks((block,)),
        Snapshot(header, b"state", header, qc),
        Handover(Snapshot(header, b"last state", header, qc)),
        offer,
        ack,
        ManifestRequest(digest(0xB0)),
        ManifestAnswer(manifest),
        ChunkRequest(digest(0xB0), 1),
        Chunk(digest(0xB0), 1, memoryview(b"some bytes")),
        NotHeld(digest(0xB0)),
        Have(digest(0xB0), b"\x03"),
        Attestation(Round(3), digest(0xB5), NodeId(0), signature(14)),
        Pace(Round(4), NodeId(3), 50_000, signature(17)),
        Evidence(SignedHeader(header, signature(15)), SignedHeader(header, signature(16)), 6),
        StatementsRequest(),
        Statements(vote, timeout, None, offer, (ack,)),
    ]


def kind(message: Message) -> str:
    return type(message).__name__


def golden_file(message: Message) -> Path:
    return GOLDEN / f"{kind(message)}.hex"


def write_golden() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for message in samples():
        text = encode(message, EPOCH).hex()
        lines = [text[start : start + 64] for start in range(0, len(text), 64)]
        golden_file(message).write_text("\n".join(lines) + "\n", encoding="ascii")


# --- The contract ----------------------------------------------------------------------------


def test_every_kind_of_message_has_golden_bytes_and_no_file_is_left_over() -> None:
    kinds = {kind.__name__ for kind in get_args(Message)}

    assert {kind(message) for message in samples()} == kinds
    assert {path.stem for path in GOLDEN.glob("*.hex")} == kinds


@pytest.mark.parametrize("message", samples(), ids=kind)
def test_a_message_encodes_to_its_golden_bytes_and_decodes_from_them(message: Message) -> None:
    golden = bytes.fromhex(golden_file(message).read_text(encoding="ascii"))

    assert encode(message, EPOCH) == golden
    assert decode(golden, FRAME_MAX) == message


def test_the_golden_bytes_show_every_transaction_and_operation() -> None:
    gossip = next(message for message in samples() if isinstance(message, Gossip))
    change = next(tx for tx in gossip.transactions if isinstance(tx, Change))

    assert {type(transaction) for transaction in gossip.transactions} == set(get_args(Transaction))
    assert {type(operation) for operation in change.operations} == set(get_args(Operation))


def test_the_bytes_of_a_vote_field_by_field() -> None:
    """Spelled out once, so that a second implementation can be checked by eye."""
    vote = Vote(0, View(300), digest(0xAA), NodeId(2), signature(0xBB), View(127), View(128))

    assert encode(vote, epoch=1) == (
        b"\x00\x00\x00\x00\x00\x00\x00\x01"  # the frame's epoch
        b"\x98\x0b"  # an array of eight; 11 is a vote
        b"\x00"  # epoch
        b"\xcd\x01\x2c"  # view 300: shortest form
        b"\xc4\x20"  # 32 bytes
        + b"\xaa" * 32
        + b"\x02"  # author
        + b"\xc4\x40"
        + b"\xbb" * 64
        + b"\x7f"  # 127 still fits one byte
        + b"\xcc\x80"
    )


def test_the_bytes_of_a_change_field_by_field() -> None:
    change = Change(Round(2), NodeId(1), (Remove(NodeId(3)), Rounds(Round(9))), signature(0xBB))

    assert (
        encode(Gossip((change,)))
        == (
            NO_EPOCH + b"\x92\x0f\x91"  # a gossip of one transaction
            b"\x95\x03"  # an array of five; 3 is a CHANGE
            b"\x02\x01"  # round, author
            b"\x92"  # two operations
            b"\x92\x15\x03"  # 21: remove member 3
            b"\x92\x17\x09"  # 23: the last round is 9
            b"\xc4\x40" + b"\xbb" * 64
        )
    )


def test_the_digest_of_a_change_covers_author_and_operations_but_not_the_round() -> None:
    operations = (Remove(NodeId(3)),)
    change = Change(Round(2), NodeId(1), operations, signature(1))

    assert change.digest == digest_of(b"defl/change" + b"\x92\x01\x91\x92\x15\x03")
    assert msgspec.structs.replace(change, round=Round(3)).digest == change.digest


# --- Epochs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("message", samples(), ids=kind)
def test_a_frame_states_the_epoch_unless_its_message_means_the_same_in_every_one(
    message: Message,
) -> None:
    stated = (EPOCH).to_bytes(8, "big") + encode(message)[8:]
    if isinstance(message, EPOCHLESS):
        assert encode(message, EPOCH) == encode(message) == NO_EPOCH + stated[8:]
        assert epoch_of(encode(message), message) is None
        with pytest.raises(Malformed, match="not in canonical form"):
            decode(stated, FRAME_MAX)
    else:
        assert encode(message, EPOCH) == stated
        assert decode(stated, FRAME_MAX) == message
        assert epoch_of(stated, message) == EPOCH


def test_these_messages_are_of_no_epoch() -> None:
    assert set(EPOCHLESS) == {
        Handover, ManifestRequest, ManifestAnswer, ChunkRequest, Chunk, NotHeld,
    }  # fmt: skip


# --- One canonical form ----------------------------------------------------------------------

STATUS = encode(Status(View(3), View(2)))


def gossip_of(*operations: bytes) -> bytes:
    """A Gossip of one CHANGE with these operations, without the frame's epoch."""
    head = b"\x92\x0f\x91\x95\x03\x02\x01" + bytes([0x90 + len(operations)])
    return head + b"".join(operations) + b"\xc4\x40" + bytes(64)


def evidence_without_epoch() -> bytes:
    statement = Attestation(Round(1), digest(1), NodeId(0), signature(1))
    return b"\x93" + encode(Evidence(statement, statement))[9:-1]


def test_the_frame_that_the_malformed_changes_derive_from_is_valid() -> None:
    eight = gossip_of(*[b"\x92\x15\x03"] * 8)
    message = decode(NO_EPOCH + eight, FRAME_MAX)

    assert isinstance(message, Gossip)
    assert message.transactions[0] == Change(
        Round(2), NodeId(1), (Remove(NodeId(3)),) * 8, bytes(64)
    )


@pytest.mark.parametrize(
    ("defect", "frame"),
    [
        ("nothing", b""),
        ("the same number in two bytes", b"\x93\x0e\xcc\x03\x02"),
        ("the same number in eight bytes", b"\x93\x0e\x03\xcf" + bytes(7) + b"\x02"),
        ("the same number with a sign", b"\x93\x0e\xd0\x03\x02"),
        ("the tag in two bytes", b"\x93\xcc\x0e\x03\x02"),
        ("the array with a longer head", b"\xdc\x00\x03\x0e\x03\x02"),
        ("bytes with a longer head", b"\x92\x20\xc5\x00\x20" + bytes([1]) * 32),
        ("bytes after the end", STATUS[8:] + b"\x00"),
        ("a second message after the end", STATUS[8:] + STATUS[8:]),
        ("a field too many", b"\x94\x0e\x03\x02\x01"),
        ("a nested field too many", b"\x94\x0e\x03\x02\x91\x91\x01"),
        ("a field too few", b"\x92\x0e\x03"),
        ("no fields", b"\x91\x0e"),
        ("no tag", b"\x90"),
        ("an unknown tag", b"\x93\x7f\x03\x02"),
        ("the tag of a transaction", b"\x93\x02\x03\x02"),
        ("the tag of an operation", b"\x92\x15\x03"),
        ("nine operations", gossip_of(*[b"\x92\x15\x03"] * 9)),
        ("an unknown operation", gossip_of(b"\x92\x18\x03")),
        ("a member that cannot exist", gossip_of(b"\x92\x15\x64")),
        ("a last round of 0", gossip_of(b"\x92\x17\x00")),
        ("evidence that states no epoch", evidence_without_epoch()),
        ("a map", msgspec.msgpack.encode({"view": 3, "high_qc_view": 2})),
        ("a map with the tag as its type", msgspec.msgpack.encode({"type": 14, "view": 3})),
        ("a text where a number belongs", b"\x93\x0e\xa1\x33\x02"),
        ("a float where a number belongs", b"\x93\x0e\xcb\x40\x08" + bytes(6) + b"\x02"),
        ("true where a number belongs", b"\x93\x0e\xc3\x02"),
        ("nil where a number belongs", b"\x93\x0e\xc0\x02"),
        ("a number below zero", b"\x93\x0e\xff\x02"),
        ("a number beyond 63 bits", b"\x93\x0e\xcf" + b"\xff" * 8 + b"\x02"),
        ("a digest of 31 bytes", b"\x92\x20\xc4\x1f" + bytes(31)),
        ("a digest of 33 bytes", b"\x92\x20\xc4\x21" + bytes(33)),
        ("a digest as text", b"\x92\x20\xd9\x20" + b"a" * 32),
        ("a text that is no UTF-8", b"\x92\x21\x95\xc4\x20" + bytes(32) + b"\xa2\xff\xfe"),
        ("an extension", b"\x93\x0e\xd4\x05\x00\x02"),
        ("four thousand million items", b"\xdd\xff\xff\xff\xff"),
        ("four thousand million entries", b"\xdf\xff\xff\xff\xff"),
        ("four thousand million bytes", b"\x92\x20\xc6\xff\xff\xff\xff"),
        ("gossip of four thousand million", b"\x92\x0f\xdd\xff\xff\xff\xff"),
        ("an unused byte", b"\xc1"),
        ("a list in a list in a list ...", b"\x91" * 9_000),
        ("an extra field nested without end", b"\x94\x0e\x03\x02" + b"\x91" * 9_000),
        ("maps without end", b"\x94\x0e\x03\x02" + b"\x81\x01" * 4_500),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_anything_but_the_one_canonical_form_is_malformed(defect: str, frame: bytes) -> None:
    with pytest.raises(Malformed):
        decode(NO_EPOCH + frame, FRAME_MAX)


@pytest.mark.parametrize("size", range(9))
def test_a_frame_shorter_than_its_epoch_is_malformed(size: int) -> None:
    with pytest.raises(Malformed):
        decode(bytes(size), FRAME_MAX)


def test_a_manifest_with_an_unknown_codec_is_malformed() -> None:
    manifest = Manifest(digest(1), Codec.FP32, digest(2), 4, (digest(3),))
    frame = encode(ManifestAnswer(manifest))

    assert decode(frame, FRAME_MAX) == ManifestAnswer(manifest)
    with pytest.raises(Malformed):
        decode(frame.replace(b"fp32", b"fp33"), FRAME_MAX)


def test_the_frame_that_the_malformed_ones_derive_from_is_valid() -> None:
    assert decode(STATUS, FRAME_MAX) == Status(View(3), View(2))
    assert STATUS == NO_EPOCH + b"\x93\x0e\x03\x02"


def test_a_frame_one_byte_too_long_is_refused_unread() -> None:
    assert decode(STATUS, len(STATUS)) == Status(View(3), View(2))
    with pytest.raises(Malformed, match="at most 11"):
        decode(STATUS, len(STATUS) - 1)


def largest_change() -> Change:
    """Of exactly the bytes that a CHANGE may have."""
    unfilled = Change(Round(NUMBER_MAX), NodeId(99), (), signature(1))
    for certificate in range(CERTIFICATE_BYTES_MAX, 0, -1):
        cards = [
            Card("n" * 64, b"k" * 32, bytes(size), "a" * 300, NUMBER_MAX, signature(1))
            for size in (certificate, CERTIFICATE_BYTES_MAX)
        ]
        change = msgspec.structs.replace(unfilled, operations=tuple(map(Add, cards)))
        if len(msgspec.msgpack.encode(change)) <= CHANGE_BYTES_MAX:
            return change
    raise AssertionError("one certificate always fits")


def largest_of(members: int) -> list[Message]:
    """The longest message of each kind that varies in length, in a federation of this size."""
    signatures = (signature(1),) * members
    signers = b"\xff" * ((members + 7) // 8)
    views = (View(NUMBER_MAX),) * members
    qc = QC(View(NUMBER_MAX), digest(1), signers, signatures)
    tc = TC(View(NUMBER_MAX), signers, views, signatures, qc)
    upd = Upd(
        Round(NUMBER_MAX), NodeId(99), digest(1), NUMBER_MAX, digest(1), signers, signatures,
        signature(1),
    )  # fmt: skip
    agg = Agg(Round(NUMBER_MAX), NodeId(99), signature(1))
    header = Header(
        NUMBER_MAX, View(NUMBER_MAX), Height(NUMBER_MAX), digest(1), qc, tc, digest(1), digest(1),
        digest(1), NodeId(99),
    )  # fmt: skip
    change, approve = (
        largest_change(),
        Approve(Round(NUMBER_MAX), NodeId(99), digest(1), True, signature(1)),
    )
    ready = Ready(Round(NUMBER_MAX), b"k" * 32, digest(1), signature(1))
    of_one = (upd, agg, change, *[approve] * APPROVALS_AT_ONCE, *[ready] * OPERATIONS_MAX)
    assert len(of_one) == TRANSACTIONS_PER_MEMBER
    transactions = of_one * members
    block = Block(header, transactions)
    reference = Reference(
        NodeId(99), digest(1), NUMBER_MAX, digest(1), signers, signature(1)
    )  # fmt: skip
    closed = ClosedRound(
        Round(NUMBER_MAX), digest(1), digest(1), (reference,) * members, NUMBER_MAX, members
    )
    pending = PendingChange(
        Round(NUMBER_MAX), NodeId(99), digest(1), change.operations, (NodeId(99),) * members
    )
    state = LedgerState(
        Round(NUMBER_MAX), (reference,) * members, (NodeId(99),) * members, (closed,) * TAU_MAX,
        (pending,) * members, (ReadyKey(b"k" * 32, Round(NUMBER_MAX)),) * OPERATIONS_MAX * members,
    )  # fmt: skip
    manifest = Manifest(digest(1), "fp32", digest(2), NUMBER_MAX, (digest(3),) * CHUNKS_MAX)
    offer = Offer(Round(NUMBER_MAX), NodeId(3), manifest, signature(1))
    timeout = Timeout(NUMBER_MAX, View(NUMBER_MAX), qc, tc, NodeId(99), signature(1))
    return [
        Proposal(block, signature(1)),
        Gossip(transactions),
        Blocks((block,)),
        Snapshot(header, SMALL.ledger.encode(state), header, qc),
        Handover(Snapshot(header, SMALL.ledger.encode(state), header, qc)),
        timeout,
        Certificates(qc, tc),
        offer,
        ManifestAnswer(manifest),
        Evidence(offer, offer, NUMBER_MAX),
        Evidence(timeout, timeout, NUMBER_MAX),
    ]


@pytest.mark.parametrize("members", [MEMBERS_MIN, 10, 31, MEMBERS_MAX])
def test_a_control_frame_is_long_enough_for_every_message_and_not_much_longer(
    members: int,
) -> None:
    lengths = [len(encode(message)) for message in largest_of(members)]

    assert max(lengths) <= control_frame_bytes_max(members)
    assert control_frame_bytes_max(members) <= 2 * max(lengths)
    assert control_frame_bytes_max(members) < 2**21  # a chunk's default is twice that


def test_a_frame_is_long_enough_for_one_chunk() -> None:
    chunk = Chunk(digest(1), CHUNKS_MAX - 1, memoryview(bytes(4 * 2**20)))

    assert len(encode(chunk)) <= chunk_frame_bytes_max(4 * 2**20)


@pytest.mark.parametrize("message", samples(), ids=kind)
def test_a_chunk_and_a_handover_are_recognised_by_their_first_bytes(message: Message) -> None:
    assert says_chunk(encode(message)) == isinstance(message, Chunk)
    assert says_handover(encode(message)) == isinstance(message, Handover)


# --- Garbage ---------------------------------------------------------------------------------

quick = settings(max_examples=300, deadline=None, derandomize=True)

SMALL = Small(real=False)
VALID = [*map(encode, samples()), *map(encode, SMALL.messages())]

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=70)
    | st.sampled_from([bytes(32), bytes(64), b"\x00\x02", b"\xff" * 13, bytes(13)])
)
structured: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=30,
)


@st.composite
def with_bytes_changed(draw: st.DrawFn) -> bytes:
    frame = bytearray(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(frame)))
        stop = min(len(frame), place + draw(st.integers(0, 3)))
        frame[place:stop] = draw(st.binary(max_size=3))
    return bytes(frame)


@st.composite
def with_a_part_replaced(draw: st.DrawFn) -> bytes:
    """Well-formed MessagePack with one value replaced, at any depth."""
    root = [msgspec.msgpack.decode(draw(st.sampled_from(VALID))[8:])]
    inside: list[Any] = root
    while True:
        place = draw(st.integers(0, len(inside) - 1))
        deeper = inside[place]
        if not isinstance(deeper, list) or not deeper or draw(st.integers(0, 4)) == 0:
            break
        inside = deeper
    inside[place] = draw(structured)
    return NO_EPOCH + msgspec.msgpack.encode(root[0])


TAGS = [1, 2, 3, 4, 5, *range(10, 24), *range(30, 39), 50, 51, 60, 61]
tagged = st.tuples(st.sampled_from(TAGS), structured).map(
    lambda pair: (
        NO_EPOCH
        + msgspec.msgpack.encode([pair[0], *(pair[1] if isinstance(pair[1], list) else [pair[1]])])
    )
)
garbage = (
    st.binary(max_size=200)
    | with_bytes_changed()
    | with_a_part_replaced()
    | structured.map(msgspec.msgpack.encode).map(NO_EPOCH.__add__)
    | tagged
)


@quick
@given(garbage)
def test_decoding_garbage_gives_a_message_or_malformed_and_nothing_else(
    frame: bytes,
) -> None:
    try:
        message = decode(frame, FRAME_MAX)
    except Malformed:
        return
    assert encode(message, epoch_of(frame, message) or 0) == frame


@quick
@given(garbage, st.integers(-1, 5))
def test_ingress_turns_garbage_into_an_event_or_a_peer_fault_and_nothing_else(
    frame: bytes, peer: int
) -> None:
    try:
        event = SMALL.ingress().admit(NodeId(peer), frame)
    except PeerFault:
        return
    assert isinstance(event, Received | ReceivedChunk | OtherEpoch)


@quick
@given(st.binary(max_size=4), st.integers(1, 3))
def test_a_bitmap_of_any_length_is_refused_without_a_crash(bitmap: bytes, signatures: int) -> None:
    qc = QC(View(1), digest(1), bitmap, (signature(1),) * signatures)
    with pytest.raises(PeerFault):
        SMALL.ingress().admit(NodeId(0), encode(Certificates(qc, None)))


if __name__ == "__main__":
    write_golden()


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65535, 65536, 70000])
def test_a_chunk_of_any_size_is_canonical_and_one_with_a_longer_head_is_not(size: int) -> None:
    """The check does not re-encode the data, so every form of the header is tested."""
    chunk = Chunk(digest_of(b"blob"), 7, memoryview(bytes(size)))
    frame = encode(chunk)

    assert decode(frame, 2**20) == chunk
    assert decode(memoryview(frame), 2**20) == chunk
    head = frame[: len(frame) - size]
    width = {0xC4: 1, 0xC5: 2, 0xC6: 4}
    kind = next(k for k, w in width.items() if head[-1 - w] == k and len(head) > w)
    if kind != 0xC6:
        longer = head[: -1 - width[kind]] + b"\xc6" + size.to_bytes(4, "big") + bytes(size)
        with pytest.raises(Malformed, match="canonical"):
            decode(longer, 2**20)
