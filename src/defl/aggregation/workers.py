"""How the columns of a round are divided among the caller's threads.

The rules own no threads: a caller that has some passes them in. The bits of the result never depend
on them, because work over columns is either elementwise or a sum of exact integers.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

Part = TypeVar("Part")


def sequentially(work: Callable[[int], Part], lanes: Iterable[int]) -> Iterable[Part]:
    return [work(lane) for lane in lanes]


@dataclass(frozen=True, slots=True)
class Workers:
    """Into how many lanes to divide work, and what runs them: `executor.map` of a pool, say."""

    count: int = 1
    run: Callable[[Callable[[int], object], Iterable[int]], Iterable[object]] = sequentially

    def gather(self, work: Callable[[int], Part]) -> list[Part]:
        """Run `work(lane)` for every lane and wait for all of them."""
        return list(self.run(work, range(self.count)))  # type: ignore[arg-type]  # `run` is generic in its result, which a field cannot say

    def passes(self, columns: int, columns_per_pass: int, lane: int) -> Iterable[slice]:
        """The slices of columns that one lane handles."""
        for start in range(lane * columns_per_pass, columns, self.count * columns_per_pass):
            yield slice(start, min(columns, start + columns_per_pass))


ALONE = Workers()
