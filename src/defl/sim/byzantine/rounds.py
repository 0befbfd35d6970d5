"""Attacks on rounds: UPDs for rounds that are not open, AGGs before they are due."""

import random
from collections import deque
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from defl.crypto import Signer
from defl.ids import Digest, Round, View
from defl.messages import Gossip, Proposal, Transaction, Upd, Vote
from defl.output import Envelope, Event
from defl.participant import Participant
from defl.sim.byzantine.liar import Item, Liar
from defl.sim.byzantine.pool import BlobLiar


class WrongRound(BlobLiar):
    """UPDs for past and future rounds: with certificates of other rounds, and with true ones for
    blobs that it offers two rounds ahead. As leader it proposes the old ones again."""

    def __init__(self, participant: Participant, signer: Signer, rng: random.Random) -> None:
        super().__init__(participant, signer, rng)
        self._old: deque[Upd] = deque(maxlen=4)
        self._lied_in = Round(-1)  # the newest round with a lie
        self._proposed: tuple[View, Digest] | None = None

    def instead(self, item: Item) -> Iterable[Item]:
        match item:
            case Envelope(to=None, message=Gossip(transactions=transactions)):
                mine = [tx for tx in transactions if isinstance(tx, Upd) and tx.author == self._me]
                return (item, *(lie for upd in mine for lie in self._moved(upd)))
            case Envelope(to=None, message=Proposal() as proposal):
                return (Envelope(None, self._with_old_ones(proposal)),)
            case Envelope(to=None, message=Vote(view=view)):
                if self._proposed is not None and self._proposed[0] == view:
                    return (Envelope(None, self._vote(*self._proposed)),)
        return super().instead(item)

    def _moved(self, upd: Upd) -> Iterator[Item]:
        """The same certificate, relabelled for another round."""
        if upd not in self._old:
            self._old.append(upd)
        for step in (-1, 1, 2, 9):
            moved = replace(upd, round=Round(max(0, upd.round + step)))
            signature = self._signer.sign(moved.statement(self._chain, self._epoch))
            yield Envelope(None, Gossip((replace(moved, signature=signature),)))

    def _with_old_ones(self, proposal: Proposal) -> Proposal:
        given: tuple[Transaction, ...] = proposal.block.transactions
        proposal = self._with_transactions(proposal, given + self._over())
        self._proposed = (proposal.block.view, proposal.block.id)
        return proposal

    def _over(self) -> tuple[Upd, ...]:
        """UPDs of rounds that are closed."""
        return tuple(upd for upd in self._old if upd.round <= self._round)

    def besides(self, event: Event, now: float) -> Iterator[Item]:
        yield from super().besides(event, now)
        if self._round == self._lied_in:
            return
        self._lied_in = self._round
        for upd in self._over():
            yield Envelope(None, Gossip((upd,)))
        ahead = Round(self._round + 2)
        if ahead % 2:
            yield Envelope(None, self._build(ahead, self._noise(), self._row()).offer)

    def _certified(self, upd: Upd) -> Iterable[Item]:
        self._old.append(upd)
        return (Envelope(None, Gossip((upd,))),)


# How often an impatient node sends AGG.
AGG_PERIOD_S = 0.1


class EarlyAgg(Liar):
    """Sends AGG for the open round and the next all the time, in its own blocks too."""

    def __init__(self, participant: Participant, signer: Signer, rng: random.Random) -> None:
        super().__init__(participant, signer, rng)
        self._next_at = 0.0
        self._proposed: tuple[View, Digest] | None = None

    def instead(self, item: Item) -> Iterable[Item]:
        match item:
            case Envelope(to=None, message=Proposal() as proposal):
                transactions = proposal.block.transactions
                aggs = tuple(agg for agg in self._aggs() if agg not in transactions)
                proposal = self._with_transactions(proposal, transactions + aggs)
                self._proposed = (proposal.block.view, proposal.block.id)
                return (Envelope(None, proposal),)
            case Envelope(to=None, message=Vote(view=view)):
                if self._proposed is not None and self._proposed[0] == view:
                    return (Envelope(None, self._vote(*self._proposed)),)
        return (item,)

    def besides(self, event: Event, now: float) -> Iterator[Item]:  # noqa: ARG002
        if now >= self._next_at:
            self._next_at = now + AGG_PERIOD_S
            yield Envelope(None, Gossip(self._aggs()))

    def _aggs(self) -> tuple[Transaction, ...]:
        return tuple(self._agg(Round(self._round + ahead)) for ahead in (0, 1, 2))
