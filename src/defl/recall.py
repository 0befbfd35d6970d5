"""What other members have seen this node sign: requested at each start, before any new signature.

A state folder restored from an old copy has forgotten signatures that have left. The others
remember each member's newest statements, so a node that starts asks them and signs nothing until
q - 1 have answered: an honest one among these knows any statement that q others have accepted. The
answers are the asker's own signed statements, so they cannot be forged. Answering needs no
signature, so all members may start at once.

The memory is not durable: a node forgets at its own start what it has seen.
"""

from msgspec.structs import replace

from defl.committee import Federation
from defl.ids import OUTSIDER, NodeId, Round
from defl.messages import (
    Message,
    Offer,
    Proposal,
    SignedHeader,
    Statements,
    StatementsRequest,
    StoreAck,
    Timeout,
    Vote,
)
from defl.output import Envelope, SafetyRecord
from defl.pool.pool import Pool

NOTHING_SEEN = Statements(None, None, None, None, ())


class Recall:
    def __init__(self, federation: Federation, me: NodeId, *, is_answered: bool = False) -> None:
        """`is_answered`: this process was told enough in an earlier epoch, so it has signed
        nothing in this one that it has forgotten."""
        self._me = me
        self._others = tuple(m for m in federation.committee.members if m != me)
        signs = me != OUTSIDER and not is_answered
        self._answers_needed = federation.committee.quorum - 1 if signs else 0
        self._repeat_s = federation.timing.view_base_s
        self._answered: set[NodeId] = set()
        self._seen: dict[NodeId, Statements] = {}  # the newest of each kind, by author
        self._answered_at: dict[NodeId, float] = {}  # when each peer got its last answer
        self.wake_at: float | None = float("-inf")

    @property
    def asking(self) -> bool:
        return self.answers_missing > 0

    @property
    def answers_missing(self) -> int:
        return max(0, self._answers_needed - len(self._answered))

    def ask(self, now: float) -> list[Envelope]:
        """The request that is due, to the members that have not answered."""
        if not self.asking:
            self.wake_at = None
        if self.wake_at is None or now < self.wake_at:
            return []
        self.wake_at = now + self._repeat_s
        silent = tuple(member for member in self._others if member not in self._answered)
        return [Envelope(silent, StatementsRequest())]

    def connected(self, peer: NodeId) -> list[Envelope]:
        if not self.asking or peer in self._answered:
            return []
        return [Envelope((peer,), StatementsRequest())]

    def wants_answer_of(self, peer: NodeId) -> bool:
        """Each peer's first answer after the start counts, even a late one."""
        return peer not in self._answered

    def record_answer(self, peer: NodeId) -> None:
        self._answered.add(peer)

    # --- For the others --------------------------------------------------------------------

    def remember(self, message: Message) -> None:
        """Remember a checked statement if it is its author's newest of that kind."""
        match message:
            case Vote(author=author, view=view):
                seen = self._seen.get(author, NOTHING_SEEN)
                if seen.vote is None or view > seen.vote.view:
                    self._seen[author] = replace(seen, vote=message)
            case Timeout(author=author, view=view):
                seen = self._seen.get(author, NOTHING_SEEN)
                if seen.timeout is None or view > seen.timeout.view:
                    self._seen[author] = replace(seen, timeout=message)
            case Proposal(block=block, signature=signature):
                author = block.header.author
                seen = self._seen.get(author, NOTHING_SEEN)
                if seen.proposal is None or block.view > seen.proposal.header.view:
                    header = SignedHeader(block.header, signature)
                    self._seen[author] = replace(seen, proposal=header)
            case Offer(author=author, round=round_):
                seen = self._seen.get(author, NOTHING_SEEN)
                if seen.offer is None or round_ > seen.offer.round:
                    self._seen[author] = replace(seen, offer=message)
            case _:
                pass

    def answer(self, peer: NodeId, acks: tuple[StoreAck, ...], now: float) -> list[Envelope]:
        """`acks`: the peer's acks for this node's own updates, at most tau + 2 of them: fewer than
        ACKS_RECALLED_MAX."""
        since = now - self._answered_at.get(peer, float("-inf"))
        if 0 <= since < self._repeat_s / 2:  # it asks on each connection and once per period
            return []
        self._answered_at[peer] = now
        statements = replace(self._seen.get(peer, NOTHING_SEEN), acks=acks)
        return [Envelope((peer,), statements)]


def authors_of(statements: Statements) -> set[NodeId]:
    signed = (statements.vote, statements.timeout, statements.proposal, statements.offer)
    authors = {statement.author for statement in signed if statement is not None}
    return authors | {ack.acker for ack in statements.acks}


def beyond_record(
    statements: Statements, record: SafetyRecord, pool: Pool, forgotten: Round
) -> str | None:
    """Names a statement that this node signed and its own state does not hold; None if there is
    none. No node keeps offers and acks of round `forgotten` and older.
    """
    vote, timeout, proposal = statements.vote, statements.timeout, statements.proposal
    if vote is not None and vote.view >= record.last_voted_view:
        own_vote = record.last_vote
        if own_vote is None or (own_vote.view, own_vote.block) != (vote.view, vote.block):
            return f"a vote in view {vote.view}"
    if timeout is not None and timeout.view >= record.last_timeout_view:
        own_timeout = record.last_timeout
        if own_timeout is None or own_timeout.signature != timeout.signature:
            return f"a timeout of view {timeout.view}"
    if proposal is not None:
        own_proposal = record.last_proposal
        own_view = own_proposal.block.view if own_proposal is not None else 0
        if proposal.header.view >= own_view and (
            own_proposal is None or own_proposal.block.id != proposal.header.id
        ):
            return f"a proposal in view {proposal.header.view}"
    offer = statements.offer
    if offer is not None and offer.round > forgotten:
        own = pool.offer_for(offer.round)
        if own is None or own.manifest != offer.manifest:
            return f"an offer for round {offer.round}"
    for ack in statements.acks:
        if ack.round > forgotten and pool.ack_for(ack.round, ack.author) != ack.digest:
            return f"a store-ack for round {ack.round}"
    return None
