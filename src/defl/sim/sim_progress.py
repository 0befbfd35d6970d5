"""How far a simulated run is: the rounds that all honest members closed, and whether it is calm,
stuck or over."""

from collections.abc import Sequence

from defl.ids import OUTSIDER
from defl.sim.conditions import Conditions
from defl.sim.epoch_facts import EpochFacts
from defl.sim.sim_node import SimNode

# A run that needs more is stuck: no round of a calm federation takes a thousand events per pair.
EVENTS_PER_ROUND_AND_PAIR_MAX = 3000
# So is a run in which no round closed for this long after the last fault, on top of the longest
# time that a round may stay open: all back-offs have ended by then.
STUCK_AFTER_S = 3600.0


class SimProgress:
    def __init__(
        self, facts: EpochFacts, conditions: Conditions, honest: Sequence[SimNode]
    ) -> None:
        """`honest`: the honest nodes; more of them may join."""
        self._facts = facts
        self._origin = facts.newest
        self._conditions = conditions
        self._honest = honest
        self.rounds_closed = 0  # by every honest member
        self.stuck_at = self._stuck_if_idle_since(0.0)

    def count_rounds(self, now: float) -> None:
        participants = (node.behaviour.participant for node in self._honest if not node.stopped)
        closed = min(p.state.round for p in participants if p.me != OUTSIDER)
        if closed != self.rounds_closed:
            self.rounds_closed = closed
            self.stuck_at = self._stuck_if_idle_since(now)

    def _stuck_if_idle_since(self, progress_at: float) -> float:
        """When the run is stuck, if no round closes after `progress_at`."""
        since = max(progress_at, self._conditions.last_trouble_s)
        return since + self._origin.timing.gst_lt_max_s + STUCK_AFTER_S

    def is_calm(self, now: float) -> bool:
        """Is it too late for random faults?"""
        half = self.rounds_closed * 2 >= self._origin.rounds
        return half or now >= self._conditions.calm_after_s

    def events_max(self, nodes: int) -> int:
        rounds = max(facts.rounds for facts in self._facts.all)
        return EVENTS_PER_ROUND_AND_PAIR_MAX * nodes**2 * (rounds + 2)

    @property
    def is_over(self) -> bool:
        return all(
            node.stopped or node.ended or (node.alive and self._is_done(node))
            for node in self._honest
        )

    def _is_done(self, node: SimNode) -> bool:
        """It is finished, or has left, or nobody has made it a member."""
        return node.behaviour.participant.finished or not self._facts.was_member(node.id)
