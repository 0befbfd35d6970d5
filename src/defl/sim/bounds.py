"""How much an honest node may hold, in memory and on disk."""

from collections.abc import Callable

from defl.changes import OPERATIONS_MAX
from defl.participant import Participant
from defl.sim.disk import Disk
from defl.sim.verdicts import WITHIN_BOUNDS

# In addition to one block per view: the snapshot's, and a second block of a view if that one turned
# out to be certified.
BLOCKS_SLACK = 8


class Bounds:
    def __init__(self, violate: Callable[[str, str], None]) -> None:
        self._violate = violate
        self.largest: dict[str, int] = {}

    def memory(self, participant: Participant) -> None:
        n, tau = participant.federation.committee.slots, participant.federation.tau
        changes = len(participant.state.changes)
        limits = {
            "blocks": _blocks_max(participant),
            # UPD, AGG and CHANGE for two rounds; an APPROVE for each change, READYs for its keys.
            "transactions": 6 * n + (n + 2 * OPERATIONS_MAX) * changes,
            "statements": 2 * n * 66 + 66,
            "blobs": (tau + 3) * n + tau + 3,
            "offers": (tau + 2) * n,
            "acks": (tau + 2) * n,
            "fetches": (tau + 3) * n + tau + 3,
            "evidence": 6 * n,
        }
        for name, amount in participant.stored.items():
            self.largest[name] = max(self.largest.get(name, 0), amount)
            if amount > limits[name]:
                self._violate(WITHIN_BOUNDS, f"node {participant.me} holds {amount} {name}")

    def disk(self, participant: Participant, disk: Disk) -> None:
        federation = participant.federation
        blobs_max = (federation.tau + 4) * (federation.committee.slots + 1)
        if len(disk.blocks) > _blocks_max(participant) or len(disk.blobs) > blobs_max:
            self._violate(WITHIN_BOUNDS, f"node {participant.me}'s disk holds too much")


def _blocks_max(participant: Participant) -> int:
    """One for each view since the snapshot's: more would be growth that nothing removes."""
    replica = participant.replica
    return max(0, replica.view - replica.root.view) + BLOCKS_SLACK
