"""For tests of `defl.simulate`: tiny clients, each of which pulls the model to its own point."""

from collections.abc import Callable
from typing import Any

import numpy as np

VALUES = 20


class PointClient:
    """Trains halfway to its point; `on_train` may replace the result."""

    def __init__(
        self,
        number: int,
        *,
        values: int = VALUES,
        on_train: Callable[[int], Any] = lambda _round: None,
    ) -> None:
        self.point = np.random.default_rng(number).normal(3.0, 1.0, values).astype(np.float32)
        self.trained: list[int] = []
        self.evaluated = 0
        self._on_train = on_train

    def initial_weights(self) -> dict[str, np.ndarray]:
        return {"point": np.zeros(self.point.size, dtype=np.float32)}

    def train(self, weights: dict[str, np.ndarray], round_: int, /) -> Any:
        self.trained.append(round_)
        replaced = self._on_train(round_)
        if replaced is not None:
            return replaced
        point = weights["point"] + np.float32(0.5) * (self.point - weights["point"])
        return {"point": point}, {"loss": self._distance(point)}

    def evaluate(self, weights: dict[str, np.ndarray], /) -> dict[str, float]:
        self.evaluated += 1
        return {"distance": self._distance(weights["point"])}

    def _distance(self, point: np.ndarray) -> float:
        return float(np.abs(point - self.point).mean())


def point_clients(count: int) -> list[PointClient]:
    return [PointClient(number) for number in range(count)]
