"""Work that a participant asks for, done on bytes: checking, aggregating and encoding updates.

Pure functions that both drivers call, in another process or on a virtual clock. The user's
training is between `row_of` and `update_of`.
"""

from collections.abc import Callable, Sequence

import numpy as np

from defl.aggregation.aggregate import Aggregate as Aggregation
from defl.aggregation.aggregate import Rule, weighted_sum
from defl.aggregation.rules import rule_named
from defl.committee import Federation
from defl.errors import BadBlob
from defl.ids import Digest, digest_of
from defl.messages import Manifest
from defl.output import Aggregate
from defl.pool.weights import FP32, check_payload, decode, encode, manifest_of
from defl.schema import Role, Row, Schema

Payload = bytes | memoryview
Read = Callable[[Digest], Payload]
Blob = tuple[Manifest, bytes]


def validate(federation: Federation, payload: Payload) -> str | None:
    """What is wrong with an update's bytes, or None; every honest node finds the same."""
    try:
        check_payload(payload, federation.schema, federation.codec)
    except BadBlob as fault:
        return str(fault)
    return None


def model_blob(federation: Federation, row: Row) -> Blob:
    """An aggregate (or the initial weights) as a blob: always canonical fp32, without a base."""
    payload = encode(row, federation.schema, FP32)
    return manifest_of(payload, federation.schema, FP32, federation.chunk_bytes), payload


def model_row(federation: Federation, payload: Payload) -> Row:
    return decode(payload, federation.schema, FP32)


def update_blob(federation: Federation, row: Row, base: Digest, base_row: Row) -> Blob:
    """A trained row as the blob that is offered."""
    payload = encode(row, federation.schema, federation.codec, base_row)
    manifest = manifest_of(
        payload, federation.schema, federation.codec, federation.chunk_bytes, base
    )
    return manifest, payload


def aggregate(federation: Federation, work: Aggregate, read: Read) -> tuple[Blob, Aggregation]:
    """The round's model, the same bits at every honest node, and the rule's reasons."""
    base_row = model_row(federation, read(work.base))
    rows = [
        decode(read(ref.digest), federation.schema, federation.codec, base_row)
        for ref in work.updates
    ]
    # Nobody can choose to win a tie: the closing block's id is not known when updates are made.
    ties = [
        digest_of(work.closing_block + ref.author.to_bytes(8, "big") + ref.digest)
        for ref in work.updates
    ]
    rule = rule_named(federation.aggregation)
    result = aggregate_rows(
        federation.schema, rule, rows, base_row, federation.updates_faults_max, ties
    )
    return model_blob(federation, result.values), result


def aggregate_rows(
    schema: Schema,
    rule: Rule,
    rows: Sequence[Row],
    base: Row,
    faults_max: int,
    ties: Sequence[bytes],
) -> Aggregation:
    """The rule judges trainable values only; statistics follow the weights that it gives."""
    trainable = _columns(schema, Role.TRAINABLE)
    if trainable.all():
        return rule(rows, base, faults_max, ties)
    judged = rule([row[trainable] for row in rows], base[trainable], faults_max, ties)
    values = np.empty(schema.values, dtype=np.float32)
    values[trainable] = judged.values
    values[~trainable] = weighted_sum([row[~trainable] for row in rows], judged.weights)
    variance = _columns(schema, Role.VARIANCE)
    values[variance] = np.maximum(values[variance], np.float32(0))
    return Aggregation(values, judged.weights, judged.scores, judged.reason)


def _columns(schema: Schema, role: Role) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    mask = np.zeros(schema.values, dtype=np.bool_)
    start = 0
    for entry in schema.shared:
        mask[start : start + entry.size] = entry.role is role
        start += entry.size
    return mask
