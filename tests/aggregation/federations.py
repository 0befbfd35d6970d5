"""A federation in plain numbers whose rule remembers, for tests that go from round to round."""

import numpy as np
from made_rounds import Row, ties_for, whole

from defl.aggregation.aggregate import AggregationResult
from defl.aggregation.memory import Memory, with_memory
from defl.aggregation.model import aggregate_model
from defl.aggregation.reputation import Standing
from defl.schema import Entry, Role, Schema

MODEL = Schema(
    (Entry("first", (40, 10)), Entry("mean", (10,), role=Role.STATISTIC), Entry("last", (50,)))
)
SCHEMA = with_memory(MODEL, 7)
VALUES = MODEL.values


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

    def round(
        self, rows: list[Row] | None = None, members: list[int] | None = None
    ) -> AggregationResult:
        rows = self.rows() if rows is None else rows
        ties = ties_for(len(rows))
        made = aggregate_model(
            "adaptive", SCHEMA, rows, self.model, faults_max=2, ties=ties, members=members
        )
        self.model = made.values
        return made

    @property
    def standings(self) -> tuple[Standing, ...]:
        memory = Memory.of(SCHEMA)
        assert memory is not None
        return memory.past([], self.model, range(7)).standings


def left_out(made: AggregationResult) -> list[int]:
    return [i for i, weight in enumerate(made.weights) if weight == 0]
