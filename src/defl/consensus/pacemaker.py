"""Which view this node is in, and when it gives it up.

The timer runs exactly while there is work; the period backs off with the views since the last
commit, so that any network delay is outlasted in the end.
"""

from defl.committee import Timing
from defl.ids import View

BACK_OFF = 1.2
# Beyond this the cap has long been reached; it keeps the power finite.
BACK_OFF_STEPS_MAX = 256


class Pacemaker:
    def __init__(self, view: View, timing: Timing) -> None:
        self.view = view
        self.deadline: float | None = None
        self._timing = timing
        self._views_since_commit = 0

    @property
    def period(self) -> float:
        steps = min(self._views_since_commit, BACK_OFF_STEPS_MAX)
        return float(min(self._timing.view_cap_s, self._timing.view_base_s * BACK_OFF**steps))

    def enter(self, view: View, *, working: bool) -> None:
        self.view = view
        self.deadline = None
        self._views_since_commit += working

    def committed(self) -> None:
        self._views_since_commit = 0

    def run_while(self, work: bool, now: float) -> None:
        """Start the timer when work appears; stop it when the last of it is done."""
        if not work:
            self.deadline = None
        elif self.deadline is None:
            self.deadline = now + self.period

    def expired(self, now: float) -> bool:
        return self.deadline is not None and now >= self.deadline

    def again(self, now: float) -> None:
        self.deadline = now + self.period
