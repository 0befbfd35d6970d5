"""The contacts: what the transport keeps of each, and how one set of them replaces another.

A contact is known by its key. Its number may change: a guest becomes a member. Everything that is
kept of a contact is in its object, so nothing is left of it when it goes.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic

from defl.budget import TokenBucket
from defl.cards import Card
from defl.ids import NodeId
from defl.node.net.framing import Lane, Link
from defl.node.net.letterbox import LetterboxLink
from defl.node.net.send_queue import SendQueue, Traffic
from defl.node.net.sessions import KeySeat, TakenClaim
from defl.node.net.tls import unusable
from defl.node.net.tls_transport import CLOSE_S
from defl.node.net.who_dials import Part, is_member
from defl.node.setup.identity import card_defect


class Channel:
    """One lane; it outlives its connections."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.queue = SendQueue(self.traffic)
        self.link: Link | None = None
        self.was_connected = False
        self.epoch = 0  # as the peer's last hello stated it
        self.calls = 0  # through relays
        self.relays_called: dict[bytes, None] = {}  # their keys, the last one at the end
        self.buckets: tuple[TokenBucket, TokenBucket] | None = None  # once there is a clock


class Contact:
    def __init__(self, peer: NodeId, card: Card) -> None:
        self.peer = peer
        self.card = card
        self.channels = {lane: Channel() for lane in Lane}
        self.lost_at = monotonic()  # when it was last connected, or became a contact
        self.moved = asyncio.Event()  # a newer card gives another address
        self.letterbox: LetterboxLink | None = None  # ours to its letterbox
        self.part: Part | None = None  # ours, which `calls` play; None: before the start
        self.relays: tuple[Card, ...] = ()  # at which they play it
        self.calls: list[asyncio.Task[None]] = []
        self.seat = KeySeat()  # its processes, at this node
        self.claim = TakenClaim()  # what it says about our own process

    @property
    def links(self) -> list[Link]:
        return [channel.link for channel in self.channels.values() if channel.link is not None]

    @property
    def is_connected(self) -> bool:
        return all(channel.link is not None for channel in self.channels.values())

    @property
    def epoch(self) -> int:
        """Honest peers never go back to an older one."""
        return max(channel.epoch for channel in self.channels.values())

    def take(self, card: Card) -> None:
        """A newer card of the same key, or the same card."""
        if card != self.card:
            self.card = card
            self.moved.set()

    def stop_calls(self) -> None:
        for call in self.calls:
            call.cancel()
        self.calls = []


@dataclass(slots=True)
class BookChange:
    """What one set of contacts has over the one before it."""

    gone: list[Contact] = field(default_factory=list)
    numbers: dict[NodeId, NodeId] = field(default_factory=dict)  # of those that stay: old -> new
    defects: dict[NodeId, str] = field(default_factory=dict)  # cards that cannot be used


class ContactBook:
    def __init__(self) -> None:
        self._contacts: dict[NodeId, Contact] = {}

    def __iter__(self) -> Iterator[Contact]:
        return iter(self._contacts.values())

    def __getitem__(self, peer: NodeId) -> Contact:
        return self._contacts[peer]

    def get(self, peer: NodeId) -> Contact | None:
        return self._contacts.get(peer)

    def __contains__(self, contact: Contact) -> bool:
        return self._contacts.get(contact.peer) is contact

    @property
    def cards(self) -> dict[NodeId, Card]:
        return {peer: contact.card for peer, contact in self._contacts.items()}

    @property
    def traffic(self) -> dict[tuple[NodeId, Lane], Traffic]:
        return {
            (contact.peer, lane): channel.traffic
            for contact in self
            for lane, channel in contact.channels.items()
        }

    def claiming(self, now: float) -> list[NodeId]:
        """The members that say that our place there is taken."""
        members = (contact for contact in self if is_member(contact.peer))
        return [member.peer for member in members if member.claim.holds(now)]

    def update(self, card: Card) -> bool:
        """Takes a contact's newer card, which its key has signed; False if it is none."""
        if card_defect(card) is not None or unusable(card) is not None:
            return False
        contact = next((contact for contact in self if contact.card.key == card.key), None)
        if contact is None or card.name != contact.card.name:
            return False
        if card.serial <= contact.card.serial:
            return False
        contact.take(card)
        return True

    def replace(self, cards: Mapping[NodeId, Card], own_key: bytes) -> BookChange:
        """A contact whose key stays keeps its object, and the newer one of its cards. This node
        itself is left out: a guest is among the guests, a former member among the former ones."""
        known = {contact.card.key: contact for contact in self}
        taken: set[bytes] = set()
        change = BookChange()
        current: dict[NodeId, Contact] = {}
        for peer, card in sorted(cards.items()):
            if card.key == own_key:
                continue
            contact = known.get(card.key)
            if contact is not None and contact.card.serial > card.serial:
                card = contact.card  # noqa: PLW2901
            defect = None if contact is not None and card == contact.card else unusable(card)
            if card.key in taken:
                defect = "its key is another contact's"
            if defect is not None:
                change.defects[peer] = f"{card.name}'s card cannot be used: {defect}"
                continue
            taken.add(card.key)
            if contact is None:
                contact = Contact(peer, card)
            else:
                change.numbers[contact.peer] = peer
                contact.peer = peer
                contact.take(card)
            current[peer] = contact
        change.gone = [contact for key, contact in known.items() if key not in taken]
        self._contacts = current
        return change


async def close_links(contacts: Iterable[Contact]) -> None:
    """Ends them after a moment for the bytes that are already written."""
    links = [link for contact in contacts for link in contact.links]
    for end in (Link.close, Link.abort):
        for link in links:
            end(link)
        if links:
            await asyncio.wait([link.closed for link in links], timeout=CLOSE_S)
