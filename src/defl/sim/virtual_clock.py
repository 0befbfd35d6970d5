"""The virtual clock: a heap of what happens when.

Of two actions that are due at the same time, the one that was planned first comes first.
"""

from collections.abc import Callable
from heapq import heappop, heappush

Action = Callable[[], None]


class VirtualClock:
    def __init__(self) -> None:
        self.now = 0.0
        self.planned: list[tuple[float, int, Action]] = []  # a heap
        self._sequence = 0

    def at(self, when: float, action: Action) -> None:
        self._sequence += 1
        heappush(self.planned, (when, self._sequence, action))

    def after(self, seconds: float, action: Action) -> None:
        self.at(self.now + seconds, action)

    def step(self) -> None:
        """The next event happens."""
        self.now, _, action = heappop(self.planned)
        action()
