"""The memory: what a rule remembers is an entry of the model, agreed on like everything in it."""

import numpy as np
import pytest
from federations import MODEL, SCHEMA, VALUES, Federation, left_out
from made_rounds import Row, ties_for

from defl.aggregation.memory import SAMPLE_MAX, Memory, check_memory, cosines, with_memory
from defl.aggregation.model import aggregate_model
from defl.errors import UserError
from defl.schema import VALUE_MAX, Entry, Role, Schema


def row(*values: float) -> Row:
    return np.array(values, dtype=np.float32)


def test_the_memory_is_the_last_entry_with_room_for_every_member_and_a_sample() -> None:
    assert SCHEMA.entries[-1] == Entry("defl.memory", (14 + 450,), role=Role.MEMORY)
    large = with_memory(Schema((Entry("w", (1000, 1000)),)), 4)
    assert large.entries[-1].shape == (8 + SAMPLE_MAX,)
    check_memory(SCHEMA, 7)


@pytest.mark.parametrize(
    "schema",
    [
        MODEL,
        with_memory(MODEL, 6),
        Schema((*SCHEMA.entries, Entry("after", (3,)))),
        Schema((*SCHEMA.entries, Entry("second", (464,), role=Role.MEMORY))),
    ],
)
def test_a_memory_that_is_missing_or_of_another_size_is_refused(schema: Schema) -> None:
    with pytest.raises(UserError, match="defl federation create adds it"):
        check_memory(schema, 7)


def test_the_sample_is_of_trainable_columns_alone_spread_over_all_of_them() -> None:
    memory = Memory.of(with_memory(Schema((
        Entry("big", (30_000,)), Entry("var", (500,), role=Role.VARIANCE), Entry("end", (20_000,)),
    )), 4))  # fmt: skip
    assert memory is not None
    columns = memory.sample
    assert len(set(columns.tolist())) == SAMPLE_MAX
    assert not ((columns >= 30_000) & (columns < 30_500)).any()
    assert columns.min() < 20
    assert columns.max() > 50_480
    assert len(set(np.diff(columns).tolist())) > 5, "a regular grid would follow a layer's rows"


def test_cosines_are_those_of_the_changes() -> None:
    last = row(1, 2, -2)
    found = cosines([last, -last / 2, row(2, -1, 0), row(0, 0, 0), row(1, np.nan, 0)], last)
    assert found == pytest.approx([1, -1, 0, 0, -1])
    assert cosines([last], row(0, 0, 0)) == [0]


def test_the_next_standings_follow_from_the_base_and_the_rows_alone() -> None:
    """A node that was away has the base, fetched by its digest, and nothing else."""
    federation = Federation()
    for _ in range(5):
        federation.round()
    away = Federation()
    away.model = np.frombuffer(federation.model.tobytes(), dtype=np.float32)
    rows = federation.rows()
    assert federation.round(rows).values.tobytes() == away.round(rows).values.tobytes()


def test_what_updates_carry_as_memory_is_ignored() -> None:
    one, other = Federation(), Federation()
    for _ in range(6):
        rows = one.rows()
        lying = [r.copy() for r in rows]
        for r in lying[:2]:
            r[VALUES:] = 1000.0
        assert one.round(rows).values.tobytes() == other.round(lying).values.tobytes()


def test_standings_belong_to_members_not_to_places_and_stay_without_an_update() -> None:
    federation = Federation()
    for _ in range(6):
        federation.round()
    before = federation.standings
    rows = federation.rows()
    made = federation.round([rows[i] for i in (1, 2, 3, 4, 6)], members=[1, 2, 3, 4, 6])
    assert left_out(made) == [0], "the first of the rows, member 1"
    assert [federation.standings[i] for i in (0, 5)] == [before[0], before[5]]
    assert all(federation.standings[i] != before[i] for i in (1,))


def test_a_rule_that_does_not_remember_leaves_the_memory_as_it_is() -> None:
    federation = Federation()
    federation.round()
    rows = federation.rows()
    for lying in rows:
        lying[VALUES:] = 5.0
    for name in ("fed_avg", "multi_krum", "trimmed_mean"):
        made = aggregate_model(name, SCHEMA, rows, federation.model, faults_max=2, ties=ties_for(7))
        assert made.values[VALUES:].tobytes() == federation.model[VALUES:].tobytes()


def test_a_remembered_change_never_exceeds_what_an_update_may_carry() -> None:
    federation = Federation(flipping=0)
    federation.model[:VALUES] = -VALUE_MAX
    rows = [np.where(np.arange(SCHEMA.values) < VALUES, VALUE_MAX, 0).astype(np.float32)] * 7
    made = federation.round(rows)
    assert float(np.abs(made.values).max()) == VALUE_MAX
