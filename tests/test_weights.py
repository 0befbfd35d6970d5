"""Codecs: exact bytes, the same bits after decoding, and every reason to refuse bytes."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defl.errors import BadBlob, UserError
from defl.ids import NO_DIGEST, Round, digest_of
from defl.messages import CHUNKS_MAX
from defl.pool.weights import (
    EXPONENT_MAX,
    EXPONENT_MIN,
    Base,
    check_manifest,
    check_payload,
    chunk_size,
    decode,
    encode,
    manifest_of,
    payload_bytes,
)
from defl.schema import VALUE_MAX, Codec, DType, Entry, Role, Row, Schema
from support.builders import name, tampered

SCHEMA = Schema(
    (
        Entry("layer.weight", (3, 2)),
        Entry("steps", (), DType.INT64, Role.LOCAL),
        Entry("norm.mean", (2,), role=Role.STATISTIC),
        Entry("empty", (0, 4)),
    )
)
BASE = Base(np.array([1, -2, 3, 0.5, 0, 7, 100, -100], dtype=np.float32), Round(1))
CHANGED = np.array([1.5, -2, 3.25, 0.5, -1, 7, 101, -99], dtype=np.float32)


def row(*values: float) -> Row:
    return np.array(values, dtype=np.float32)


@pytest.mark.parametrize(
    ("codec", "size"), [("fp32", 32), ("bf16", 16), ("int8", 11), ("int8_masked", 6)]
)
def test_the_schema_and_codec_determine_the_size_of_an_update(codec: str, size: int) -> None:
    assert payload_bytes(SCHEMA, codec) == size
    assert len(encode(CHANGED, SCHEMA, codec, BASE)) == size


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8"])
def test_representable_values_are_encoded_exactly(codec: str) -> None:
    payload = encode(CHANGED, SCHEMA, codec, BASE)

    assert decode(payload, SCHEMA, codec, BASE).tobytes() == CHANGED.tobytes()
    check_payload(payload, SCHEMA, codec)


@pytest.mark.parametrize(
    ("codec", "payload", "bits"),
    [
        (
            "fp32",
            "193da13a2df5983ecc5b8cbed4fd63bf9ccae8be8cdc7dbf2359763d2c8cab3f",
            "193da13a2df5983ecc5b8cbed4fd63bf9ccae8be8cdc7dbf2359763d2c8cab3f",
        ),
        (
            "bf16",
            "a13a993e8cbe64bfe9be7ebf763dac3f",
            "0000a13a0000993e00008cbe000064bf0000e9be00007ebf0000763d0000ac3f",
        ),
        (
            "int8",
            "fdf812e6f5fcc0009c6582",
            "000000000000803e000080be000060bf000000bf000080bf000000000000803f",
        ),
    ],
)
def test_bytes_decode_to_the_same_bits_everywhere(codec: str, payload: str, bits: str) -> None:
    """Golden values: every machine must get the same bits."""
    values = np.frombuffer(
        bytes.fromhex("193da13a2df5983ecc5b8cbed4fd63bf9ccae8be8cdc7dbf2359763d2c8cab3f"), "<f4"
    ).astype(np.float32)

    assert encode(values, SCHEMA, codec, BASE).hex() == payload
    decoded = decode(bytes.fromhex(payload), SCHEMA, codec, BASE)
    assert decoded.astype("<f4").tobytes().hex() == bits


def test_fp32_is_little_endian_ieee() -> None:
    assert encode(row(1, -2, 0, 0, 0, 0, 0, 0), SCHEMA, "fp32")[:8] == struct.pack("<ff", 1, -2)


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (1.0, 1.0),
        (1 + 2**-8, 1.0),  # a tie goes to the even neighbour, down here ...
        (1 + 3 * 2**-8, 1 + 2**-6),  # ... and up here
        (1 + 2**-8 + 2**-20, 1 + 2**-7),
        (-1 - 3 * 2**-8, -1 - 2**-6),
        (VALUE_MAX, VALUE_MAX),
        (-0.0, -0.0),
    ],
)
def test_bf16_rounds_to_nearest_ties_to_even(value: float, rounded: float) -> None:
    schema = Schema((Entry("x", (1,)),))
    back = decode(encode(row(value), schema, "bf16"), schema, "bf16")

    assert back.tobytes() == row(rounded).tobytes()


def test_int8_is_a_signed_exponent_and_a_signed_byte_for_each_value() -> None:
    payload = bytes([0xFE, 0, 127, 0x81, 1, 0, 0]) + bytes([3, 1, 0xFF]) + bytes([0])
    expected = BASE.row + row(0, 127 / 4, -127 / 4, 1 / 4, 0, 0, 8, -8)

    assert decode(payload, SCHEMA, "int8", BASE).tobytes() == expected.tobytes()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(
        st.floats(-(2.0**30), 2.0**30, width=32, allow_subnormal=False), min_size=8, max_size=8
    )
)
def test_int8_rounds_by_at_most_half_a_step(values: list[float]) -> None:
    wanted = row(*values)
    payload = encode(wanted, SCHEMA, "int8", BASE)
    check_payload(payload, SCHEMA, "int8")
    back = decode(payload, SCHEMA, "int8", BASE).astype(np.float64)
    for part in (slice(0, 6), slice(6, 8)):
        change = np.abs(wanted[part].astype(np.float64) - BASE.row[part]).max()
        # One step is at most 2/127 of the largest change; single roundings come on top.
        slack = change / 127 * 1.01 + np.abs(wanted[part]).max() * 2**-22 + 2.0**-100
        assert np.abs(back[part] - wanted[part]).max() <= slack


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.sampled_from(Codec), st.binary(min_size=32, max_size=32))
def test_bytes_that_pass_the_check_decode_to_finite_values(codec: str, data: bytes) -> None:
    payload = data[: payload_bytes(SCHEMA, codec)]
    largest = Base(np.full(8, VALUE_MAX, dtype=np.float32), Round(1))
    try:
        check_payload(payload, SCHEMA, codec)
    except BadBlob:
        return
    assert np.isfinite(decode(payload, SCHEMA, codec, largest)).all()


# --- Refused bytes ---------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "bad", [np.nan, -np.nan, np.inf, -np.inf, VALUE_MAX * 1.01, -VALUE_MAX * 1.01, 3e38]
)
@pytest.mark.parametrize("place", [0, 5, 7])
def test_a_value_that_is_not_finite_or_too_large_is_refused_naming_its_entry(
    codec: str, bad: float, place: int
) -> None:
    values = BASE.row.copy()
    values[place] = bad
    bits = values.astype("<f4").tobytes()
    if codec == "bf16":
        bits = b"".join(bits[i + 2 : i + 4] for i in range(0, 32, 4))
    with pytest.raises(BadBlob, match=r"layer\.weight" if place < 6 else r"norm\.mean"):
        check_payload(bits, SCHEMA, codec)


@pytest.mark.parametrize("codec", ["fp32", "bf16"])
def test_the_largest_value_is_still_allowed(codec: str) -> None:
    for value in (VALUE_MAX, -VALUE_MAX):
        check_payload(encode(row(*[value] * 8), SCHEMA, codec), SCHEMA, codec)


def test_the_code_minus_128_is_refused() -> None:
    good = bytes([0, 0x81, 127, 0, 0, 0, 0]) + bytes([0, 1, 2]) + bytes([0])
    check_payload(good, SCHEMA, "int8")
    with pytest.raises(BadBlob, match=r"norm\.mean.*-128"):
        check_payload(good[:8] + b"\x80" + good[9:], SCHEMA, "int8")


@pytest.mark.parametrize("exponent", [EXPONENT_MIN - 1, EXPONENT_MIN - 2, EXPONENT_MAX + 1, 127])
def test_a_scale_out_of_range_is_refused_even_for_an_empty_entry(exponent: int) -> None:
    byte = struct.pack("b", exponent)
    for place in (0, 7, 10):
        payload = bytearray(11)
        payload[place : place + 1] = byte
        with pytest.raises(BadBlob, match="scale"):
            check_payload(bytes(payload), SCHEMA, "int8")


@pytest.mark.parametrize("exponent", [EXPONENT_MIN, EXPONENT_MAX])
def test_the_outermost_scales_are_allowed_and_keep_base_plus_delta_finite(exponent: int) -> None:
    schema = Schema((Entry("x", (1,)),))
    payload = struct.pack("bb", exponent, 127)
    check_payload(payload, schema, "int8")

    value = decode(payload, schema, "int8", Base(row(VALUE_MAX), Round(1)))[0]
    assert np.isfinite(value)
    assert 127 * 2.0**exponent <= VALUE_MAX


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("change", [-1, 1, 4])
def test_bytes_of_another_length_are_refused(codec: str, change: int) -> None:
    payload = bytes(payload_bytes(SCHEMA, codec) + change)
    with pytest.raises(BadBlob, match="bytes"):
        check_payload(payload, SCHEMA, codec)


@pytest.mark.parametrize("codec", ["int8", "int8_masked"])
def test_changes_require_a_base(codec: str) -> None:
    with pytest.raises(UserError, match=f"{codec} codec .* base"):
        encode(CHANGED, SCHEMA, codec)
    with pytest.raises(UserError, match=f"{codec} codec .* base"):
        decode(bytes(payload_bytes(SCHEMA, codec)), SCHEMA, codec)


# --- Manifests -------------------------------------------------------------------------------

WIDE = Schema((Entry("x", (150,)),))  # 600 bytes in chunks of 256, 256 and 88
PAYLOAD = np.arange(150, dtype="<f4").tobytes()
MANIFEST = manifest_of(PAYLOAD, WIDE, "fp32", 256, name("base"))


def test_a_manifest_names_each_chunk_by_its_hash() -> None:
    assert MANIFEST.chunks == tuple(digest_of(PAYLOAD[i : i + 256]) for i in (0, 256, 512))
    assert [chunk_size(MANIFEST, i, 256) for i in range(3)] == [256, 256, 88]
    check_manifest(MANIFEST, WIDE, "fp32", 256)


def test_the_digest_of_a_manifest_covers_every_field() -> None:
    others = [
        tampered(MANIFEST, schema=name("another")),
        tampered(MANIFEST, codec="bf16"),
        tampered(MANIFEST, base=NO_DIGEST),
        tampered(MANIFEST, size=601),
        tampered(MANIFEST, chunks=MANIFEST.chunks[::-1]),
        tampered(MANIFEST, chunks=MANIFEST.chunks[:2]),
    ]

    assert len({MANIFEST.digest, *(other.digest for other in others)}) == 7


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"schema": SCHEMA.digest}, "another schema"),
        ({"codec": "bf16"}, "codec is 'bf16', agreed is 'fp32'"),
        ({"size": 601}, "says 601 bytes, the schema makes 600"),
        ({"size": 599}, "says 599 bytes"),
        ({"chunks": MANIFEST.chunks[:2]}, "2 chunks, the size makes 3"),
        ({"chunks": MANIFEST.chunks * 2}, "6 chunks"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused_before_a_byte_is_fetched(
    fields: dict[str, object], reason: str
) -> None:
    with pytest.raises(BadBlob, match=reason):
        check_manifest(tampered(MANIFEST, **fields), WIDE, "fp32", 256)


def test_a_blob_of_too_many_chunks_is_refused() -> None:
    schema = Schema((Entry("x", (64 * (CHUNKS_MAX + 1),)),))
    manifest = manifest_of(bytes(4 * schema.values), schema, "fp32", 256, name("base"))
    with pytest.raises(BadBlob, match="chunks"):
        check_manifest(manifest, schema, "fp32", 256)
