"""How much a client trains in one round: passes over its data or steps, and how long at most.

A slow or large site need not hold up the round. `steps` gives all sites the same work, whatever
they have; `max_seconds` ends a training in time, and what was learnt until then is sent.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from defl.clients.seeds import seed_of
from defl.errors import UserError
from defl.ids import Round

T = TypeVar("T")
Rows = NDArray[np.intp]  # which examples a batch has


def alone(late: bool) -> bool:
    """Whether to stop, where nobody else has a say."""
    return late


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLength:
    """`epochs` passes over the data (one if nothing is given), or exactly `steps` batches; either
    ends early at the first batch after `max_seconds`.

    Updates are as long as their training, so members that make the same number of steps are easier
    to compare: prefer `steps`, the same at every member.
    """

    epochs: int | None = None
    steps: int | None = None
    max_seconds: float | None = None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise UserError(
                f"epochs is {self.epochs} and steps is {self.steps}: a round has either so many "
                "passes over the data or so many batches; leave one of them out"
            )
        for name, count in (("epochs", self.epochs), ("steps", self.steps)):
            if count is not None and (not isinstance(count, int) or count < 1):
                raise UserError(f"{name} is {count!r}; a round needs a whole number, at least one")
        seconds = self.max_seconds
        number = isinstance(seconds, int | float)
        if seconds is not None and not (number and 0 < seconds < float("inf")):
            raise UserError(
                f"max_seconds is {self.max_seconds!r}; give a time above 0, or leave it out to "
                "train to the end"
            )

    @property
    def is_stated(self) -> bool:
        """Whether the user says how much a round trains."""
        return self.epochs is not None or self.steps is not None

    @property
    def passes(self) -> int | None:
        """Over the data; None if steps are counted."""
        return None if self.steps is not None else self.epochs or 1

    def begin(self, stop: Callable[[bool], bool] = alone) -> "TrainedSteps":
        """The time starts now. `stop` is asked before each step whether to stop, and told whether
        this process's time is up: several processes must stop at the same step."""
        return TrainedSteps(self.max_seconds, self.clock, stop)

    def batches(
        self, examples: int, batch_size: int, round_: Round, seed: int = 0
    ) -> Iterator[Rows]:
        """The rows of each batch of this round, in an order that follows from seed and round.

        With `steps`, a round continues where the one before ended: all rows are used equally often.
        """
        if examples < 1:
            raise UserError("the training data are empty: a round needs at least one example")
        if self.steps is None:
            for epoch in range(self.epochs or 1):
                yield from _shuffled(examples, batch_size, seed_of(seed, round_), epoch)
            return
        per_pass = -(-examples // batch_size)
        epoch, skipped = divmod((round_ - 1) * self.steps, per_pass)
        left = self.steps
        while left > 0:
            rows = islice(_shuffled(examples, batch_size, seed, epoch), skipped, skipped + left)
            for batch in rows:
                yield batch
                left -= 1
            epoch, skipped = epoch + 1, 0


def _shuffled(examples: int, batch_size: int, seed: int, epoch: int) -> Iterator[Rows]:
    order = np.random.default_rng(seed_of(seed, Round(epoch))).permutation(examples)
    for start in range(0, examples, batch_size):
        yield order[start : start + batch_size]


class TrainedSteps:
    """Counts the steps of one training and ends it when its time is up."""

    def __init__(
        self, max_seconds: float | None, clock: Callable[[], float], stop: Callable[[bool], bool]
    ) -> None:
        self._max_seconds = max_seconds
        self._clock = clock
        self._started = clock()
        self._stop = stop
        self.steps = 0
        self.cut_short = False

    def limit(self, batches: Iterable[T]) -> Iterator[T]:
        """These batches until the time is up; the first in any case, since an update without a
        step says nothing."""
        for batch in batches:
            if self.steps and self._is_over():
                self.cut_short = True
                return
            yield batch
            self.steps += 1

    @property
    def metrics(self) -> dict[str, float]:
        """How many steps were made and, if there is a limit, whether more were due."""
        steps = {"steps": float(self.steps)}
        return steps if self._max_seconds is None else {**steps, "cut_short": float(self.cut_short)}

    def _is_over(self) -> bool:
        if self._max_seconds is None:
            return False
        return self._stop(self._clock() - self._started >= self._max_seconds)
