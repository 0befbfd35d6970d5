"""Answers to peers that know less, so that no member stays behind while the log is quiet.

Answers are rate-limited: the same certificates go to the same peer once per period, and a small
request does not cause any number of long answers.
"""

from defl.ids import NodeId, View
from defl.messages import Blocks, Certificates, Message, Snapshot, Status
from defl.output import SafetyRecord

# A node that catches up requests one batch after another, each from a source that answered the
# last request; more than this in one period only wastes our uplink.
BLOCK_ANSWERS_PER_PERIOD_MAX = 16
# The same node needs one snapshot, and another one if the log has grown too fast meanwhile.
SNAPSHOTS_PER_PERIOD_MAX = 4
# To a peer that says it knows more. It says so on each connection, and once per period while it
# does not sign.
STATUSES_PER_PERIOD_MAX = 4
MOST_PER_PERIOD: dict[type[Message], int] = {
    Blocks: BLOCK_ANSWERS_PER_PERIOD_MAX,
    Snapshot: SNAPSHOTS_PER_PERIOD_MAX,
    Status: STATUSES_PER_PERIOD_MAX,
}


class Answers:
    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._given: dict[NodeId, tuple[View, View, float]] = {}
        # Since when, how many answers of this kind.
        self._counted: dict[tuple[NodeId, type[Message]], tuple[float, int]] = {}

    def may_send(self, kind: type[Message], peer: NodeId, now: float) -> bool:
        """Whether the peer may get one more answer of this kind in this period; counts it."""
        since, count = self._counted.get((peer, kind), (now, 0))
        if not since <= now < since + self._period_s:
            since, count = now, 0
        self._counted[peer, kind] = (since, count + 1)
        return count < MOST_PER_PERIOD[kind]

    def to(
        self, peer: NodeId, *, shows: tuple[View, View], mine: SafetyRecord, view: View, now: float
    ) -> Certificates | None:
        """Certificates for a peer that shows an older high QC view or view than this node's."""
        high_qc = mine.high_qc
        if shows[0] >= high_qc.view and shows[1] >= view:
            return None
        given = self._given.get(peer)
        if given is not None and given[:2] == (high_qc.view, view):
            given_at = given[2]
            if given_at <= now < given_at + self._period_s:
                return None
        self._given[peer] = (high_qc.view, view, now)
        high_tc = mine.high_tc
        newer = high_tc is not None and high_tc.view >= high_qc.view
        return Certificates(high_qc, high_tc if newer else None)
