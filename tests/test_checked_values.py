"""An update's values are checked chunk by chunk as they arrive, and then not again."""

import asyncio
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from defl.ids import NodeId, digest_of
from defl.messages import Chunk, Manifest
from defl.node.net.verifier import FrameVerifier
from defl.node.work import checked_values
from defl.node.work.checked_values import CheckedValues
from defl.node.work.runner import WorkRunner
from defl.output import ReceivedChunk, Validate, Validated
from defl.pool.weights import is_valid_chunk, manifest_of
from defl.schema import VALUE_MAX, Codec
from defl.wire import encode
from defl.work import validate
from support.builders import Small, name

SMALL = Small(real=False)
FEDERATION = SMALL.federation
CHUNK_BYTES = FEDERATION.chunk_bytes
BAD = float(np.nextafter(np.float32(VALUE_MAX), np.float32(np.inf)))


def payload_with(value: float, index: int) -> bytes:
    values = np.linspace(-1, 1, FEDERATION.schema.values, dtype="<f4")
    values[index] = value
    return values.tobytes()


def manifest(payload: bytes) -> Manifest:
    return manifest_of(payload, FEDERATION.schema, FEDERATION.codec, CHUNK_BYTES, name("base"))


def chunks_of(payload: bytes) -> list[bytes]:
    return [payload[start : start + CHUNK_BYTES] for start in range(0, len(payload), CHUNK_BYTES)]


def receive(checked: CheckedValues, payload: bytes) -> None:
    """All chunks of this update pass the verifier."""
    committee, ingress = FEDERATION.committee, SMALL.ingress()
    verifier = FrameVerifier(
        committee, ingress, lambda _, message: message, lambda *_: True, checked
    )
    digest = manifest(payload).digest

    async def scenario() -> None:
        for index, data in enumerate(chunks_of(payload)):
            frame = encode(Chunk(digest, index, memoryview(data)))
            admitted: Any = verifier.admit(NodeId(1), frame)
            event = await admitted
            assert isinstance(event, ReceivedChunk)
            assert event.chunk_digest == digest_of(data)

    asyncio.run(scenario())


class AskedWorker:
    """Stands for the worker and for the blobs that it reads."""

    def __init__(self) -> None:
        self.asked: list[Validate] = []
        self.path = self.take_spare = self.training = self.aggregation = None

    def reading(self, _: object) -> nullcontext[None]:
        return nullcontext()

    def stale(self, _: object) -> tuple[()]:
        return ()

    async def run(self, work: Validate, *_: object) -> Validated:
        self.asked.append(work)
        return Validated(work.manifest.digest, "the worker says")


def validated(checked: CheckedValues, payload: bytes) -> str | None:
    worker: Any = AskedWorker()
    runner = WorkRunner(worker, worker, checked, *(worker,) * 3)
    result = asyncio.run(runner.run(Validate(manifest(payload))))
    assert isinstance(result, Validated)
    return result.fault


@given(st.floats(width=32), st.integers(0, FEDERATION.schema.values - 1))
def test_checking_each_chunk_decides_as_checking_the_whole_update(value: float, at: int) -> None:
    payload = payload_with(value, at)

    by_chunk = [is_valid_chunk(data, FEDERATION.codec, CHUNK_BYTES) for data in chunks_of(payload)]

    assert all(by_chunk) == (validate(FEDERATION, payload) is None)


@pytest.mark.parametrize(
    ("codec", "chunk_bytes", "known"),
    [
        (Codec.FP32, 256, True),
        (Codec.FP32, 258, False),
        (Codec.BF16, 258, True),
        (Codec.BF16, 257, False),
        (Codec.INT8, 256, False),
        (Codec.INT8_MASKED, 256, False),
    ],
)
def test_a_chunk_is_judged_only_if_its_values_do_not_depend_on_other_chunks(
    codec: Codec, chunk_bytes: int, known: bool
) -> None:
    assert is_valid_chunk(bytes(chunk_bytes), codec, chunk_bytes) == known
    last = bytes(4)  # a payload's last chunk is shorter
    assert is_valid_chunk(last, codec, chunk_bytes) == known


def test_an_update_whose_chunks_were_checked_on_arrival_is_not_checked_again() -> None:
    checked, payload = CheckedValues(FEDERATION), payload_with(0.5, 0)
    receive(checked, payload)

    assert validated(checked, payload) is None


def test_the_worker_judges_an_update_with_an_unknown_or_invalid_chunk() -> None:
    checked = CheckedValues(FEDERATION)
    invalid = payload_with(BAD, FEDERATION.schema.values - 1)
    receive(checked, invalid)

    assert validated(checked, invalid) == "the worker says"
    assert validated(checked, payload_with(0.5, 0)) == "the worker says"


def test_the_oldest_chunks_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_values, "CHUNKS_MAX", 2)
    checked = CheckedValues(FEDERATION)
    payload = payload_with(0.5, 0)
    receive(checked, payload)  # two chunks
    checked.add(name("a third"))

    assert not checked.cover(manifest(payload))
    assert len(checked._valid) == 2
