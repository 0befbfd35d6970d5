"""Standing: earlier rounds are remembered in the model, and allow nothing that the gate forbids."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_rounds import Row, ties_for, whole

from defl.aggregation.adaptive import adaptive, gate_for
from defl.aggregation.aggregate import Aggregate
from defl.aggregation.eigen import largest_variances
from defl.aggregation.model import aggregate_model
from defl.aggregation.standing import (
    DISTRUSTED_BELOW,
    FADING,
    SAMPLE_MAX,
    STANDING_MAX,
    Memory,
    check_memory,
    cosines,
    faded,
    lowest,
    with_memory,
)
from defl.errors import UserError
from defl.schema import VALUE_MAX, Entry, Role, Schema

MODEL = Schema(
    (Entry("first", (40, 10)), Entry("mean", (10,), role=Role.STATISTIC), Entry("last", (50,)))
)
SCHEMA = with_memory(MODEL, 7)
VALUES = MODEL.values


def row(*values: float) -> Row:
    return np.array(values, dtype=np.float32)


class Federation:
    """Seven members with points of their own far apart; the first two may flip their changes.

    Flipped around a model that is far from everybody, a change stands out; near the middle, where
    honest changes point everywhere, one round says nothing.
    """

    def __init__(self, seed: int = 1, flipping: int = 2) -> None:
        rng = np.random.default_rng(seed)
        common = whole(rng, VALUES, 12)
        self.points = [common + whole(rng, VALUES, 12) for _ in range(7)]
        self.flipping = flipping
        self.rng = rng
        self.model = np.zeros(SCHEMA.values, dtype=np.float32)

    def rows(self) -> list[Row]:
        made = []
        for i, point in enumerate(self.points):
            now = self.model.copy()
            step = (point - now[:VALUES]) / 8 + whole(self.rng, VALUES, 12) / 16
            now[:VALUES] += -step if i < self.flipping else step
            made.append(now.astype(np.float32))
        return made

    def round(self, rows: list[Row] | None = None, members: list[int] | None = None) -> Aggregate:
        rows = self.rows() if rows is None else rows
        ties = ties_for(len(rows))
        made = aggregate_model(
            "adaptive", SCHEMA, rows, self.model, faults_max=2, ties=ties, members=members
        )
        self.model = made.values
        return made

    @property
    def standings(self) -> list[float]:
        return [float(value) for value in self.model[VALUES : VALUES + 7]]


def left_out(made: Aggregate) -> list[int]:
    return [i for i, weight in enumerate(made.weights) if weight == 0]


# --- What is remembered ----------------------------------------------------------------------


def test_the_memory_is_the_last_entry_with_room_for_every_member_and_a_sample() -> None:
    assert SCHEMA.entries[-1] == Entry("defl.memory", (7 + 450,), role=Role.MEMORY)
    large = with_memory(Schema((Entry("w", (1000, 1000)),)), 4)
    assert large.entries[-1].shape == (4 + SAMPLE_MAX,)
    check_memory(SCHEMA, 7)


@pytest.mark.parametrize(
    "schema",
    [
        MODEL,
        with_memory(MODEL, 6),
        Schema((*SCHEMA.entries, Entry("after", (3,)))),
        Schema((*SCHEMA.entries, Entry("second", (457,), role=Role.MEMORY))),
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


def test_a_round_counts_only_if_most_members_go_on() -> None:
    assert faded([1.0, 0.0, -1.0], [0.5, 0.25, -0.5]) == pytest.approx((1.48, 0.25, -1.48))
    most_go_back = faded([1.0, 0.0, -1.0], [0.5, -0.25, -0.5])
    assert most_go_back == pytest.approx((FADING, 0, -FADING))


def test_neither_a_good_name_nor_a_bad_one_grows_without_bound() -> None:
    standings: tuple[float, ...] = (0.0, 0.0, 0.0)
    for _ in range(50):
        standings = faded(standings, [1.0, 1.0, -1.0])
    assert standings == (STANDING_MAX, STANDING_MAX, -STANDING_MAX)


def test_at_most_faults_max_are_distrusted_the_lowest_first() -> None:
    standings = [1.0, -0.3, DISTRUSTED_BELOW, -1.0, -0.9]
    assert lowest(standings, 5) == {1, 3, 4}
    assert lowest(standings, 2) == {3, 4}
    assert lowest(standings, 0) == frozenset()


# --- From round to round ---------------------------------------------------------------------


def test_flippers_that_one_round_cannot_tell_are_left_out_once_they_are_known() -> None:
    federation = Federation()
    for _ in range(12):
        federation.round()
    rows = federation.rows()
    forgetful = adaptive([r[:VALUES] for r in rows], federation.model[:VALUES], 2, ties_for(7))
    assert left_out(forgetful) != [0, 1]

    made = federation.round(rows)

    assert left_out(made) == [0, 1]
    assert "2 left out for earlier rounds" in made.reason
    assert max(federation.standings[:2]) < DISTRUSTED_BELOW < min(federation.standings[2:])


def test_without_attack_nobody_is_ever_left_out() -> None:
    federation = Federation(flipping=0)
    for _ in range(30):
        assert left_out(federation.round()) == []
    assert min(federation.standings) > DISTRUSTED_BELOW


def test_a_member_that_behaves_again_comes_back() -> None:
    federation = Federation()
    for _ in range(8):
        made = federation.round()
    assert left_out(made) == [0, 1]
    federation.flipping = 0
    rounds = 0
    while left_out(made):
        made = federation.round()
        rounds += 1
        assert rounds < 200
    assert rounds > 3


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
    assert left_out(made) == [0]
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


# --- What memory can and cannot do -----------------------------------------------------------


@st.composite
def judged_rounds(draw: st.DrawFn) -> tuple[list[Row], list[float], int]:
    size = draw(st.integers(4, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    rows = [whole(rng, 12, 12) * draw(st.sampled_from([1, 1, 1, 4])) for _ in range(size)]
    standings = draw(
        st.lists(st.sampled_from([-2.0, -0.5, 0.0, 2.0]), min_size=size, max_size=size)
    )
    return [r.astype(np.float32) for r in rows], standings, (size - 1) // 3


@settings(max_examples=150, deadline=None, derandomize=True)
@given(judged_rounds())
def test_whatever_is_remembered_the_gate_holds_and_at_most_f_are_left_out(made) -> None:  # type: ignore[no-untyped-def]
    """So attackers who frame honest members gain no more than f honest rows left out."""
    rows, standings, faults = made
    base = np.zeros(12, dtype=np.float32)
    result = adaptive(rows, base, faults, ties_for(len(rows)), standings=standings)
    kept = [i for i, weight in enumerate(result.weights) if weight > 0]
    assert len(kept) >= len(rows) - faults
    wide = np.stack(rows).astype(np.float64)
    distances = np.square(wide[:, None] - wide[None, :]).sum(axis=2)
    subsets = list(combinations(range(len(rows)), len(rows) - faults))
    calmest = min(largest_variances(distances, subsets))
    own = largest_variances(distances, [kept])[0]
    assert own <= gate_for(len(rows)) * calmest * 1.02


@settings(max_examples=100, deadline=None, derandomize=True)
@given(judged_rounds(), st.randoms(use_true_random=False))
def test_permuting_rows_and_standings_permutes_the_weights(made, random) -> None:  # type: ignore[no-untyped-def]
    rows, standings, faults = made
    ties = ties_for(len(rows))
    order = list(range(len(rows)))
    random.shuffle(order)
    base = np.zeros(12, dtype=np.float32)
    first = adaptive(rows, base, faults, ties, standings=standings)
    second = adaptive(
        [rows[i] for i in order],
        base,
        faults,
        [ties[i] for i in order],
        standings=[standings[i] for i in order],
    )
    assert [first.weights[i] for i in order] == list(second.weights)


def test_when_the_others_alone_vary_too_much_memory_is_overruled() -> None:
    """Two honest members framed, and the rest are attackers far apart: the gate decides."""
    rng = np.random.default_rng(4)
    calm = [whole(rng, 50, 12) for _ in range(5)]
    rows = [*calm, *(30 * whole(rng, 50, 12) for _ in range(2))]
    made = adaptive(
        rows, np.zeros(50, dtype=np.float32), 2, ties_for(7), standings=[-2.0, -2.0, *[1.0] * 5]
    )
    assert left_out(made) == [5, 6]
    assert "the others alone vary more" in made.reason
