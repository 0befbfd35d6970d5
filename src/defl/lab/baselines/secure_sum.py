"""Biscotti's secure aggregation in one round: nobody but its author sees a change, only the mean.

A contributor splits its change into Shamir shares, one for each miner. A miner adds up the shares
of all accepted changes and sends the sum to the leader, who opens the sum of a majority of miners.
"""

import numpy as np

from defl.errors import BadBlob
from defl.fields import bitmap_of, members_in
from defl.ids import NodeId, Round
from defl.lab.baselines import shamir
from defl.lab.baselines.blockchain import BiscottiShare
from defl.lab.baselines.machine import SeatEnvelope
from defl.schema import Row


class SecureSum:
    def __init__(self, round_: Round, me: NodeId, miners: tuple[NodeId, ...], members: int) -> None:
        """The first of `miners` leads the round."""
        self._round = round_
        self._me = me
        self._miners = miners
        self._members = members
        self._shares: dict[NodeId, shamir.Secret] = {}  # by contributor
        self._sums: dict[NodeId, tuple[bytes, shamir.Secret]] = {}  # by miner: of whose changes

    @property
    def _needed(self) -> int:
        return len(self._miners) // 2 + 1

    def split(self, change: Row, rng: np.random.Generator) -> list[SeatEnvelope]:
        """Shares of this node's change for the other miners; its own stays here."""
        shares = shamir.split(shamir.fixed_point(change), len(self._miners), self._needed, rng)
        authors = bitmap_of([self._me], self._members)
        envelopes = []
        for miner, share in zip(self._miners, shares, strict=True):
            if miner == self._me:
                self._shares[self._me] = share
            else:
                part = BiscottiShare(self._round, authors, shamir.to_bytes(share))
                envelopes.append(SeatEnvelope((miner,), part))
        return envelopes

    def take(self, peer: NodeId, message: BiscottiShare, values: int) -> None:
        """A contributor's share, or a miner's sum for the leader."""
        share = shamir.from_bytes(message.payload, values)
        if share is None:
            raise BadBlob(f"{peer} sent bytes that are not a share")
        if members_in(message.authors) == (peer,):
            self._shares.setdefault(peer, share)
        elif self._me == self._miners[0] and peer in self._miners:
            self._sums.setdefault(peer, (message.authors, share))

    def add_up(self, accepted: set[NodeId], *, waited: bool) -> SeatEnvelope | None:
        """Add up the shares of accepted changes once; the envelope brings the sum to the leader."""
        authors = sorted(accepted & self._shares.keys())
        complete = waited or len(authors) == len(accepted)
        if self._me in self._sums or not authors or not complete:
            return None
        total = shamir.added([self._shares[author] for author in authors])
        bitmap = bitmap_of(authors, self._members)
        self._sums[self._me] = (bitmap, total)
        if self._me == self._miners[0]:
            return None
        message = BiscottiShare(self._round, bitmap, shamir.to_bytes(total))
        return SeatEnvelope((self._miners[0],), message)

    def open_mean(self) -> tuple[tuple[NodeId, ...], Row] | None:
        """The leader's authors and their mean change, once enough miners summed the same ones."""
        mine = self._sums.get(self._me)
        if self._me != self._miners[0] or mine is None:
            return None
        same = {
            self._miners.index(miner): share
            for miner, (bitmap, share) in self._sums.items()
            if bitmap == mine[0]
        }
        if len(same) < self._needed:
            return None
        authors = members_in(mine[0])
        total = shamir.reconstruct(same, self._needed)
        return authors, shamir.mean_of_sum(total, len(authors))
