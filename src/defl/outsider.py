"""A node that is no member: a guest that catches up, or a former member that still serves.

Members send it nothing unasked, so it shows its Status again and again and is answered with what
it lacks. A former member may be the only one that can prove how its epoch ended: it stays until a
quorum of the new members has shown that they know.
"""

from defl.changes import Ready
from defl.committee import Federation
from defl.ids import NodeId
from defl.messages import (
    BlockRequest,
    ChunkRequest,
    Gossip,
    ManifestAnswer,
    ManifestRequest,
    Message,
    NotHeld,
    Status,
)

BLOB_MESSAGES = (ManifestRequest, ManifestAnswer, ChunkRequest, NotHeld)


class Outsider:
    def __init__(self, federation: Federation, *, was_member: bool) -> None:
        self._committee = federation.committee
        self._period_s = federation.timing.view_base_s
        self._was_member = was_member
        self._arrived: set[NodeId] = set()
        self.wake_at: float | None = float("-inf")

    def is_due(self, now: float) -> bool:
        """Is it time to show the Status again?"""
        if self.departed:
            self.wake_at = None
        if self.wake_at is None or now < self.wake_at:
            return False
        self.wake_at = now + self._period_s
        return True

    def shown(self, member: NodeId) -> None:
        """This member has shown a Status of this epoch or a later one."""
        if self._committee.has(member):
            self._arrived.add(member)

    def may_say(self, message: Message) -> bool:
        """Members listen to its questions, its answers about blobs, and its own READY. They show
        their log to guests alone."""
        if isinstance(message, Gossip):
            return all(isinstance(transaction, Ready) for transaction in message.transactions)
        if isinstance(message, BlockRequest):
            return not self._was_member
        return isinstance(message, (Status, *BLOB_MESSAGES))

    @property
    def departed(self) -> bool:
        return self._was_member and len(self._arrived) >= self._committee.quorum
