"""Encode a row of values as a blob's bytes, decode it, and check a peer's bytes deterministically.

Every codec decodes to the same bits on every machine: it uses only copies, bit shifts, products
with powers of two and single additions.

  fp32   4 bytes a value, little-endian
  bf16   the upper half of each float32, rounded to nearest, ties to even
  int8   the change from the base: for each shared entry one signed exponent byte e, then one
         signed byte q in -127..127 a value; the value is base + q * 2^e, rounded once
  int8_masked  as int8, but only the values whose turn it is (mask.py); others are the base's
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from defl.errors import BadBlob, UserError
from defl.ids import NO_DIGEST, Digest, Round, digest_of
from defl.messages import CHUNKS_MAX, Manifest
from defl.pool.mask import Columns, sent_columns, sent_values
from defl.schema import VALUE_MAX, Codec, Entry, Row, Schema, within_bounds

Payload = bytes | memoryview

FP32 = Codec.FP32

# q * 2^e stays below VALUE_MAX = 2^40, and 2^e is a normal float32.
EXPONENT_MIN, EXPONENT_MAX = -126, 33


def payload_bytes(schema: Schema, codec: Codec) -> int:
    """The exact size of every update. The schema determines it, so no peer can send more."""
    match codec:
        case Codec.FP32:
            return 4 * schema.values
        case Codec.BF16:
            return 2 * schema.values
        case Codec.INT8 | Codec.INT8_MASKED:
            return sum(1 + _codes(entry, codec) for entry in schema.shared)


class Base(NamedTuple):
    """The model that a round's updates change."""

    row: Row
    round: Round


def encode(row: Row, schema: Schema, codec: Codec, base: Base | None = None) -> Payload:
    """The row's bytes; for fp32 a view of the row itself where possible."""
    match codec:
        case Codec.FP32:
            return np.ascontiguousarray(row, dtype="<f4").data.cast("B")
        case Codec.BF16:
            bits = row.view(np.uint32)
            rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
            return (rounded >> np.uint32(16)).astype("<u2").tobytes()
        case Codec.INT8 | Codec.INT8_MASKED:
            if base is None:
                raise UserError(f"the {codec} codec sends changes and needs the base")
            return b"".join(
                _encode_int8(row[columns] - base.row[columns])
                for columns in _columns(schema, codec, base)
            )


def _encode_int8(change: Row) -> bytes:
    largest = float(np.abs(change).max()) if change.size else 0.0
    exponent = EXPONENT_MIN
    if largest > 0:
        exponent = int(np.frexp(largest / 127.0)[1])
        exponent = min(max(exponent, EXPONENT_MIN), EXPONENT_MAX)
    codes = np.clip(np.rint(np.ldexp(change.astype(np.float64), -exponent)), -127, 127)
    return np.int8(exponent).tobytes() + codes.astype(np.int8).tobytes()


def decode(payload: Payload, schema: Schema, codec: Codec, base: Base | None = None) -> Row:
    """The row that these bytes encode; they have been checked before."""
    match codec:
        case Codec.FP32 | Codec.BF16:
            return _values(payload, codec)
        case Codec.INT8 | Codec.INT8_MASKED:
            if base is None:
                raise UserError(f"the {codec} codec sends changes and needs the base")
            row = base.row.copy()
            for columns, (exponent, codes) in zip(
                _columns(schema, codec, base), _int8_parts(payload, schema, codec), strict=True
            ):
                row[columns] += np.ldexp(codes.astype(np.float32), exponent)
            return row


def _values(payload: Payload, codec: Codec) -> Row:
    """Of fp32 or bf16."""
    if codec == Codec.FP32:
        return np.frombuffer(payload, dtype="<f4").astype(np.float32, copy=False)
    halves = np.frombuffer(payload, dtype="<u2").astype(np.uint32)
    return (halves << np.uint32(16)).view(np.float32)


def _parts(row: Row, schema: Schema) -> Iterator[Row]:
    start = 0
    for entry in schema.shared:
        yield row[start : start + entry.size]
        start += entry.size


def _codes(entry: Entry, codec: Codec) -> int:
    """How many values of an entry int8 or int8_masked sends."""
    return entry.size if codec == Codec.INT8 else sent_values(entry)


def _columns(schema: Schema, codec: Codec, base: Base) -> Iterator[Columns]:
    """The columns of each entry's values that are sent."""
    if codec == Codec.INT8_MASKED:
        yield from sent_columns(schema, base.round)
        return
    start = 0
    for entry in schema.shared:
        yield slice(start, start + entry.size)
        start += entry.size


def _int8_parts(
    payload: Payload, schema: Schema, codec: Codec
) -> Iterator[tuple[int, np.ndarray[tuple[int], np.dtype[np.int8]]]]:
    signed = np.frombuffer(payload, dtype=np.int8)
    start = 0
    for entry in schema.shared:
        stop = start + 1 + _codes(entry, codec)
        yield int(signed[start]), signed[start + 1 : stop]
        start = stop


def manifest_of(
    payload: Payload,
    schema: Schema,
    codec: Codec,
    chunk_bytes: int,
    base: Digest = NO_DIGEST,
) -> Manifest:
    view = memoryview(payload)
    chunks = tuple(
        digest_of(view[start : start + chunk_bytes]) for start in range(0, len(view), chunk_bytes)
    )
    return Manifest(schema.digest, codec, base, len(view), chunks)


def chunk_size(manifest: Manifest, index: int, chunk_bytes: int) -> int:
    return min(chunk_bytes, manifest.size - index * chunk_bytes)


def check_manifest(manifest: Manifest, schema: Schema, codec: Codec, chunk_bytes: int) -> None:
    """Refuse before a single byte of the blob is fetched."""
    if manifest.schema != schema.digest:
        raise BadBlob("the manifest is of another schema")
    if manifest.codec != codec:
        raise BadBlob(f"the manifest's codec is '{manifest.codec}', agreed is '{codec}'")
    size = payload_bytes(schema, codec)
    if manifest.size != size:
        raise BadBlob(f"the manifest says {manifest.size} bytes, the schema makes {size}")
    chunks = -(-size // chunk_bytes)
    if len(manifest.chunks) != chunks or chunks > CHUNKS_MAX:
        raise BadBlob(f"the manifest has {len(manifest.chunks)} chunks, the size makes {chunks}")


def is_valid_chunk(data: Payload, codec: Codec, chunk_bytes: int) -> bool:
    """Would `check_payload` find no fault in these bytes, in whichever payload they are a chunk?
    False if that depends on the rest of the payload."""
    if codec in (Codec.INT8, Codec.INT8_MASKED):
        return False  # the schema says which bytes are scales
    value_bytes = 4 if codec == Codec.FP32 else 2
    if chunk_bytes % value_bytes or len(data) % value_bytes:
        return False  # a value may lie across two chunks
    return within_bounds(_values(data, codec))


def check_payload(payload: Payload, schema: Schema, codec: Codec) -> None:
    """Is every value finite and bounded? Decided on the bytes alone, the same at every node."""
    if len(payload) != payload_bytes(schema, codec):
        raise BadBlob(f"{len(payload)} bytes, the schema makes {payload_bytes(schema, codec)}")
    if codec in (Codec.INT8, Codec.INT8_MASKED):
        for entry, (exponent, codes) in zip(
            schema.shared, _int8_parts(payload, schema, codec), strict=True
        ):
            if not EXPONENT_MIN <= exponent <= EXPONENT_MAX:
                raise BadBlob(f"entry {entry.name!r} has the scale 2^{exponent}")
            if codes.size and codes.min() == -128:
                raise BadBlob(f"entry {entry.name!r} uses the code -128")
        return
    row = decode(payload, schema, codec)
    for entry, part in zip(schema.shared, _parts(row, schema), strict=True):
        if not within_bounds(part):
            raise BadBlob(
                f"entry {entry.name!r} holds NaN, infinity or a value beyond {VALUE_MAX:.3g}"
            )
