"""Marks: only the two nodes of a pair can make one, and it is good for one connection."""

import hmac
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from defl.ids import NodeId
from defl.node.net import dial_hints
from defl.node.net.dial_hints import (
    FIELD,
    MARK_SKEW_S,
    USED_MARKS_MAX,
    ExpectedMarks,
    MarkUse,
    fresh_mark,
    montgomery_u,
    shared_secret,
)
from defl.node.net.pending import RelayCaller, Stranger
from defl.node.setup.identity import Identity, make_identity

ALICE, BOB, MALLORY = (make_identity(name) for name in ("alice", "bob", "mallory"))
CALLER = NodeId(7)
NOW = 1_900_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(dial_hints.time, "time", clock)
    return clock


def bob_expects(clock: Clock, caller: Identity = ALICE) -> ExpectedMarks:
    expected = ExpectedMarks(BOB, clock)
    expected.expect({CALLER: caller.public_key})
    return expected


def first_record(mark: bytes) -> bytes:
    return b"\x16\x03\x01 whatever \x06defl/1" + bytes([len(mark)]) + mark + b" and so on"


# --- the conversion of keys ----------------------------------------------------------------------


def test_keys_are_converted_as_libsodium_does() -> None:
    """The vector of libsodium's test/default/ed25519_convert."""
    seed = bytes.fromhex("421151a459faeade3d247115f94aedae42318124095afabe4d1451a559faedee")
    converted = "f1814f0e8ff1043d8a44d25babff3cedcae6c22c3edaa48f857ae70de2baae50"
    scalar = bytes.fromhex("8052030376d47112be7f73ed7a019293dd12ad910b654455798b4667d73de166")
    public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    other = X25519PrivateKey.from_private_bytes(scalar)

    u = montgomery_u(public)

    assert u is not None
    assert u.hex() == converted == other.public_key().public_bytes_raw().hex()
    seen_by_alice = shared_secret(ALICE.key, public)
    assert seen_by_alice == shared_secret(seed, ALICE.public_key)
    assert seen_by_alice is not None


def test_a_pair_has_one_secret_and_each_pair_another() -> None:
    secret = shared_secret(ALICE.key, BOB.public_key)

    assert secret == shared_secret(BOB.key, ALICE.public_key)
    assert secret not in (None, shared_secret(MALLORY.key, BOB.public_key))
    assert secret != shared_secret(MALLORY.key, ALICE.public_key)


# The points of order 8 have this y, or its negative.
ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826


@pytest.mark.parametrize(
    "y", [1, FIELD - 1, 0, ORDER_8, FIELD - ORDER_8], ids=["1", "2", "4", "8", "8'"]
)
@pytest.mark.parametrize("sign", [0, 1 << 255])
def test_a_key_of_small_order_has_no_secret(y: int, sign: int) -> None:
    """Everybody would know it."""
    assert shared_secret(ALICE.key, (y | sign).to_bytes(32, "little")) is None


@pytest.mark.parametrize("key", [b"", bytes(31), FIELD.to_bytes(32, "little"), b"\xff" * 32])
def test_what_is_not_the_encoding_of_a_point_has_no_secret(key: bytes) -> None:
    assert montgomery_u(key) is None
    assert shared_secret(ALICE.key, key) is None


def test_a_contact_whose_key_has_no_secret_is_a_stranger(clock: Clock) -> None:
    expected = ExpectedMarks(BOB, clock)
    expected.expect({CALLER: bytes(32), NodeId(1): ALICE.public_key})

    assert fresh_mark(BOB, bytes(32), MarkUse.MEMBER) == b""
    mark = fresh_mark(ALICE, BOB.public_key, MarkUse.MEMBER)
    assert expected.caller_of(first_record(mark)) == NodeId(1)


# --- who is believed ------------------------------------------------------------------------------


def test_a_contact_is_known_by_its_mark(clock: Clock) -> None:
    expected = bob_expects(clock)

    for _ in range(3):
        mark = fresh_mark(ALICE, BOB.public_key, MarkUse.MEMBER)
        assert expected.caller_of(first_record(mark)) == CALLER


def test_whoever_knows_everything_but_a_private_key_has_no_mark(clock: Clock) -> None:
    """Names of keys are seen on the line; a former member knows every card."""
    expected = bob_expects(clock)
    genuine = fresh_mark(ALICE, BOB.public_key, MarkUse.MEMBER)
    name = genuine[: len(dial_hints.MARK_PREFIX) + 2 * dial_hints.NAME_BYTES]
    forged = fresh_mark(MALLORY, BOB.public_key, MarkUse.MEMBER)

    for mark in (forged, name + forged[len(name) :], name + b"0" * 64, name, b""):
        assert expected.caller_of(first_record(mark)) is Stranger.UNMARKED
    assert expected.caller_of(first_record(genuine)) == CALLER


def test_the_key_of_a_mark_does_not_follow_from_public_keys(clock: Clock) -> None:
    public = MarkUse.MEMBER.value + ALICE.public_key + BOB.public_key
    for guess in (bytes(32), b"", ALICE.public_key, BOB.public_key):
        key = hmac.digest(guess, public, "sha256")
        mark = dial_hints.mark_of(key, int(NOW), bytes(8), MarkUse.MEMBER)
        assert bob_expects(clock).caller_of(first_record(mark)) is Stranger.UNMARKED


@pytest.mark.parametrize("at", range(0, dial_hints.HEX_DIGITS, 7))
def test_a_mark_with_one_changed_digit_is_not_believed(at: int, clock: Clock) -> None:
    expected = bob_expects(clock)
    mark = bytearray(fresh_mark(ALICE, BOB.public_key, MarkUse.MEMBER))
    mark[len(dial_hints.MARK_PREFIX) + at] ^= 1

    assert expected.caller_of(first_record(bytes(mark))) is Stranger.UNMARKED


def test_a_mark_is_good_for_one_connection(clock: Clock) -> None:
    """An eavesdropper has it a moment later."""
    expected = bob_expects(clock)
    record = first_record(fresh_mark(ALICE, BOB.public_key, MarkUse.MEMBER))

    assert expected.caller_of(record) == CALLER
    expected.expect({CALLER: ALICE.public_key, NodeId(8): MALLORY.public_key})
    assert expected.caller_of(record) is Stranger.UNMARKED


def test_a_mark_is_good_at_one_node_and_in_one_direction(clock: Clock) -> None:
    at_mallory = ExpectedMarks(MALLORY, clock)
    at_mallory.expect({CALLER: ALICE.public_key, NodeId(8): BOB.public_key})
    at_alice = ExpectedMarks(ALICE, clock)
    at_alice.expect({CALLER: BOB.public_key})
    record = first_record(fresh_mark(ALICE, BOB.public_key, MarkUse.MEMBER))

    for elsewhere in (at_mallory, at_alice):
        assert elsewhere.caller_of(record) is Stranger.UNMARKED


@pytest.mark.parametrize(
    ("off_s", "known"),
    [
        (0, True),
        (MARK_SKEW_S - 1, True),
        (1 - MARK_SKEW_S, True),
        (MARK_SKEW_S + 2, False),
        (-MARK_SKEW_S - 2, False),
        (-86_400, False),
    ],
)
def test_clocks_may_differ_by_ten_minutes(off_s: float, known: bool, clock: Clock) -> None:
    expected = bob_expects(clock)
    clock.now = NOW + off_s
    record = first_record(fresh_mark(ALICE, BOB.public_key, MarkUse.MEMBER))
    clock.now = NOW

    assert expected.caller_of(record) == (CALLER if known else Stranger.UNMARKED)


def test_a_mark_that_was_never_used_expires(clock: Clock) -> None:
    expected = bob_expects(clock)
    record = first_record(fresh_mark(ALICE, BOB.public_key, MarkUse.MEMBER))
    clock.now += MARK_SKEW_S + 1

    assert expected.caller_of(record) is Stranger.UNMARKED


def test_a_relays_callers_are_told_from_those_of_the_node_behind_the_same_port(
    clock: Clock,
) -> None:
    expected = ExpectedMarks(BOB, clock)
    expected.expect({CALLER: ALICE.public_key, RelayCaller(ALICE.public_key): ALICE.public_key})
    to_node = fresh_mark(ALICE, BOB.public_key, MarkUse.MEMBER)
    to_relay = fresh_mark(ALICE, BOB.public_key, MarkUse.RELAY)

    assert expected.caller_of(first_record(to_node)) == CALLER
    assert expected.caller_of(first_record(to_relay)) == RelayCaller(ALICE.public_key)
    assert expected.caller_of(first_record(to_relay)) is Stranger.UNMARKED_AT_RELAY


def test_a_mark_does_not_serve_for_the_other_purpose(clock: Clock) -> None:
    expected = bob_expects(clock)
    to_node = fresh_mark(ALICE, BOB.public_key, MarkUse.MEMBER)
    disguised = dial_hints.RELAY_PREFIX + to_node[len(dial_hints.MARK_PREFIX) :]

    assert expected.caller_of(first_record(disguised)) is Stranger.UNMARKED_AT_RELAY


def test_a_former_member_has_no_mark_at_a_relay_that_no_longer_serves_it(clock: Clock) -> None:
    relay = ExpectedMarks(BOB, clock)
    both = {RelayCaller(each.public_key): each.public_key for each in (ALICE, MALLORY)}
    relay.expect(both)
    record = first_record(fresh_mark(MALLORY, BOB.public_key, MarkUse.RELAY))
    relay.expect({RelayCaller(ALICE.public_key): ALICE.public_key})

    assert relay.caller_of(record) is Stranger.UNMARKED_AT_RELAY


def test_used_marks_are_remembered_as_long_as_they_could_be_used_again(clock: Clock) -> None:
    expected = bob_expects(clock)
    records = []
    for _ in range(USED_MARKS_MAX):
        records.append(first_record(fresh_mark(ALICE, BOB.public_key, MarkUse.MEMBER)))
        assert expected.caller_of(records[-1]) == CALLER

    assert {expected.caller_of(record) for record in records} == {Stranger.UNMARKED}


@pytest.mark.parametrize("pause_s", [0.0, 60.0])
def test_used_marks_are_bounded_and_forgotten_after_their_time(
    pause_s: float, clock: Clock
) -> None:
    expected = bob_expects(clock)
    for _ in range(USED_MARKS_MAX + 100):
        clock.now += pause_s
        mark = fresh_mark(ALICE, BOB.public_key, MarkUse.MEMBER)
        assert expected.caller_of(first_record(mark)) == CALLER

    (used,) = expected._used.values()
    assert len(used) <= (USED_MARKS_MAX if not pause_s else MARK_SKEW_S / pause_s + 2)


@pytest.mark.parametrize(
    "cut",
    [
        lambda mark: mark[:-1],
        lambda mark: mark[: len(mark) // 2],
        lambda mark: mark.replace(b"defl", b"DEFL"),
        lambda mark: b"\xff" * len(mark),
        lambda _: dial_hints.MARK_PREFIX + b"\xff" * 80,
        lambda _: dial_hints.MARK_PREFIX + b" " * 80,
        lambda _: dial_hints.MARK_PREFIX,
        lambda _: b"defl/mark/" + b"ab" * 16,  # as an older release made it
    ],
)
def test_nonsense_is_no_mark(cut: Callable[[bytes], bytes], clock: Clock) -> None:
    mark = cut(fresh_mark(ALICE, BOB.public_key, MarkUse.MEMBER))

    assert bob_expects(clock).caller_of(b"\x16" + mark) is Stranger.UNMARKED
