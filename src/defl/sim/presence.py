"""Whether an honest member takes part in the rounds through which it was up."""

from collections.abc import Callable, Iterable

from defl.ids import NodeId, Round
from defl.sim.verdicts import NO_MEMBER_LEFT_BEHIND

# In the first rounds the members' pace is unknown, so no member is judged.
ROUNDS_TO_LEARN = 3
# From then on a member that was up and connected misses at most this many rounds in a row ...
LEFT_OUT_IN_A_ROW_MAX = 3
# ... and, once it was judged in this many, is in at least this share of them.
ROUNDS_JUDGED_MIN = 12
PRESENT_SHARE_MIN = 0.75


class Presence:
    """Does an honest member take part in the rounds through which it was up, without faults?"""

    def __init__(self) -> None:
        self._away_until = Round(ROUNDS_TO_LEARN)
        self._in_a_row = 0
        self._judged = 0
        self._present = 0

    def away(self, newest: Round) -> None:
        """It was down or cut off: neither the open round nor the one in which it catches up counts,
        nor the rounds that it may then take to be waited for again."""
        self._away_until = max(self._away_until, Round(newest + 2 + LEFT_OUT_IN_A_ROW_MAX))
        self._in_a_row = 0

    def closed(self, round_: Round, *, present: bool) -> str | None:
        """The rounds that the member missed, if they are too many."""
        if round_ <= self._away_until:
            return None
        self._judged += 1
        self._present += present
        self._in_a_row = 0 if present else self._in_a_row + 1
        if self._in_a_row > LEFT_OUT_IN_A_ROW_MAX:
            return f"{self._in_a_row} rounds in a row"
        if self._judged >= ROUNDS_JUDGED_MIN:
            share = self._present / self._judged
            if share < PRESENT_SHARE_MIN:
                return f"{self._judged - self._present} of {self._judged} rounds"
        return None


class MemberPresence:
    """The presence of all honest machines, in the epochs in which they are members."""

    def __init__(self, violate: Callable[[str, str], None]) -> None:
        self._violate = violate
        self._presence: dict[NodeId, Presence] = {}
        self._down: set[NodeId] = set()
        self._newest = Round(0)

    def join(self, machine: NodeId) -> None:
        """It is a member from now on."""
        if machine not in self._presence:
            self._presence[machine] = Presence()
            if self._newest:
                self._presence[machine].away(self._newest)

    def away(self, *machines: NodeId) -> None:
        """These cannot take part in the open round normally."""
        for machine in machines:
            if machine in self._presence:
                self._presence[machine].away(self._newest)

    def down(self, machine: NodeId) -> None:
        """The process is dead or its disk is full, until `up` is called."""
        self._down.add(machine)

    def up(self, machine: NodeId) -> None:
        self._down.discard(machine)
        self.away(machine)

    def closed(
        self,
        round_: Round,
        authors: tuple[NodeId, ...],
        members: dict[NodeId, NodeId],
        excused: Iterable[NodeId],
    ) -> None:
        """`members`: of the epoch that closed the round, by machine; `excused`: machines."""
        self.away(*self._down, *excused, *(m for m in self._presence if m not in members))
        self._newest = round_
        for machine, presence in self._presence.items():
            fault = presence.closed(round_, present=members.get(machine) in authors)
            if fault is not None:
                sentence = f"honest member {machine} was left out of {fault} up to round {round_}"
                self._violate(NO_MEMBER_LEFT_BEHIND, sentence)
