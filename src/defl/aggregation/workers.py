"""How the columns of a round are shared out among the caller's threads.

The rules own no thread: a caller that has some passes them here, and the bits of the result never
depend on it, because work over columns is either elementwise or a sum of exact integers.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

Part = TypeVar("Part")


def in_turn(work: Callable[[int], Part], lanes: Iterable[int]) -> Iterable[Part]:
    return [work(lane) for lane in lanes]


@dataclass(frozen=True, slots=True)
class Workers:
    """How many pieces of work to make, and what runs them: `executor.map` of a pool, say."""

    count: int = 1
    run: Callable[[Callable[[int], object], Iterable[int]], Iterable[object]] = in_turn

    def gather(self, work: Callable[[int], Part]) -> list[Part]:
        """`work(lane)` for every lane, all done when this returns."""
        return list(self.run(work, range(self.count)))  # type: ignore[arg-type]  # `run` is generic in its result, which a field cannot say

    def passes(self, columns: int, columns_per_pass: int, lane: int) -> Iterable[slice]:
        """The slices of columns that fall to one lane."""
        for start in range(lane * columns_per_pass, columns, self.count * columns_per_pass):
            yield slice(start, min(columns, start + columns_per_pass))


ALONE = Workers()
