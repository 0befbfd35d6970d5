"""One node's talk across epochs: with peers of other epochs, with outsiders, and as an outsider.

It answers questions and repeats what has to be heard; the participant decides when an epoch ends.
"""

from dataclasses import dataclass, field

from defl.changes import Operation
from defl.committee import Federation
from defl.consensus.replica import Replica
from defl.contacts import Contacts, PeerRole
from defl.crypto import Signer
from defl.ids import OUTSIDER, Digest, NodeId
from defl.ledger import LedgerState
from defl.messages import ChunkRequest, Gossip, ManifestRequest, Message, NotHeld, Transaction
from defl.other_epochs import OtherEpochs
from defl.output import Departed, Envelope, Notice, ServeHandover
from defl.outsider import Outsider
from defl.own_changes import OwnChanges
from defl.pool.pool import Pool


@dataclass(slots=True)
class CrossingEffects:
    send: list[Envelope | ServeHandover] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)


class Crossing:
    def __init__(
        self,
        federation: Federation,
        me: NodeId,
        signer: Signer,
        contacts: Contacts,
        replica: Replica[LedgerState],
        pool: Pool,
    ) -> None:
        self._epoch = federation.epoch
        self._contacts = contacts
        self._replica = replica
        self._pool = pool
        self._changes = OwnChanges(federation, me, signer)
        self._others = OtherEpochs(federation.timing.view_base_s)
        key = signer.public_key
        was_member = any(known.member.key == key for known in contacts.former)
        self._outsider = Outsider(federation, was_member=was_member) if me == OUTSIDER else None
        self._effects = CrossingEffects()
        self.may_be_ready = True  # a guest says that it is ready

    @property
    def departed(self) -> bool:
        return self._outsider is not None and self._outsider.departed

    @property
    def changes_unsent(self) -> bool:
        return self._changes.pending

    @property
    def wake_at(self) -> float | None:
        return self._outsider.wake_at if self._outsider is not None else None

    def take(self) -> CrossingEffects:
        effects = self._effects
        self._effects = CrossingEffects()
        return effects

    # --- The membership --------------------------------------------------------------------

    def propose(self, operations: tuple[Operation, ...]) -> None:
        self._changes.propose(operations)

    def approve(self, change: Digest, *, agrees: bool) -> None:
        self._changes.approve(change, agrees=agrees)

    def due(self) -> list[Transaction]:
        """What this node, as a member, has to say about the membership now."""
        state = self._replica.state
        return [] if self._replica.muted or state.ended else self._changes.due(state)

    # --- As an outsider --------------------------------------------------------------------

    def speak(self, now: float) -> None:
        """An outsider shows its Status again and again; a guest also says that it is ready."""
        if self._outsider is None:
            return
        due = self._outsider.is_due(now)
        if due:
            self._effects.send.append(Envelope(None, self._replica.status))
        if self._replica.observing is None and self.may_be_ready:
            state = self._replica.state
            has = {closed.base for closed in state.closed if self._pool.has(closed.base)}
            ready = self._changes.ready(state, has, again=due)
            if ready is not None:
                self._effects.send.append(Envelope(None, Gossip((ready,))))

    def may_say(self, message: Message) -> bool:
        return self._outsider is None or self._outsider.may_say(message)

    # --- With others -----------------------------------------------------------------------

    def meets_outsider(self, peer: NodeId) -> bool:
        """Is a Status of this peer that of an outsider, or shown to one?"""
        return self._outsider is not None or self._contacts.role_of(peer) is not PeerRole.MEMBER

    def met(self, peer: NodeId, now: float) -> None:
        """A Status of this epoch was shown to an outsider, or by one, which is answered."""
        if self._outsider is not None:
            self._shown(self._outsider, peer)
        elif self._others.may_tell(peer, self._epoch, now):
            self._effects.send.append(Envelope((peer,), self._replica.status))

    def met_epoch(self, peer: NodeId, epoch: int, now: float) -> None:
        """The peer is in another epoch."""
        if self._outsider is not None and epoch > self._epoch:
            self._shown(self._outsider, peer)
        if not self._others.may_tell(peer, min(epoch, self._epoch), now):
            return
        if epoch < self._epoch:
            self._effects.send.append(ServeHandover(peer, epoch))
        else:
            self._effects.send.append(Envelope((peer,), self._replica.status))

    def _shown(self, outsider: Outsider, peer: NodeId) -> None:
        was_departed = outsider.departed
        outsider.shown(peer)
        if outsider.departed and not was_departed:
            self._effects.notices.append(Departed(self._epoch))

    def refuses(self, peer: NodeId, message: Message) -> bool:
        """A former member gets blobs of the rounds that it took part in, and no others."""
        last = self._contacts.last_round(peer)
        if last is None or not isinstance(message, ManifestRequest | ChunkRequest):
            return False
        oldest = self._pool.oldest_round(message.digest)
        if oldest is not None and oldest <= last:
            return False
        self._effects.send.append(Envelope((peer,), NotHeld(message.digest)))
        return True
