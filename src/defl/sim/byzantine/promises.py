"""Promise breakers: they announce that they are training, are waited for, and do not deliver.

One class with different plans. A plan says for each round whether the liar announces itself, and
whether and when it delivers. All but one of them take part in consensus honestly.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from defl.committee import Committee
from defl.crypto import Signer
from defl.ids import NodeId, Round
from defl.messages import Gossip, Offer, Pace, Proposal, StoreAck, Timeout, Upd, Vote
from defl.output import Envelope, Event, Output
from defl.participant import Participant
from defl.sim.byzantine.liar import Item, Liar
from defl.sim.sim_node import Wrap

FOREVER_MS = 10**12
NEVER = float("inf")
HELPFUL = (Proposal, Vote, Timeout, StoreAck, Gossip)


@dataclass(frozen=True, slots=True)
class Move:
    """A liar's behaviour in one round."""

    promises: bool = True
    # An update that is ready after t seconds leaves after `slowness` times t; None: never.
    slowness: float | None = None
    after_close: bool = False  # it leaves when it no longer counts
    speaks: bool = True  # False: sends nothing at all
    stalls: bool = False  # helps to commit nothing before all members have announced themselves


Plan = Callable[[Round, NodeId, Committee], Move]


def _claiming(_round: Round, _me: NodeId, _committee: Committee) -> Move:
    return Move()


def _just_late(_round: Round, _me: NodeId, _committee: Committee) -> Move:
    return Move(after_close=True)


def _alternating(round_: Round, _me: NodeId, _committee: Committee) -> Move:
    return Move(slowness=1.0 if round_ % 2 else None)


def _staggered(round_: Round, me: NodeId, committee: Committee) -> Move:
    """One liar fails in each round, a different one each time."""
    turns = committee.faults + 1
    return Move(slowness=None if round_ % turns == me % turns else 1.0)


def _silent_then_claiming(round_: Round, _me: NodeId, _committee: Committee) -> Move:
    return Move() if round_ > SILENT_ROUNDS else Move(speaks=False)


def _imitating(round_: Round, _me: NodeId, _committee: Committee) -> Move:
    """Slow but reliable at first, so that the others learn to wait."""
    return Move(slowness=IMITATED_SLOWNESS if round_ <= IMITATED_ROUNDS else None)


def _stalling(round_: Round, _me: NodeId, _committee: Committee) -> Move:
    """Without its help a late member is needed: all updates wait until that one has started."""
    return Move(stalls=round_ == 1)


SILENT_ROUNDS = 5
IMITATED_ROUNDS = 3
IMITATED_SLOWNESS = 10.0


class PromiseBreaker(Liar):
    def __init__(
        self, participant: Participant, signer: Signer, rng: random.Random, *, plan: Plan
    ) -> None:
        super().__init__(participant, signer, rng)
        self._plan = plan
        self._now = 0.0
        self._opened: tuple[Round, float] = (Round(-1), 0.0)
        self._ready_at: dict[Round, float] = {}
        self._held: dict[Round, Item] = {}

    def handle(self, event: Event, now: float) -> Output:
        self._now = now
        output = super().handle(event, now)
        due = [self._due(round_) for round_ in self._held]
        times = [at for at in (output.wake_at, *due) if at is not None and at != NEVER]
        return replace(output, wake_at=min(times, default=None))

    def _move(self, round_: Round) -> Move:
        return self._plan(round_, self._me, self._committee)

    def _due(self, round_: Round) -> float:
        move, opened_at = self._move(round_), self._opened[1]
        if move.after_close:
            return self._now if self._round >= round_ else NEVER
        if move.slowness is None:
            return NEVER
        return opened_at + move.slowness * (self._ready_at.get(round_, NEVER) - opened_at)

    def instead(self, item: Item) -> Iterable[Item]:
        move = self._move(Round(self._round + 1))
        if not move.speaks or (move.stalls and self._is_helping(item)):
            return ()
        match item:
            case Envelope(message=Pace(author=author)) if author == self._me:
                return ()
            case Envelope(message=Offer(author=author, round=round_)) if author == self._me:
                self._ready_at.setdefault(round_, self._now)
                if self._due(round_) > self._now:
                    self._held[round_] = item
                    return ()
            case Envelope(message=Gossip(transactions=transactions)):
                mine = [tx for tx in transactions if isinstance(tx, Upd) and tx.author == self._me]
                if any(self._due(upd.round) > self._now for upd in mine):
                    return ()
        return (item,)

    def _is_helping(self, item: Item) -> bool:
        """Would this help to commit something while a member has not announced itself?"""
        open_round = self.participant.client.waiting.open
        all_up = open_round is not None and open_round.promises.keys() >= set(self._peers)
        return not all_up and isinstance(item, Envelope) and isinstance(item.message, HELPFUL)

    def besides(self, event: Event, now: float) -> Iterator[Item]:  # noqa: ARG002
        open_round = Round(self._round + 1)
        if open_round != self._opened[0]:
            self._opened = (open_round, now)
            self._ready_at = {r: at for r, at in self._ready_at.items() if r >= self._round}
            if self._move(open_round).promises and self._move(open_round).speaks:
                unsigned = Pace(open_round, self._me, FOREVER_MS, b"")
                message = unsigned.statement(self._chain, self._epoch)
                yield Envelope(None, replace(unsigned, signature=self._signer.sign(message)))
        for round_ in [r for r in self._held if self._due(r) <= now]:
            yield self._held.pop(round_)
        self._held = {r: item for r, item in self._held.items() if r >= self._round}


PROMISE_BREAKERS: dict[str, Wrap] = {
    "claiming": partial(PromiseBreaker, plan=_claiming),
    "just-late": partial(PromiseBreaker, plan=_just_late),
    "alternating": partial(PromiseBreaker, plan=_alternating),
    "staggered": partial(PromiseBreaker, plan=_staggered),
    "silent-then-claiming": partial(PromiseBreaker, plan=_silent_then_claiming),
    "imitating": partial(PromiseBreaker, plan=_imitating),
    "stalling": partial(PromiseBreaker, plan=_stalling),
}
