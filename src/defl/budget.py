"""How much work a peer may cause: token buckets, and the agreed rates for signatures.

A node reads nothing more from a peer that is over its budget, and loses nothing that the peer
sent. The numbers follow from n, so that a node can afford all members together.
"""

from defl.committee import Committee
from defl.contacts import GUEST_IDS
from defl.ids import OUTSIDER, NodeId

# Signatures that all f liars together may make a node verify in the long run. One Ed25519 check
# takes about 0.11 ms: about a quarter of one core.
LIARS_VERIFICATIONS_PER_S = 2048
# Honest members send one certified UPD per round, and no federation needs more than two rounds a
# second.
UPDS_PER_S = 2
# After a partition one peer may send a block in which every member updates, and the next one.
BLOCKS_AT_ONCE = 2


class TokenBucket:
    """Lets `burst` pass at once and `per_s` in the long run."""

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._tokens = burst
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Take the amount, on credit if necessary; return the seconds until the debt is paid."""
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_s)
        self._at = now
        self._tokens -= amount
        return max(0.0, -self._tokens / self._per_s)


def verifications_per_s(committee: Committee) -> int:
    """The sustained rate per peer: an equal share of what f liars may cost, but never less than an
    honest member needs."""
    share = LIARS_VERIFICATIONS_PER_S // max(1, committee.faults)
    return max(share, UPDS_PER_S * (committee.quorum + 1))


def verifications_at_once(committee: Committee) -> int:
    """The burst that a peer may use after a quiet period."""
    quorum = committee.quorum
    # Each member's UPD with its acks and its AGG; the proposal, its QC, its TC with a QC.
    block = committee.size * (quorum + 2) + 3 * quorum + 1
    return max(BLOCKS_AT_ONCE * block, verifications_per_s(committee))


class Budget:
    """Counts the signatures that each peer makes this node verify, valid or not."""

    def __init__(self, committee: Committee) -> None:
        per_s, at_once = verifications_per_s(committee), verifications_at_once(committee)
        peers = (*committee.members, *GUEST_IDS, OUTSIDER)
        self._buckets = {peer: TokenBucket(per_s, at_once, 0.0) for peer in peers}
        self.spent = dict.fromkeys(peers, 0)

    def spend(self, peer: NodeId, signatures: int, now: float) -> float:
        """Charge the peer; return the seconds that it must wait before its next signature. Guests
        are approved; all other outsiders share one budget, and must not make a guest wait."""
        payer = peer if peer in self._buckets else OUTSIDER
        self.spent[payer] += signatures
        return self._buckets[payer].take(signatures, now)
