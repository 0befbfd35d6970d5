"""Exhaustion: the most expensive frames that the rules allow, all the time.

Everything is validly signed and well formed. It costs the receiver's time, so it has an effect only
where signatures take time (`Conditions.signature_s`).
"""

import random
from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import combinations, cycle, islice
from math import comb

from msgspec.structs import replace

from defl.crypto import Signer
from defl.fields import bitmap_of
from defl.ids import Digest, NodeId, Round, View
from defl.messages import (
    QC,
    TRANSACTIONS_PER_MEMBER,
    Certificates,
    Evidence,
    Gossip,
    Message,
    Snapshot,
    StoreAck,
    Transaction,
    Upd,
    Vote,
)
from defl.output import Envelope, Event, Received
from defl.participant import Participant
from defl.sim.byzantine.liar import Item, Liar

PERIOD_S = 0.05
# Sent to all in each period: more than half a core can check, and with the updates' acks a whole.
AGG_SIGNATURES = 320
UPD_FRAMES = 4
# How much it remembers, to build certificates and old states from.
UPDATES_MAX = 4
VIEWS_MAX = 8
SNAPSHOTS_MAX = 4
# Rounds that no federation will ever reach.
ABSURD_ROUND = 2**40


class Exhauster(Liar):
    """Sends its own update with ever-changing ackers, QCs with ever-changing voters, AGGs for
    absurd rounds, evidence against itself and long-past states; apart from that it takes part."""

    def __init__(self, participant: Participant, signer: Signer, rng: random.Random) -> None:
        super().__init__(participant, signer, rng)
        self._acks: OrderedDict[Round, dict[NodeId, StoreAck]] = OrderedDict()
        self._votes: OrderedDict[tuple[View, Digest], dict[NodeId, Vote]] = OrderedDict()
        self._snapshots: deque[Snapshot] = deque(maxlen=SNAPSHOTS_MAX)
        self._next_at = 0.0
        self._absurd = ABSURD_ROUND
        self._longest = TRANSACTIONS_PER_MEMBER * self._committee.slots  # gossip that is read

    def besides(self, event: Event, now: float) -> Iterator[Item]:
        if isinstance(event, Received):
            self._collect(event.message)
        if now < self._next_at or not self._may_flood(now):
            return
        self._next_at = now + PERIOD_S
        for message in self._frames():
            yield Envelope(None, message)

    def _collect(self, message: Message) -> None:
        match message:
            case StoreAck(author=self._me):
                self._acks.setdefault(message.round, {})[message.acker] = message
                while len(self._acks) > UPDATES_MAX:
                    self._acks.popitem(last=False)
            case Vote(view=view, block=block):
                self._votes.setdefault((view, block), {})[message.author] = message
                while len(self._votes) > VIEWS_MAX:
                    self._votes.popitem(last=False)
            case Snapshot():
                self._snapshots.append(message)

    def _frames(self) -> Iterator[Message]:
        longest = self._longest
        for _ in range(AGG_SIGNATURES // longest):
            rounds = range(self._absurd, self._absurd + longest)
            self._absurd += longest
            yield Gossip(tuple(self._agg(Round(round_)) for round_ in rounds))
        updates = list(self._updates())
        if updates:
            endless = cycle(updates)
            for _ in range(UPD_FRAMES):
                self._rng.shuffle(updates)
                yield Gossip(tuple(islice(endless, longest)))
        yield from self._certificates()
        view = self._view
        yield Evidence(self._vote(view, self._noise()), self._vote(view, self._noise()))
        own = self.participant.replica.snapshot
        if own is not None and own not in self._snapshots:
            self._snapshots.append(own)
        yield from self._snapshots

    def _updates(self) -> Iterator[Transaction]:
        """The same update, certified by many quorums of the members that acknowledged it."""
        for acks in self._acks.values():
            for ackers in self._quorums(sorted(acks)):
                first = acks[ackers[0]]
                unsigned = Upd(
                    first.round,
                    self._me,
                    first.digest,
                    first.size,
                    first.base,
                    bitmap_of(ackers, self._committee.slots),
                    tuple(acks[acker].signature for acker in ackers),
                    b"",
                )
                message = unsigned.statement(self._chain, self._epoch)
                yield replace(unsigned, signature=self._signer.sign(message))

    def _quorums(self, members: list[NodeId]) -> Iterator[tuple[NodeId, ...]]:
        """All of them, or as many as the frames can hold: of 31 members there are 44 million."""
        quorum, most = self._committee.quorum, UPD_FRAMES * self._longest
        if comb(len(members), quorum) <= most:
            yield from combinations(members, quorum)
        else:
            for _ in range(most):
                yield tuple(sorted(self._rng.sample(members, quorum)))

    def _certificates(self) -> Iterator[Certificates]:
        for (view, block), votes in self._votes.items():
            if len(votes) >= self._committee.quorum:
                voters = sorted(self._rng.sample(sorted(votes), self._committee.quorum))
                signatures = tuple(votes[voter].signature for voter in voters)
                signers = bitmap_of(voters, self._committee.slots)
                yield Certificates(QC(view, block, signers, signatures), None)
