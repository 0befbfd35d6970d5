"""The current view and its timer.

The timer runs exactly while there is work. Its period backs off with the number of views that
failed since the last commit, so that it outlasts any network delay in the end. If each QC reset the
period, a network slower than the first period would never see three good views in a row.

A leader whose last view failed, or that has been silent lately, gets little more time than good
views take, so that members that are down cost little. The back-off for such a leader counts all
failed views. For others it counts only views that had a full period: many short views must not
make the next full one long.
"""

from collections import deque

from defl.committee import Timing
from defl.ids import NodeId, View

BACK_OFF = 1.2
# Beyond this the cap has long been reached; it keeps the power finite.
BACK_OFF_STEPS_MAX = 256
# A member that is up votes or times out in every view; a vote may come one view late.
HEARD_WITHIN_VIEWS = 2
# A leader that failed gets twice the time of the slowest of the last few good views ...
GOOD_VIEWS_KEPT = 8
FAILED_LEADER_FACTOR = 2.0
# ... but no less than this share of the first period: good views may have been very fast.
FAILED_LEADER_SHARE_MIN = 0.125


class Pacemaker:
    def __init__(self, view: View, timing: Timing) -> None:
        self.view = view
        self.deadline: float | None = None
        self._timing = timing
        self._started_at: float | None = None  # when the timer of this view started
        self._failures = 0  # views given up since the last commit
        self._whole_failures = 0  # of these, views that had a full period
        self._failed: set[NodeId] = set()  # leaders whose last view was given up
        self._heard_in: dict[NodeId, View] = {}  # the view in which each member was last heard
        self._good_views_s: deque[float] = deque(maxlen=GOOD_VIEWS_KEPT)

    def period(self, leader: NodeId) -> float:
        timing = self._timing
        first, steps = timing.view_base_s, self._whole_failures
        if self._is_doubtful(leader):
            steps = self._failures
            if self._good_views_s:
                enough = FAILED_LEADER_FACTOR * max(self._good_views_s)
                first = min(first, max(enough, first * FAILED_LEADER_SHARE_MIN))
        back_off = BACK_OFF ** min(steps, BACK_OFF_STEPS_MAX)
        return float(min(timing.view_cap_s, first * back_off))

    def _is_doubtful(self, leader: NodeId) -> bool:
        heard_in = self._heard_in.get(leader, View(0))
        return leader in self._failed or heard_in + HEARD_WITHIN_VIEWS < self.view

    def heard(self, member: NodeId) -> None:
        self._heard_in[member] = self.view

    def certified(self, leader: NodeId, now: float) -> None:
        """The current view has its QC."""
        self._failed.discard(leader)
        if self._started_at is not None:
            self._good_views_s.append(now - self._started_at)

    def given_up(self, leader: NodeId) -> None:
        """The current view has its TC."""
        self._whole_failures += not self._is_doubtful(leader)
        self._failures += 1
        self._failed.add(leader)

    def enter(self, view: View) -> None:
        self.view = view
        self.deadline = self._started_at = None

    def committed(self) -> None:
        self._failures = self._whole_failures = 0

    def run_while(self, work: bool, leader: NodeId, now: float) -> None:
        """Start the timer when work appears; stop it when none is left."""
        if not work:
            self.deadline = self._started_at = None
        elif self.deadline is None:
            self._started_at = now
            self.deadline = now + self.period(leader)

    def expired(self, now: float) -> bool:
        return self.deadline is not None and now >= self.deadline

    def again(self, leader: NodeId, now: float) -> None:
        """Set the timer for repeating the timeout: never sooner than after the first period."""
        self.deadline = now + max(self._timing.view_base_s, self.period(leader))
