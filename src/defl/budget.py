"""Budgets for the work that a peer causes: the price of each message, token buckets, agreed rates.

The unit of work is one signature check, about 0.11 ms. A node reads nothing more from a peer that
is over its budget, and loses nothing that the peer sent. The numbers follow from n, so that a node
can afford all members together.
"""

from dataclasses import dataclass

from defl.committee import Committee
from defl.contacts import FORMER_FROM, GUEST_IDS, STRANGERS_FROM
from defl.ids import OUTSIDER, NodeId
from defl.messages import (
    Attestation,
    BlockRequest,
    Blocks,
    Certificates,
    Chunk,
    ChunkRequest,
    Evidence,
    Gossip,
    Handover,
    Have,
    ManifestAnswer,
    ManifestRequest,
    Message,
    NotHeld,
    Offer,
    Pace,
    Proposal,
    Snapshot,
    Statements,
    StatementsRequest,
    Status,
    StoreAck,
    Timeout,
    Vote,
)

# Work that all f liars together may cause in the long run, signatures and everything else: about a
# quarter of one core. It is also two thirds of a core divided by n for each member. So if all
# members are equally busy, the node runs out of CPU time before a peer runs out of budget.
LIARS_VERIFICATIONS_PER_S = 2048
# Honest members send one certified UPD per round, and no federation needs more than two rounds a
# second. Where this is the larger rate (n > 67) a round takes seconds, so one UPD of the two leaves
# room for the rest: at n = 100 for 20 votes (30), 10 chunk requests (26) and 2 Haves (14) a second.
UPDS_PER_S = 2
# After a partition one peer may send a block in which every member updates, and the next one.
BLOCKS_AT_ONCE = 2
# A shorter debt is carried on: to pause for each frame would cost as much as the frame itself.
DEBT_S_MIN = 0.05


@dataclass(frozen=True, slots=True)
class Price:
    """The work for one message, apart from its signatures, transactions and bytes.

    Reading, judging and handling a message, and its answer: measured with tests/endurance/flood.py.
    """

    frame: float
    member: float = 0.0  # for each member: handling looks at every blob that is on its way
    bytes_per_unit: int = 16 * 2**10  # decoded, compared with the canonical form, hashed


REPLICA = Price(0.5)  # the other parts of the node have nothing to do
WHOLE = Price(0.5, 1 / 64)
PRICES: dict[type[Message], Price] = {
    Proposal: REPLICA,
    Vote: REPLICA,
    Timeout: REPLICA,
    Certificates: REPLICA,
    Status: REPLICA,
    Gossip: REPLICA,
    Blocks: REPLICA,
    BlockRequest: Price(1.5),  # the answer is encoded
    Snapshot: WHOLE,
    Handover: WHOLE,
    Offer: Price(4.5, 1 / 64),  # its author may get its first offer back
    StoreAck: WHOLE,
    ManifestRequest: Price(4.5, 1 / 64),  # the longest manifest is encoded and sent
    ManifestAnswer: WHOLE,
    ChunkRequest: Price(1.0, 1 / 64),  # the chunk is read and sent
    Chunk: Price(1.0, 1 / 64, bytes_per_unit=64 * 2**10),  # in a thread; only hashed
    NotHeld: WHOLE,
    Have: Price(0.5, 1 / 16),  # all requests are weighed again
    Attestation: WHOLE,
    Pace: WHOLE,
    Evidence: WHOLE,
    StatementsRequest: WHOLE,
    Statements: WHOLE,
}
# A transaction is decoded, encoded and looked up, whether it is wanted or not.
TRANSACTION_PRICE = 0.04
# A frame that is a fault or of another epoch may hold anything, such as transactions.
UNREAD = Price(1.0, 1 / 64, bytes_per_unit=1600)


def price_of(message: Message | None, size: int, committee: Committee) -> float:
    """Return the work for a frame of `size` bytes, apart from its signatures. The message is None
    if the frame is a fault or of another epoch."""
    price = UNREAD if message is None else PRICES[type(message)]
    work = price.frame + price.member * committee.size + size / price.bytes_per_unit
    match message:
        case Gossip(transactions=transactions):
            return work + TRANSACTION_PRICE * len(transactions)
        case Proposal(block=block):
            return work + TRANSACTION_PRICE * len(block.transactions)
        case Blocks(blocks=blocks):
            return work + TRANSACTION_PRICE * sum(len(block.transactions) for block in blocks)
    return work


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
    """Charges each peer for the work that it causes, valid or not."""

    def __init__(self, committee: Committee) -> None:
        self._committee = committee
        per_s, at_once = verifications_per_s(committee), verifications_at_once(committee)
        peers = (*committee.members, *GUEST_IDS, NodeId(FORMER_FROM), OUTSIDER)
        self._buckets = {peer: TokenBucket(per_s, at_once, 0.0) for peer in peers}
        self.spent = dict.fromkeys(peers, 0)  # on signatures

    def _payer(self, peer: NodeId) -> NodeId:
        """Return whose budget pays for the peer. Former members share one and strangers another:
        neither may make a guest wait, nor strangers a former member."""
        if peer in self._buckets:
            return peer
        return NodeId(FORMER_FROM) if FORMER_FROM <= peer < STRANGERS_FROM else OUTSIDER

    def wait_s(self, peer: NodeId, now: float) -> float:
        """Return the seconds that the peer must wait before its next frame is read."""
        return self._spend(peer, 0.0, now)

    def price_of(self, message: Message | None, size: int) -> float:
        return price_of(message, size, self._committee)

    def charge(self, peer: NodeId, message: Message | None, size: int, now: float) -> float:
        """Charge a frame, apart from its signatures; return its price."""
        price = self.price_of(message, size)
        self._spend(peer, price, now)
        return price

    def spend(self, peer: NodeId, signatures: int, now: float) -> float:
        """Charge signatures; return the seconds that the peer must wait before the next one."""
        self.spent[self._payer(peer)] += signatures
        return self._spend(peer, signatures, now)

    def _spend(self, peer: NodeId, work: float, now: float) -> float:
        debt_s = self._buckets[self._payer(peer)].take(work, now)
        return debt_s if debt_s >= DEBT_S_MIN else 0.0
