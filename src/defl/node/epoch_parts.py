"""The parts of a node that are made for one epoch: its entrance for frames, and its contacts.

The entrance follows the participant at once: it must judge frames by the facts of the epoch that
they are handled in. The epoch is told to peers only when the boundary is on disk: a member that
leaves may go when enough others have shown that they will not forget.
"""

from collections.abc import Iterable

from defl.cards import Card
from defl.committee import Member
from defl.crypto import Ed25519Scheme
from defl.ids import OUTSIDER, Digest, NodeId
from defl.ingress import Ingress
from defl.node.net.transport import Transport
from defl.node.net.verifier import FrameVerifier
from defl.participant import Participant


def ingress_of(participant: Participant) -> Ingress:
    return Ingress(
        participant.federation,
        Ed25519Scheme(),
        participant.closed,
        participant.contacts.role_of,
    )


class Cards:
    """How to reach a contact. The founders' cards have serials; a later member has the card that
    was approved."""

    def __init__(self, founders: Iterable[Card]) -> None:
        self._founders = {card.key: card for card in founders}

    def of(self, contacts: dict[NodeId, Member]) -> dict[NodeId, Card]:
        return {peer: self._card(member) for peer, member in contacts.items()}

    def _card(self, member: Member) -> Card:
        founder = self._founders.get(member.key)
        if founder is not None:
            return founder
        return Card(
            member.name,
            member.key,
            member.certificate,
            member.address,
            serial=0,
            signature=b"",
            reach=member.reach,
            relay=member.relay,
        )


class EpochParts:
    def __init__(
        self,
        participant: Participant,
        ingress: Ingress,
        verifier: FrameVerifier,
        transport: Transport,
        cards: Cards,
    ) -> None:
        self._participant = participant
        self._ingress = ingress
        self._verifier = verifier
        self._transport = transport
        self._cards = cards
        self._epoch_told = participant.epoch
        self._contacts = participant.contacts
        self._contacts_version = participant.contacts.version

    def follow(self) -> None:
        """To be called after each decision of the participant."""
        participant = self._participant
        if self._ingress.epoch != participant.epoch:
            self._ingress = ingress_of(participant)
            self._verifier.enter(participant.federation.committee, self._ingress)
        contacts = participant.contacts
        if contacts is not self._contacts or contacts.version != self._contacts_version:
            self._contacts, self._contacts_version = contacts, contacts.version
            self._set_contacts()

    def boundary_written(self, epoch: int) -> None:
        """The switch into this epoch is durable."""
        self._epoch_told = epoch
        self._set_contacts()

    def remember_own(self, message: Digest, signature: bytes) -> None:
        """This node's own signatures come back in certificates. Those that it makes while it enters
        another epoch are checked like the others'."""
        me = self._participant.me
        if me != OUTSIDER and self._ingress.epoch == self._participant.epoch:
            self._ingress.remember_own(me, message, signature)

    def _set_contacts(self) -> None:
        contacts = self._cards.of(self._contacts.all)
        self._transport.set_contacts(contacts, self._epoch_told, self._participant.me)
