"""Whether an honest member takes part in the rounds through which it was up."""

from defl.ids import Round

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
