"""Work that a participant asks for, done on bytes: checking, aggregating and encoding updates.

Pure functions that both drivers call, in another process or on a virtual clock. The user's
training is between `row_of` and `update_of`.
"""

from collections.abc import Callable

from defl.aggregation.aggregate import AggregationResult
from defl.aggregation.model import aggregate_model
from defl.committee import Federation
from defl.errors import BadBlob
from defl.ids import Digest, digest_of
from defl.messages import Manifest
from defl.output import Aggregate
from defl.pool.weights import FP32, Payload, check_payload, decode, encode, manifest_of
from defl.schema import Row

Read = Callable[[Digest], Payload]
Blob = tuple[Manifest, Payload]


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


def aggregate(
    federation: Federation, work: Aggregate, read: Read
) -> tuple[Blob, AggregationResult]:
    """The round's model as a blob, and the rule's reasons."""
    result = aggregated(federation, work, read)
    return model_blob(federation, result.values), result


def aggregated(federation: Federation, work: Aggregate, read: Read) -> AggregationResult:
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
    return aggregate_model(
        federation.aggregation,
        federation.schema,
        rows,
        base_row,
        faults_max=federation.updates_faults_max,
        ties=ties,
        members=[ref.author for ref in work.updates],
    )
