"""The memory: a rule's state is an entry of the model, agreed on like the rest of it."""

import numpy as np
import pytest
from federations import MODEL, SCHEMA, VALUES, Federation, left_out
from synthetic_rounds import Row, ties_for

from defl.aggregation.memory import SAMPLE_MAX, Memory, check_memory, cosines, with_memory
from defl.aggregation.model import aggregate_model
from defl.errors import UserError
from defl.schema import VALUE_MAX, Entry, Role, Schema


def row(*values: float) -> Row:
    return np.array(values, dtype=np.float32)


def test_memory_is_the_last_entry_with_room_for_every_id_and_a_sample() -> None:
    """Whoever joins later gets an id below 100; the schema cannot change."""
    assert SCHEMA.entries[-1] == Entry("defl.memory", (100 + 450,), role=Role.MEMORY)
    large = with_memory(Schema((Entry("w", (1000, 1000)),)))
    assert large.entries[-1].shape == (100 + SAMPLE_MAX,)
    check_memory(SCHEMA)


@pytest.mark.parametrize(
    "schema",
    [
        MODEL,
        Schema((*MODEL.entries, Entry("defl.memory", (14 + 450,), role=Role.MEMORY))),
        Schema((*SCHEMA.entries, Entry("after", (3,)))),
        Schema((*SCHEMA.entries, Entry("second", (550,), role=Role.MEMORY))),
    ],
)
def test_memory_that_is_missing_misplaced_or_of_another_size_is_refused(schema: Schema) -> None:
    with pytest.raises(UserError, match="defl federation create adds it"):
        check_memory(schema)


def test_sample_covers_trainable_columns_only_and_all_of_their_range() -> None:
    memory = Memory.of(with_memory(Schema((
        Entry("big", (30_000,)), Entry("var", (500,), role=Role.VARIANCE), Entry("end", (20_000,)),
    ))))  # fmt: skip
    assert memory is not None
    columns = memory.sample
    assert len(set(columns.tolist())) == SAMPLE_MAX
    assert not ((columns >= 30_000) & (columns < 30_500)).any()
    assert columns.min() < 20
    assert columns.max() > 50_480
    assert len(set(np.diff(columns).tolist())) > 5, (
        "a regular stride would align with a layer's rows"
    )


def test_cosines_are_between_each_change_and_the_last() -> None:
    last = row(1, 2, -2)
    result = cosines([last, -last / 2, row(2, -1, 0), row(0, 0, 0), row(1, np.nan, 0)], last)
    assert result == pytest.approx([1, -1, 0, 0, -1])
    assert cosines([last], row(0, 0, 0)) == [0]


def test_next_reputations_follow_from_base_and_rows_alone() -> None:
    """A node that was offline has only the base, fetched by its digest."""
    federation = Federation()
    for _ in range(5):
        federation.round()
    offline = Federation()
    offline.model = np.frombuffer(federation.model.tobytes(), dtype=np.float32)
    rows = federation.rows()
    assert federation.round(rows).values.tobytes() == offline.round(rows).values.tobytes()


def test_memory_carried_by_updates_is_ignored() -> None:
    honest, attacked = Federation(), Federation()
    for _ in range(6):
        rows = honest.rows()
        forged = [r.copy() for r in rows]
        for r in forged[:2]:
            r[VALUES:] = 1000.0
        assert honest.round(rows).values.tobytes() == attacked.round(forged).values.tobytes()


def test_reputation_belongs_to_the_member_and_stays_without_an_update() -> None:
    federation = Federation()
    for _ in range(6):
        federation.round()
    before = federation.reputations
    rows = federation.rows()
    result = federation.round([rows[i] for i in (1, 2, 3, 4, 6)], members=[1, 2, 3, 4, 6])
    assert left_out(result) == [0], "row 0 is member 1's"
    assert [federation.reputations[i] for i in (0, 5)] == [before[0], before[5]]
    assert all(federation.reputations[i] != before[i] for i in (1,))


def test_ids_with_gaps_up_to_the_last_have_places_of_their_own() -> None:
    """After many members came and went; the same rows as those of members 0 to 6."""
    ids = [0, 2, 5, 41, 42, 98, 99]
    dense, sparse = Federation(), Federation()
    for _ in range(6):
        rows = dense.rows()
        first, second = dense.round(rows), sparse.round(rows, members=ids)
        assert first.values[:VALUES].tobytes() == second.values[:VALUES].tobytes()
        assert first.weights == second.weights

    memory = Memory.of(SCHEMA)
    assert memory is not None
    places = range(100)
    reputations = memory.past([], sparse.model, places).reputations
    assert tuple(reputations[i] for i in ids) == dense.reputations
    assert all(reputations[i] == 0 for i in places if i not in ids)


def test_rule_without_memory_copies_the_bases_memory() -> None:
    federation = Federation()
    federation.round()
    rows = federation.rows()
    for row_ in rows:
        row_[VALUES:] = 5.0
    for name in ("fed_avg", "multi_krum", "trimmed_mean"):
        result = aggregate_model(
            name,
            SCHEMA,
            rows,
            federation.model,
            faults_max=2,
            ties=ties_for(7),
            members=range(7),
        )
        assert result.values[VALUES:].tobytes() == federation.model[VALUES:].tobytes()


def test_remembered_change_never_exceeds_what_an_update_may_carry() -> None:
    federation = Federation(flipping=0)
    federation.model[:VALUES] = -VALUE_MAX
    rows = [np.where(np.arange(SCHEMA.values) < VALUES, VALUE_MAX, 0).astype(np.float32)] * 7
    result = federation.round(rows)
    assert float(np.abs(result.values).max()) == VALUE_MAX
