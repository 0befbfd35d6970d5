"""A small synthetic federation under the adaptive rule, for tests over several rounds."""

import numpy as np
from synthetic_rounds import Row, dyadic, ties_for

from defl.aggregation.aggregate import AggregationResult
from defl.aggregation.memory import Memory, with_memory
from defl.aggregation.model import aggregate_model
from defl.schema import Entry, Role, Schema

MODEL = Schema(
    (Entry("first", (40, 10)), Entry("mean", (10,), role=Role.STATISTIC), Entry("last", (50,)))
)
SCHEMA = with_memory(MODEL)
VALUES = MODEL.values


class Federation:
    """Seven members, each drawn towards a distant point of its own; the first two may flip signs.

    While the model is far from all points a flipped change is an outlier. Near the middle, where
    honest changes point in all directions, a single round reveals nothing.
    """

    def __init__(self, seed: int = 1, flipping: int = 2) -> None:
        rng = np.random.default_rng(seed)
        common = dyadic(rng, VALUES, 12)
        self.points = [common + dyadic(rng, VALUES, 12) for _ in range(7)]
        self.flipping = flipping
        self.rng = rng
        self.model = np.zeros(SCHEMA.values, dtype=np.float32)

    def rows(self) -> list[Row]:
        rows = []
        for i, point in enumerate(self.points):
            now = self.model.copy()
            step = (point - now[:VALUES]) / 8 + dyadic(self.rng, VALUES, 12) / 16
            now[:VALUES] += -step if i < self.flipping else step
            rows.append(now.astype(np.float32))
        return rows

    def round(
        self, rows: list[Row] | None = None, members: list[int] | None = None
    ) -> AggregationResult:
        rows = self.rows() if rows is None else rows
        ties = ties_for(len(rows))
        result = aggregate_model(
            "adaptive",
            SCHEMA,
            rows,
            self.model,
            faults_max=2,
            ties=ties,
            members=range(len(rows)) if members is None else members,
        )
        self.model = result.values
        return result

    @property
    def reputations(self) -> tuple[float, ...]:
        memory = Memory.of(SCHEMA)
        assert memory is not None
        return memory.past([], self.model, range(7)).reputations


def left_out(result: AggregationResult) -> list[int]:
    return [i for i, weight in enumerate(result.weights) if weight == 0]
