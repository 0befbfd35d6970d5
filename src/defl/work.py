"""Work that a participant requests, done on bytes: checking, aggregating and encoding updates.

Pure functions that both drivers call: the node in a child process, the simulator on its virtual
clock. The user's training runs between `model_row` and `update_blob`.
"""

from collections.abc import Callable

from defl.aggregation.aggregate import AggregationResult
from defl.aggregation.model import aggregate_model
from defl.committee import Federation
from defl.errors import BadBlob
from defl.ids import NO_DIGEST, Digest, digest_of
from defl.messages import Manifest
from defl.output import Aggregate, Train, Validate, Work
from defl.pool.weights import FP32, Base, Payload, check_payload, decode, encode, manifest_of
from defl.schema import Codec, Row

Read = Callable[[Digest], Payload]
# Called with a blob's bytes before they are hashed, so that a disk can write them meanwhile.
Write = Callable[[Payload], None]
Blob = tuple[Manifest, Payload]


def inputs_of(work: Work) -> tuple[Digest, ...]:
    """The blobs that a piece of work reads."""
    match work:
        case Validate(manifest=manifest):
            return (manifest.digest,)
        case Aggregate(base=base, updates=updates):
            return (base, *(reference.digest for reference in updates))
        case Train(base=base):
            return (base,)


def validate(federation: Federation, payload: Payload) -> str | None:
    """Why an update's bytes are invalid, or None; the same at every honest node."""
    try:
        check_payload(payload, federation.schema, federation.codec)
    except BadBlob as fault:
        return str(fault)
    return None


def model_row(federation: Federation, payload: Payload) -> Row:
    return decode(payload, federation.schema, FP32)


def model_blob(federation: Federation, row: Row, write: Write | None = None) -> Blob:
    """Encode a model (the initial weights or an aggregate): always fp32, without a base."""
    return _blob(federation, row, FP32, NO_DIGEST, None, write)


def update_blob(
    federation: Federation, row: Row, name: Digest, base: Base, write: Write | None = None
) -> Blob:
    """Encode a trained row as the blob that is offered; `name` is the base's."""
    return _blob(federation, row, federation.codec, name, base, write)


def _blob(
    federation: Federation,
    row: Row,
    codec: Codec,
    name: Digest,
    base: Base | None,
    write: Write | None,
) -> Blob:
    payload = encode(row, federation.schema, codec, base)
    if write is not None:
        write(payload)
    return manifest_of(payload, federation.schema, codec, federation.chunk_bytes, name), payload


def aggregate(
    federation: Federation, work: Aggregate, read: Read, write: Write | None = None
) -> tuple[Blob, AggregationResult]:
    """The round's model as a blob, the same bits at every honest node, and the rule's reasons."""
    base_row = model_row(federation, read(work.base))
    base = Base(base_row, work.round)
    rows = [
        decode(read(reference.digest), federation.schema, federation.codec, base)
        for reference in work.updates
    ]
    # No member can choose to win a tie: the closing block's id is unknown during training.
    ties = [
        digest_of(work.closing_block + reference.author.to_bytes(8, "big") + reference.digest)
        for reference in work.updates
    ]
    result = aggregate_model(
        federation.aggregation,
        federation.schema,
        rows,
        base_row,
        faults_max=work.faults_max,
        ties=ties,
        members=[reference.author for reference in work.updates],
        agreed=work.weights or None,
    )
    return model_blob(federation, result.values, write), result
