"""Attacks on the membership: on what is proposed, on the boundary, and after it."""

import random
from collections.abc import Iterable, Iterator
from hashlib import sha256

from msgspec.msgpack import encode
from msgspec.structs import replace

from defl.cards import Card
from defl.changes import Add, Approve, Change, Operation, Ready, Remove, ReplaceKey, Rounds
from defl.committee import Federation
from defl.crypto import Ed25519Signer, Signer
from defl.ids import OUTSIDER, Digest, NodeId, Round, View
from defl.ledger import decode_state
from defl.messages import (
    Agg,
    Gossip,
    Handover,
    Message,
    Proposal,
    Timeout,
    Transaction,
    Upd,
    Vote,
    slot_of,
    timeout_statement,
    vote_statement,
)
from defl.output import Envelope, Event, Output, ServeHandover
from defl.participant import Participant
from defl.sim.byzantine.liar import Item, Liar
from defl.sim.byzantine.rounds import WrongRound
from defl.sim.signer import NoopSigner

# How often a lie is repeated.
LIE_PERIOD_S = 0.5
# Handovers and facts kept: those of the newest epochs.
EPOCHS_KEPT = 8


class Agitator(Liar):
    """In every round it proposes another change, half of them nonsense, approves all that are
    pending or withdraws that, and says READY for a machine that does not exist."""

    def __init__(self, participant: Participant, signer: Signer, rng: random.Random) -> None:
        super().__init__(participant, signer, rng)
        self._lied_in: tuple[int, Round] = (-1, Round(-1))
        self._ghost = self._ghost_signer()
        self._next_at = 0.0

    def _ghost_signer(self) -> Signer:
        secret = sha256(b"ghost" + self._signer.public_key).digest()
        real = isinstance(self._signer, Ed25519Signer)
        return Ed25519Signer(secret) if real else NoopSigner(secret)

    def besides(self, event: Event, now: float) -> Iterator[Item]:  # noqa: ARG002
        state, round_ = self.participant.state, Round(self._round + 1)
        if self._lied_in != (self._epoch, round_):
            self._lied_in = (self._epoch, round_)
            yield self._said(Change(round_, self._me, self._operations(round_), b""))
        if now >= self._next_at:
            self._next_at = now + LIE_PERIOD_S
            for change in state.changes[:4]:
                agrees = self._rng.random() < 0.5
                yield self._said(Approve(round_, self._me, change.digest, agrees, b""))
            bases = [closed.base for closed in state.closed] or [self._noise()]
            yield self._said(Ready(round_, self._ghost.public_key, bases[-1], b""), self._ghost)

    def _operations(self, round_: Round) -> tuple[Operation, ...]:
        anybody = NodeId(self._rng.randrange(self._committee.slots))
        nonsense: tuple[Operation, ...] = (
            Remove(NodeId(self._committee.slots)),
            Rounds(Round(max(1, round_ - 2))),
        )
        choices: tuple[tuple[Operation, ...], ...] = (
            (),
            nonsense,
            tuple(Remove(member) for member in self._peers[:8]),
            (Remove(anybody),),
            (Rounds(Round(self._federation.rounds + 1)),),
            (Add(self._card("ghost")),),
            (ReplaceKey(anybody, self._card(self._federation.members[anybody].name)),),
        )
        return self._rng.choice(choices)

    def _card(self, name: str) -> Card:
        card = Card(name, self._ghost.public_key, b"", "", 0, b"")
        signature = self._ghost.sign(card.statement(self._federation.origin))
        return replace(card, signature=signature)

    def _said(self, unsigned: Change | Approve | Ready, signer: Signer | None = None) -> Item:
        message = unsigned.statement(self._chain, self._epoch)
        signature = (signer or self._signer).sign(message)
        return Envelope(None, Gossip((replace(unsigned, signature=signature),)))


class Usurper(Liar):
    """Withholds the proof of how an epoch ended, and hands out others: of another state, of a
    state that is no end, of earlier epochs."""

    def __init__(self, participant: Participant, signer: Signer, rng: random.Random) -> None:
        super().__init__(participant, signer, rng)
        self._handovers: list[Handover] = []
        self._next_at = 0.0

    def handle(self, event: Event, now: float) -> Output:
        output = super().handle(event, now)
        if output.persist is not None and output.persist.switch is not None:
            self._handovers = [*self._handovers, output.persist.switch.handover][-EPOCHS_KEPT:]
        return output

    def instead(self, item: Item) -> Iterable[Item]:
        if isinstance(item, ServeHandover):
            return (Envelope((item.to,), lie) for lie in self._false_ones())
        return (item,)

    def besides(self, event: Event, now: float) -> Iterator[Item]:  # noqa: ARG002
        if now >= self._next_at:
            self._next_at = now + LIE_PERIOD_S
            lies = self._false_ones()
            if lies:
                yield Envelope(None, self._rng.choice(lies))

    def _false_ones(self) -> list[Handover]:
        lies: list[Handover] = list(self._handovers[:-1])  # genuine, and old
        snapshot = self.participant.replica.snapshot
        if snapshot is not None:
            lies.append(Handover(snapshot))  # genuine, and no end
            ended = replace(decode_state(snapshot.state), ended=True)
            lies.append(Handover(replace(snapshot, state=encode(ended))))
        if self._handovers:
            real = self._handovers[-1].snapshot
            other = replace(decode_state(real.state), changes=())
            lies.append(Handover(replace(real, state=encode(other))))
        return lies


class Revenant(Liar):
    """Goes on signing after it has been expelled, and in epochs that have ended: with the key, the
    id and the facts that it had."""

    def __init__(self, participant: Participant, signer: Signer, rng: random.Random) -> None:
        super().__init__(participant, signer, rng)
        self._past: dict[int, tuple[Federation, NodeId, View]] = {}
        self._next_at = 0.0

    def handle(self, event: Event, now: float) -> Output:
        output = super().handle(event, now)
        if self._me != OUTSIDER:
            self._past[self._epoch] = (self._federation, self._me, self._view)
            if len(self._past) > EPOCHS_KEPT:
                del self._past[min(self._past)]
        if now < self._next_at or not self._past:
            return output
        self._next_at = now + LIE_PERIOD_S
        wake_at = self._next_at if output.wake_at is None else min(output.wake_at, self._next_at)
        return replace(output, send=(*output.send, *self._ghostly()), wake_at=wake_at)

    def _ghostly(self) -> Iterator[Item]:
        """As in an old epoch; and, once it is gone, as if it were still a member of the new one."""
        epoch = self._rng.choice(list(self._past))
        federation, me, view = self._past[epoch]
        facts = [federation]
        if self._me == OUTSIDER:
            facts.append(self._federation)
        everybody = tuple(self.participant.contacts.all)
        for of in facts:
            newest = self._view if of is self._federation else view
            for message in self._statements(of, me, newest):
                yield Envelope(everybody, message, of.epoch)

    def _statements(self, of: Federation, me: NodeId, view: View) -> Iterator[Message]:
        block = self._noise()
        signature = self._signer.sign(vote_statement(of.chain, of.epoch, view, block))
        yield Vote(of.epoch, view, block, me, signature, view, View(0))
        high_qc = self.participant.replica.record.high_qc
        message = timeout_statement(of.chain, of.epoch, view, high_qc.view)
        yield Timeout(of.epoch, view, high_qc, None, me, self._signer.sign(message))
        round_ = Round(self._round + 1)
        for unsigned in (Agg(round_, me, b""), Change(round_, me, (Remove(me),), b"")):
            signed = self._signer.sign(unsigned.statement(of.chain, of.epoch))
            yield Gossip((replace(unsigned, signature=signed),))


class Suffixer(WrongRound):
    """Leads blocks that say more than they may: behind the transactions that close a round it puts
    its UPD for the next one, certified in this epoch, and approvals of all pending changes."""

    def _with_old_ones(self, proposal: Proposal) -> Proposal:
        given: tuple[Transaction, ...] = proposal.block.transactions
        taken = {slot_of(transaction) for transaction in given}
        more = tuple(tx for tx in self._suffix() if slot_of(tx) not in taken)
        proposal = self._with_transactions(proposal, given + more)
        self._proposed = (proposal.block.view, proposal.block.id)
        return proposal

    def _suffix(self) -> Iterator[Transaction]:
        rounds: set[Round] = set()
        for upd in self._old:
            if upd.round == self._round + 2 and upd.round not in rounds:
                rounds.add(upd.round)
                yield upd
        round_ = Round(self._round + 1)
        for change in self.participant.state.changes[:4]:
            if self._me not in change.approvals:
                yield self._approve(round_, change.digest)
                yield self._approve(Round(round_ + 1), change.digest)

    def _approve(self, round_: Round, change: Digest) -> Approve:
        unsigned = Approve(round_, self._me, change, True, b"")
        message = unsigned.statement(self._chain, self._epoch)
        return replace(unsigned, signature=self._signer.sign(message))

    def _moved(self, upd: Upd) -> Iterator[Item]:
        """Its own updates stay as they are; the lies are in its blocks."""
        self._old.append(upd)
        return iter(())
