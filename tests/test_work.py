"""Work on bytes: checking, aggregating and encoding updates, the same at every honest node."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defl.aggregation.aggregate import AggregationResult, weighted_sum
from defl.aggregation.fed_avg import fed_avg
from defl.aggregation.memory import with_memory
from defl.aggregation.rules import RULES
from defl.errors import BadBlob, PreconditionBroken, UserError
from defl.ids import NO_DIGEST, Digest, NodeId, Round
from defl.output import Aggregate, Reference
from defl.pool.weights import Base, check_payload, decode, payload_bytes
from defl.schema import Codec, DType, Entry, Role, Row, Schema
from defl.work import aggregate, model_blob, model_row, update_blob, validate
from support.builders import Small, name, tampered, with_charter

SMALL = Small(real=False)
MIXED = Schema(
    (
        Entry("variance", (2,), role=Role.VARIANCE),
        Entry("weight", (3,)),
        Entry("steps", (1,), DType.INT64, Role.LOCAL),
        Entry("mean", (1,), role=Role.STATISTIC),
    )
)


def row(*values: float) -> Row:
    return np.array(values, dtype=np.float32)


class Store:
    """Blobs by digest, and the request to aggregate them."""

    def __init__(self, codec: str = "fp32", schema: Schema | None = None) -> None:
        facts: dict[str, Any] = {"codec": codec}
        self.federation = with_charter(
            SMALL.federation, **facts, **({} if schema is None else {"schema": schema})
        )
        self._payloads: dict[Digest, bytes] = {}
        self.read = self._payloads.__getitem__
        self.references: list[Reference] = []
        self.base = NO_DIGEST
        self.base_row = row()

    def start_from(self, values: Row) -> None:
        manifest, self._payloads[manifest.digest] = model_blob(self.federation, values)
        self.base, self.base_row = manifest.digest, values

    def add(self, author: int, values: Row) -> None:
        start = Base(self.base_row, Round(1))
        manifest, payload = update_blob(self.federation, values, self.base, start)
        self._payloads[manifest.digest] = payload
        self.references.append(
            Reference(NodeId(author), manifest.digest, manifest.size, self.base, b"", b"")
        )

    def work(self, closing_block: str = "block", faults_max: int = 1) -> Aggregate:
        updates = tuple(self.references)
        return Aggregate(Round(1), self.base, updates, name(closing_block), faults_max)


def filled(codec: str = "fp32", members: int = 4) -> Store:
    store = Store(codec)
    rng = np.random.default_rng(5)
    store.start_from(rng.standard_normal(100).astype(np.float32))
    for author in range(members):
        change = rng.standard_normal(100).astype(np.float32) * np.float32(0.01)
        store.add(author, store.base_row + change)
    return store


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("members", [3, 4])
def test_the_aggregate_is_the_mean_of_the_encoded_rows(codec: str, members: int) -> None:
    store = filled(codec, members)
    start = Base(store.base_row, Round(1))
    rows = [
        decode(store.read(ref.digest), store.federation.schema, codec, start)
        for ref in store.references
    ]

    (manifest, payload), reasons = aggregate(store.federation, store.work(), store.read)

    mean = np.mean(np.array(rows, dtype=np.float64), axis=0)
    assert np.allclose(model_row(store.federation, payload), mean, rtol=2**-23, atol=0)
    assert reasons.weights == (1 / members,) * members
    assert (manifest.codec, manifest.base) == ("fp32", NO_DIGEST), "a model is always canonical"


def test_the_digest_of_an_aggregate_depends_only_on_its_values() -> None:
    one, _ = aggregate(filled().federation, filled().work("one block"), filled().read)
    other, _ = aggregate(filled().federation, filled().work("another"), filled().read)

    assert one == other


def test_a_model_decodes_to_the_same_bits() -> None:
    values = np.random.default_rng(1).standard_normal(100).astype(np.float32)
    manifest, payload = model_blob(SMALL.federation, values)

    assert model_row(SMALL.federation, payload).tobytes() == values.tobytes()
    assert len(manifest.chunks) == 2


def test_an_update_names_its_base() -> None:
    values = np.ones(100, dtype=np.float32)
    manifest, payload = update_blob(SMALL.federation, values, name("base"), Base(values, Round(1)))

    assert manifest.base == name("base")
    assert validate(SMALL.federation, payload) is None


@pytest.mark.parametrize("faults_max", [0, 1, 2])
def test_the_rule_is_told_the_faults_of_the_rounds_epoch_not_of_todays_members(
    faults_max: int,
) -> None:
    """Seven members took part in a round that four of today's federation aggregate."""
    store = Store()
    store.federation = with_charter(store.federation, aggregation="multi_krum")
    store.start_from(np.zeros(100, dtype=np.float32))
    rng = np.random.default_rng(2)
    for author in (0, 1, 2, 4, 6, 7, 9):
        store.add(author, rng.standard_normal(100).astype(np.float32))

    _, result = aggregate(store.federation, store.work(faults_max=faults_max), store.read)

    assert result.weights.count(0.0) == faults_max


# --- Roles -----------------------------------------------------------------------------------


def test_entries_of_all_roles_are_aggregated() -> None:
    store = Store(schema=MIXED)
    store.start_from(row(1, 1, 0, 0, 0, 0))
    for author in range(3):
        store.add(author, row(-1, author, author, 0, -author, 3))

    (_, payload), _ = aggregate(store.federation, store.work(), store.read)

    assert model_row(store.federation, payload).tolist() == [0, 1, 1, 0, -1, 3]


# --- Memory ----------------------------------------------------------------------------------


def test_the_memory_of_a_rule_travels_in_the_model_from_round_to_round() -> None:
    """Member 0 moves against the others; each round starts from the last model's bytes."""
    schema = with_memory(Schema((Entry("weight", (50,)),)))
    target = np.random.default_rng(3).standard_normal(50).astype(np.float32)
    model = np.zeros(schema.values, dtype=np.float32)
    for _ in range(4):
        store = Store("int8", schema)
        store.federation = with_charter(store.federation, aggregation="adaptive")
        store.start_from(model)
        for author in (2, 0, 3, 1):
            values = model.copy()
            step = (target - model[:50]) * np.float32(0.25) * np.float32(1 + author / 20)
            values[:50] += -step if author == 0 else step
            store.add(author, values)
        (_, payload), _ = aggregate(store.federation, store.work(), store.read)
        model = model_row(store.federation, payload)

    alignments = model[50:54].tolist()
    assert alignments[0] < -1, "of member 0, although its update is the second"
    assert min(alignments[1:]) > 1
    assert (model[54:] != 0).any(), "the last aggregate's change, for the next round"


# --- Ties ------------------------------------------------------------------------------------


def test_ties_differ_by_closing_block_author_and_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """So no author can arrange to win a tie."""
    seen: list[list[bytes]] = []

    def noting(
        rows: Sequence[Row], base: Row, faults_max: int, ties: Sequence[bytes], **threads: object
    ) -> AggregationResult:
        seen.append(list(ties))
        return fed_avg(rows, base, faults_max, ties)

    monkeypatch.setitem(RULES, "fed_avg", replace(RULES["fed_avg"], function=noting))
    store = filled(members=3)
    store.add(3, store.base_row)
    store.references.append(tampered(store.references[-1], author=NodeId(4)))
    for block in ("one block", "another", "one block"):
        aggregate(store.federation, store.work(block), store.read)

    first, second, again = seen
    assert len(set(first)) == 5, "equal bytes of two authors still differ"
    assert not set(first) & set(second)
    assert first == again


# --- Validation ------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.sampled_from(Codec),
    st.lists(st.sampled_from([0, 1, 63, 127, 128, 129, 255]), min_size=24, max_size=24),
    st.integers(-1, 1),
)
def test_validation_agrees_with_check_payload(codec: str, data: list[int], change: int) -> None:
    store = Store(codec, MIXED)
    payload = bytes(data)[: payload_bytes(MIXED, Codec(codec)) + change]
    reason = None
    try:
        check_payload(payload, MIXED, codec)
    except BadBlob as fault:
        reason = str(fault)

    assert validate(store.federation, payload) == reason


# --- The plain mean --------------------------------------------------------------------------


def test_the_mean_rounds_once_and_does_not_depend_on_cancellation() -> None:
    rows = [row(2**30, 1), row(1, 1), row(-(2**30), 1)]

    assert fed_avg(rows, row(0, 0), 0, [b"a", b"b", b"c"]).values.tolist() == [
        float(np.float32((2**30 / 3 + 1 / 3) - 2**30 / 3)),
        1.0,
    ]


def test_the_mean_of_no_rows_is_refused() -> None:
    with pytest.raises(PreconditionBroken, match="no rows"):
        fed_avg([], row(0), 0, [])
    with pytest.raises(PreconditionBroken, match="pair up"):
        weighted_sum([row(1)], [0.5, 0.5])


def test_an_unknown_rule_is_refused_with_the_known_names() -> None:
    store = filled()
    federation = with_charter(store.federation, aggregation="no_such_rule")
    with pytest.raises(UserError, match="fed_avg"):
        aggregate(federation, store.work(), store.read)
