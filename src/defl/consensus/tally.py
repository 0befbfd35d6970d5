"""Statements by view, until votes or timeouts suffice for a certificate.

One proposal per view, one vote and one timeout per author and view; a second, different one is
evidence and does not count. Views outside the window are not kept: a liar must not grow our
memory.
"""

from defl.committee import Committee
from defl.fields import bitmap_of
from defl.ids import Digest, NodeId, View
from defl.messages import QC, TC, Evidence, Proposal, SignedHeader, Timeout, Vote
from defl.verifier import contradict

# Nothing further ahead is stored. A node that was away catches up by certificates, not by votes.
VIEWS_AHEAD_MAX = 64
# Late proposals are kept for as long, to detect a second one.
PROPOSALS_BEHIND_MAX = 64


class Tally:
    def __init__(self, committee: Committee) -> None:
        self._committee = committee
        self._votes: dict[View, dict[NodeId, Vote]] = {}
        self._counts: dict[View, dict[Digest, int]] = {}  # of these votes, by block
        self._timeouts: dict[View, dict[NodeId, Timeout]] = {}
        self._proposals: dict[View, Proposal] = {}

    def __len__(self) -> int:
        votes = sum(len(votes) for votes in self._votes.values())
        timeouts = sum(len(timeouts) for timeouts in self._timeouts.values())
        return votes + timeouts + len(self._proposals)

    def entered(self, view: View) -> None:
        """Forget what no longer matters; the votes of the last view may still form its QC."""
        for votes in [v for v in self._votes if v < view - 1]:
            del self._votes[votes], self._counts[votes]
        for timeouts in [v for v in self._timeouts if v < view - 1]:
            del self._timeouts[timeouts]
        for old in [v for v in self._proposals if v + PROPOSALS_BEHIND_MAX < view]:
            del self._proposals[old]

    @staticmethod
    def keeps_proposals_of(view: View, *, now_in: View) -> bool:
        return view + PROPOSALS_BEHIND_MAX >= now_in

    def proposal(self, view: View) -> Proposal | None:
        """The first proposal received for a view."""
        return self._proposals.get(view)

    def add_proposal(self, proposal: Proposal) -> Evidence | None:
        earlier = self._proposals.setdefault(proposal.block.view, proposal)
        first = SignedHeader(earlier.block.header, earlier.signature)
        second = SignedHeader(proposal.block.header, proposal.signature)
        return Evidence(first, second) if contradict(first, second) else None

    def vote(self, view: View, author: NodeId) -> Vote | None:
        """The vote that counts."""
        return self._votes.get(view, {}).get(author)

    def timeout(self, view: View, author: NodeId) -> Timeout | None:
        return self._timeouts.get(view, {}).get(author)

    def add_vote(self, vote: Vote) -> QC | Evidence | None:
        votes = self._votes.setdefault(vote.view, {})
        earlier = votes.get(vote.author)
        if earlier is not None:
            return Evidence(earlier, vote) if contradict(earlier, vote) else None
        votes[vote.author] = vote
        counts = self._counts.setdefault(vote.view, {})
        counts[vote.block] = counts.get(vote.block, 0) + 1
        # Formed once, when the quorum is reached; later votes add nothing.
        if counts[vote.block] != self._committee.quorum:
            return None
        return self._qc(vote.view, vote.block)

    def _qc(self, view: View, block: Digest) -> QC:
        votes = {v.author: v for v in self._votes[view].values() if v.block == block}
        authors = sorted(votes)
        return QC(
            view,
            block,
            bitmap_of(authors, self._committee.slots),
            tuple(votes[author].signature for author in authors),
        )

    def add_timeout(self, timeout: Timeout) -> TC | Evidence | None:
        timeouts = self._timeouts.setdefault(timeout.view, {})
        earlier = timeouts.get(timeout.author)
        if earlier is not None:
            return Evidence(earlier, timeout) if contradict(earlier, timeout) else None
        timeouts[timeout.author] = timeout
        return self._tc(timeout.view)

    def timeouts_for(self, view: View) -> int:
        return len(self._timeouts.get(view, ()))

    def _tc(self, view: View) -> TC | None:
        timeouts = self._timeouts[view]
        if len(timeouts) != self._committee.quorum:
            return None
        authors = sorted(timeouts)
        newest = max((timeouts[author].high_qc for author in authors), key=lambda qc: qc.view)
        return TC(
            view=view,
            signers=bitmap_of(authors, self._committee.slots),
            high_views=tuple(timeouts[author].high_qc.view for author in authors),
            signatures=tuple(timeouts[author].signature for author in authors),
            qc=newest,
        )
