"""int8_masked: which values travel in which round, and how a member keeps the ones that do not."""

import struct

import numpy as np
import pytest
from msgspec.structs import replace

import defl
from defl.committee import DEFAULTS
from defl.errors import BadBlob
from defl.ids import Round
from defl.pool.mask import GROUP, sent_columns, sent_values
from defl.pool.weights import (
    EXPONENT_MAX,
    EXPONENT_MIN,
    Base,
    check_payload,
    decode,
    encode,
    payload_bytes,
)
from defl.schema import Codec, DType, Entry, Role, Row, Schema
from defl.sim import run as sim_run
from defl.sim.run import Options
from defl.unsent import Unsent
from support.live_clients import PointClient

MASKED = Codec.INT8_MASKED
SCHEMA = Schema(
    (
        Entry("layer.weight", (5, 9)),  # four groups of ten and one of five
        Entry("steps", (), DType.INT64, Role.LOCAL),
        Entry("norm.mean", (3,), role=Role.STATISTIC),
        Entry("norm.var", (3,), role=Role.VARIANCE),
        Entry("empty", (0, 4)),
        Entry("layer.bias", (2,)),
        Entry("defl.memory", (6,), role=Role.MEMORY),
    )
)
VALUES = 45 + 3 + 3 + 0 + 2 + 6
ZERO = np.zeros(VALUES, dtype=np.float32)


def columns(round_: int, schema: Schema = SCHEMA) -> list[int]:
    every = np.arange(schema.values)
    return [int(c) for part in sent_columns(schema, Round(round_)) for c in every[part]]


# --- The mask ------------------------------------------------------------------------------------


def test_one_value_of_each_group_travels_and_all_statistics_but_no_memory() -> None:
    assert [sent_values(entry) for entry in SCHEMA.shared] == [5, 3, 3, 0, 1, 0]
    for round_ in range(12):
        sent = columns(round_)
        assert [c // GROUP for c in sent[:5]] == [0, 1, 2, 3, 4]
        assert sent[4] < 45, "the last group is smaller"
        assert sent[5:11] == [45, 46, 47, 48, 49, 50]
        assert sent[11] in (51, 52)
        assert len(sent) == 12


def test_every_value_has_its_turn_once_in_ten_rounds() -> None:
    whole_groups = [c for round_ in range(7, 17) for c in columns(round_) if c < 40]

    assert sorted(whole_groups) == list(range(40))
    assert {c for round_ in range(7, 12) for c in columns(round_)} >= {*range(40, 45), 51, 52}


def test_groups_begin_their_turns_irregularly() -> None:
    """A round that sent the same place of every group would send, say, the weights of one class."""
    offsets = [c % GROUP for c in columns(1, Schema((Entry("x", (1000,)),)))]

    assert set(offsets) == set(range(GROUP))


@pytest.mark.parametrize(
    ("round_", "expected"),
    [
        (1, [3, 11, 26, 33, 42, 52, 68, 79, 84, 98, 109, 110, 122]),
        (2**40, [8, 16, 21, 38, 47, 57, 63, 74, 89, 93, 104, 115, 122]),
    ],
)
def test_the_mask_is_the_same_everywhere(round_: int, expected: list[int]) -> None:
    """Golden values: every machine must draw the same mask."""
    assert columns(round_, Schema((Entry("x", (123,)),))) == expected


# --- The bytes -----------------------------------------------------------------------------------


def test_a_masked_update_has_an_exponent_for_each_entry_and_a_byte_for_each_value_sent() -> None:
    trained = np.arange(VALUES, dtype=np.float32)
    base = Base(ZERO, Round(3))
    payload = encode(trained, SCHEMA, MASKED, base)

    assert payload_bytes(SCHEMA, MASKED) == len(payload) == 6 + 12
    check_payload(payload, SCHEMA, MASKED)
    received = decode(payload, SCHEMA, MASKED, base)
    sent = columns(3)
    assert received[sent].tolist() == trained[sent].tolist(), "small whole numbers are exact"
    others = [c for c in range(VALUES) if c not in sent]
    assert not received[others].any(), "the base's"


def test_the_same_bytes_change_other_values_in_another_round() -> None:
    payload = bytes([0, 1, 1, 1, 1, 1]) + bytes(payload_bytes(SCHEMA, MASKED) - 6)

    for round_ in (1, 2):
        changed = np.flatnonzero(decode(payload, SCHEMA, MASKED, Base(ZERO, Round(round_))))
        assert changed.tolist() == columns(round_)[:5]


def test_masked_bytes_are_the_same_everywhere() -> None:
    """Golden values: every machine must encode and decode the same bits."""
    trained = np.linspace(-1, 1, VALUES, dtype=np.float32)

    assert encode(trained, SCHEMA, MASKED, Base(ZERO, Round(5))).hex() == (
        "f99fc2d82335f9474b4ff954585d82f96182"
    )


@pytest.mark.parametrize("place", [0, 6, 10, 14, 15, 17])
@pytest.mark.parametrize("exponent", [EXPONENT_MIN - 1, EXPONENT_MAX + 1])
def test_a_masked_scale_out_of_range_is_refused_for_every_entry(place: int, exponent: int) -> None:
    payload = bytearray(payload_bytes(SCHEMA, MASKED))
    payload[place : place + 1] = struct.pack("b", exponent)
    with pytest.raises(BadBlob, match="scale"):
        check_payload(bytes(payload), SCHEMA, MASKED)


@pytest.mark.parametrize("place", [1, 5, 7, 16])
def test_the_code_minus_128_is_refused_in_masked_updates(place: int) -> None:
    payload = bytearray(payload_bytes(SCHEMA, MASKED))
    payload[place] = 0x80
    with pytest.raises(BadBlob, match="-128"):
        check_payload(bytes(payload), SCHEMA, MASKED)


@pytest.mark.parametrize("change", [-1, 1, VALUES])
def test_masked_bytes_of_another_length_are_refused(change: int) -> None:
    with pytest.raises(BadBlob, match="bytes"):
        check_payload(bytes(payload_bytes(SCHEMA, MASKED) + change), SCHEMA, MASKED)


# --- What is not sent ----------------------------------------------------------------------------


def learned(*, rounds: range, unsent: Unsent, step: float = 1.0) -> tuple[Row, Row]:
    """A lone member that adds `step` to each trainable value in each training; the base at the
    end, and what the last training began with."""
    base, start = ZERO.copy(), ZERO
    for round_ in map(Round, rounds):
        start = unsent.start(base, round_)
        trained = start.copy()
        trained[:45] += np.float32(step)
        payload = encode(trained, SCHEMA, MASKED, Base(base, round_))
        unsent.keep(trained, base, round_)
        base = decode(payload, SCHEMA, MASKED, Base(base, round_))
    return base, start


def test_a_member_trains_on_from_what_it_has_not_sent() -> None:
    base, start = learned(rounds=range(1, 11), unsent=Unsent(SCHEMA, MASKED))

    assert start[:40].tolist() == [9.0] * 40, "nine steps of every value, sent or not"
    for age, round_ in enumerate(range(10, 0, -1)):
        sent = [c for c in columns(round_) if c < 40]
        assert base[sent].tolist() == [10.0 - age] * len(sent), "all steps up to its turn"


def test_nothing_is_kept_under_codecs_that_send_everything() -> None:
    for codec in set(Codec) - {MASKED}:
        unsent = Unsent(SCHEMA, codec)
        unsent.keep(ZERO + 1, ZERO, Round(1))

        assert unsent.start(ZERO, Round(2)) is ZERO


@pytest.mark.parametrize(
    ("next_round", "kept"), [(4, False), (5, False), (6, True), (15, True), (16, False)]
)
def test_what_was_kept_is_of_use_until_all_values_have_had_their_turn(
    next_round: int, kept: bool
) -> None:
    unsent = Unsent(SCHEMA, MASKED)
    unsent.keep(ZERO + 1, ZERO, Round(5))

    assert bool(unsent.start(ZERO, Round(next_round)).any()) == kept


def test_a_training_that_fails_begins_with_the_rounds_model_the_next_time() -> None:
    unsent = Unsent(SCHEMA, MASKED)
    unsent.keep(ZERO + 1, ZERO, Round(5))
    unsent.start(ZERO, Round(6))  # and no `keep`

    assert unsent.start(ZERO, Round(7)) is ZERO


# --- A federation --------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
def test_a_simulated_federation_learns_with_each_codec_and_all_models_are_equal(
    codec: Codec,
) -> None:
    clients = [PointClient(number, values=400) for number in range(4)]

    history = defl.simulate(clients, rounds=20, codec=codec)

    assert history.ok
    assert history.agreed
    mean = np.mean([client.point for client in clients], axis=0)
    # Near the mean, members' changes oppose each other, and the rule shortens the longest.
    np.testing.assert_allclose(history.weights["point"], mean, atol=0.1)


def test_a_masked_federation_holds_out_against_liars_of_the_pool() -> None:
    charter = replace(DEFAULTS, codec=MASKED)
    options = Options(nodes=7, rounds=5, byzantine=(("malformed", 1),), charter=charter)

    report = sim_run.simulate(options)

    assert report.ok, report.violations
