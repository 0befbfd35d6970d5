"""Every kind of boundary between two epochs, crossed by exactly a quorum.

A Byzantine member acts while the round that ends the epoch is open, and is silent from then on. The
other faulty places are taken by members that are switched off, so every honest member is needed.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from msgspec.structs import replace

from defl.changes import Change, Operation, Remove, Rounds
from defl.crypto import Signer
from defl.ids import Digest, NodeId, Round, View
from defl.messages import Gossip, Offer, Pace, StoreAck, Transaction, Upd, ack_statement
from defl.output import Envelope, Event, Output, Received
from defl.participant import Participant
from defl.sim.byzantine.liar import Item
from defl.sim.byzantine.pool import BlobLiar
from defl.sim.sim_node import Behaviour, Wrap
from support.epochs import Churn

BYZANTINE = NodeId(3)
# Long enough for an offer to be fetched, checked and acknowledged.
SPREAD_S = 3.0


@dataclass(frozen=True)
class Boundary:
    members: int
    change: Callable[[Churn], Operation]
    live: tuple[int, ...]  # the honest machines of the next epoch: exactly a quorum
    has_newcomer: bool = False  # a machine that is not a member in the first epoch
    switched_off: tuple[int, ...] = ()  # honest machines of the next epoch that go down with it
    leaver: int | None = None  # proposes its own leave, which needs no approval
    down: tuple[int, ...] = ()  # honest machines that are off from the first round on
    rounds: int = 12


BOUNDARIES = {
    "join": Boundary(4, lambda churn: churn.add(4, "eve"), live=(0, 1, 2, 4), has_newcomer=True),
    "expulsion": Boundary(5, lambda _: Remove(NodeId(4)), live=(0, 1, 2)),
    "expulsion of the Byzantine member": Boundary(
        5, lambda _: Remove(BYZANTINE), live=(0, 1, 2), switched_off=(4,)
    ),
    "leave": Boundary(5, lambda _: Remove(NodeId(4)), live=(0, 1, 2), leaver=4),
    "new key": Boundary(
        4, lambda churn: churn.replace_key(2, 4), live=(0, 1, 4), has_newcomer=True
    ),
    "new key of the Byzantine member": Boundary(
        4,
        lambda churn: churn.replace_key(BYZANTINE, 4),
        live=(0, 1, 4),
        switched_off=(2,),
        has_newcomer=True,
    ),
    "join of an eighth member": Boundary(
        7, lambda churn: churn.add(7, "eve"), live=(0, 1, 2, 4, 5, 7), down=(6,), has_newcomer=True
    ),
    "extension of seven": Boundary(
        7, lambda _: Rounds(Round(9)), live=(0, 1, 2, 4, 5), down=(6,), rounds=3
    ),
    "extension": Boundary(4, lambda _: Rounds(Round(9)), live=(0, 1, 2), rounds=3),
}


def cross(boundary: Boundary, wrap: Wrap, seed: int = 1) -> Churn:
    """Run a federation to the second round after the boundary."""
    churn = Churn(boundary.members, rounds=boundary.rounds, seed=seed, byzantine={BYZANTINE: wrap})
    if boundary.has_newcomer:
        churn.add_machine("newcomer")
    honest = [m for m in range(boundary.members) if m not in (BYZANTINE, *boundary.down)]
    churn.switch_off(*boundary.down)
    churn.run_until(lambda: churn.newest.state.round == 2)

    def hold(source: NodeId, _target: NodeId, message: object) -> bool:
        """Keep round 3 open: nobody receives an honest update for it."""
        return isinstance(message, Offer) and source != BYZANTINE and message.round == 3

    churn.cluster.traffic.censor = hold
    proposer = 0 if boundary.leaver is None else boundary.leaver
    digest = churn.propose(proposer, boundary.change(churn))
    if boundary.leaver is None:
        churn.approve(digest, *(m for m in honest if m != proposer))
        churn.run_until(lambda: _is_due(churn, digest))
    churn.run_for(SPREAD_S)
    assert churn.newest.state.round == 2
    churn.cluster.traffic.censor = None
    churn.run_until_epoch(1, *boundary.live, *boundary.switched_off)
    churn.switch_off(*boundary.switched_off)
    first = churn.newest.federation.first_round
    assert first == 4, "round 3 ended the epoch"
    churn.run_until_round(first + 1, *boundary.live)
    return churn


def _is_due(churn: Churn, digest: Digest) -> bool:
    """Whether the change takes effect at the next close; a liar's may be pending beside it."""
    state = churn.newest.state
    approvals = next(change.approvals for change in state.changes if change.digest == digest)
    is_approved = len(approvals) >= churn.newest.federation.committee.quorum
    return is_approved and len(state.ready) == len(state.wanted_keys)


# --- The Byzantine member --------------------------------------------------------------------


class FallsSilent:
    """Behaves as `inner` until its epoch has ended, then receives everything and sends nothing."""

    def __init__(self, inner: Behaviour) -> None:
        self._inner = inner

    @property
    def participant(self) -> Participant:
        return self._inner.participant

    def handle(self, event: Event, now: float) -> Output:
        output = self._inner.handle(event, now)
        is_over = self.participant.epoch > 0 or self.participant.state.ended
        return replace(output, send=()) if is_over else output


def silent_after(wrap: Wrap) -> Wrap:
    """Return `wrap`'s behaviour in the first epoch, and silence in the next."""
    return lambda participant, signer, rng: FallsSilent(wrap(participant, signer, rng))


class ActsAtTheBoundary(BlobLiar):
    """Honest until a change is pending, then acts once."""

    def __init__(
        self,
        act: "Act",
        participant: Participant,
        signer: Signer,
        rng: random.Random,
    ) -> None:
        super().__init__(participant, signer, rng)
        self._act = act
        self._has_acted = False

    def besides(self, event: Event, now: float) -> Iterator[Item]:
        yield from super().besides(event, now)
        if self.participant.state.changes and not self._has_acted:
            self._has_acted = True
            yield from self._act(self)

    def _certified(self, upd: Upd) -> Iterable[Item]:
        return (Envelope(None, Gossip((upd,))),)

    @property
    def next_round(self) -> Round:
        """Return the first round of the next epoch."""
        return Round(self._round + 2)

    def offer(self, *, valid: bool) -> Offer:
        """Offer an update of its own making, which it serves, for the next epoch."""
        row = self._row()
        if not valid:
            row[0] = np.nan
        return self._build(self.next_round, self._noise(), row).offer

    def junk_manifest(self) -> Offer:
        manifest = self._build(self.next_round, self._noise(), self._row()).manifest
        return self._offer_blob(self.next_round, replace(manifest, schema=self._noise()), ()).offer

    def copied_offer(self) -> Offer:
        """Offer another member's update of the last closed round as its own of the next epoch."""
        closed = self.participant.state.closed[-1]
        digest = next(ref.digest for ref in closed.updates if ref.author != self._me)
        manifest = self.participant.pool.manifest(digest)
        assert manifest is not None
        return self._offer_blob(self.next_round, manifest, ()).offer

    def equivocations(self) -> Iterator[Item]:
        """Two votes in each of the next views, and a timeout of each."""
        high_qc = self.participant.replica.record.high_qc
        for view in range(self._view, self._view + 3):
            yield Envelope(None, self._vote(View(view), self._noise()))
            yield Envelope(None, self._vote(View(view), self._noise()))
            yield Envelope(None, self._timeout(View(view), high_qc))

    def signed(self, unsigned: Transaction | Pace) -> Transaction | Pace:
        signature = self._signer.sign(unsigned.statement(self._chain, self._epoch))
        return replace(unsigned, signature=signature)

    def leave(self) -> Item:
        change = Change(Round(self._round + 1), self._me, (Remove(self._me),), b"")
        return Envelope(None, Gossip((self.signed(change),)))

    def early_aggs(self) -> Item:
        rounds = (Round(self._round + 1), self.next_round)
        return Envelope(None, Gossip(tuple(self._agg(round_) for round_ in rounds)))

    def promise(self) -> Item:
        return Envelope(None, self.signed(Pace(self.next_round, self._me, 600_000, b"")))

    @property
    def peers_in_two(self) -> tuple[tuple[NodeId, ...], tuple[NodeId, ...]]:
        return self._halves


Act = Callable[[ActsAtTheBoundary], Iterable[Item]]

ACTS: dict[str, Act] = {
    "approves": lambda _: (),
    "offers junk": lambda one: (Envelope(None, one.offer(valid=False)),),
    "offers a junk manifest": lambda one: (Envelope(None, one.junk_manifest()),),
    "certifies the next update": lambda one: (Envelope(None, one.offer(valid=True)),),
    "offers two updates": lambda one: (
        Envelope(half, one.offer(valid=True)) for half in one.peers_in_two
    ),
    "copies an update": lambda one: (Envelope(None, one.copied_offer()),),
    "votes twice and times out": lambda one: one.equivocations(),
    "leaves": lambda one: (one.leave(),),
    "submits AGGs": lambda one: (one.early_aggs(),),
    "promises an update": lambda one: (one.promise(),),
}


def acting(name: str) -> Wrap:
    """Return a member that acts just before the boundary and is silent after it."""
    return silent_after(partial(ActsAtTheBoundary, ACTS[name]))


class AcksOfTheOldEpoch(ActsAtTheBoundary):
    """Acknowledges every offer of the next epoch by a statement of the first one, and is otherwise
    silent there."""

    def __init__(self, participant: Participant, signer: Signer, rng: random.Random) -> None:
        super().__init__(ACTS["approves"], participant, signer, rng)
        self._first = participant.federation

    def handle(self, event: Event, now: float) -> Output:
        output = super().handle(event, now)
        if self._epoch == 0:
            return output
        return replace(output, send=tuple(map(self._in_epoch, self._old_acks(event))))

    def _old_acks(self, event: Event) -> Iterator[Item]:
        match event:
            case Received(message=Offer(round=round_, author=author, manifest=manifest)):
                about = round_, author, manifest.digest, manifest.base, manifest.size
                message = ack_statement(self._first.chain, self._first.epoch, *about)
                ack = StoreAck(*about, BYZANTINE, self._signer.sign(message))
                yield Envelope((author,), ack)
