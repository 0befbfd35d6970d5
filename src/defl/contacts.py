"""Whom this node talks to, and as what: members, guests, former members, strangers.

Members have their ids. Outsiders are numbered above them: guests are the machines of approved
changes, which must catch up before they are members; former keys were members' and may still need
to hear how their epoch ended. Everybody else is a stranger, whom the driver numbers.
"""

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from defl.committee import Federation, Member, member_of
from defl.fields import MEMBERS_MAX
from defl.ids import OUTSIDER, NodeId, Round
from defl.succession import PendingChange, card_in

GUESTS_MAX = 16
GUEST_IDS = tuple(NodeId(MEMBERS_MAX + place) for place in range(GUESTS_MAX))
# Of the newest boundaries; one may replace a third of the members.
FORMER_MAX = 100
FORMER_FROM = MEMBERS_MAX + GUESTS_MAX
STRANGERS_FROM = 1000


class PeerRole(StrEnum):
    MEMBER = "member"
    GUEST = "guest"
    FORMER = "former member"
    STRANGER = "stranger"


class Former(Struct, frozen=True, array_like=True):
    """A key that was a member's."""

    member: Member
    round: Round  # the last one that it took part in: it may have blobs up to this round


def id_of(federation: Federation, key: bytes) -> NodeId:
    """The id of the member with this key; OUTSIDER if there is none."""
    committee = federation.committee
    return next((id_ for id_ in committee.members if committee.keys[id_] == key), OUTSIDER)


class Contacts:
    """The contacts of one epoch. `version` grows whenever they change."""

    def __init__(self, federation: Federation, me: NodeId, former: tuple[Former, ...]) -> None:
        self._quorum = federation.committee.quorum
        self._closing = federation.first_round - 1  # of the epoch before
        self._members = {
            id_: federation.members[id_] for id_ in federation.committee.members if id_ != me
        }
        self.former = former
        self._former = {
            NodeId(FORMER_FROM + place): known.member for place, known in enumerate(former)
        }
        self._guests: dict[NodeId, Member] = {}
        self._committee = federation.committee
        self.version = 0
        self._number()

    def _number(self) -> None:
        self.all = {**self._members, **self._guests, **self._former}
        self._ids = {member.key: id_ for id_, member in reversed(self.all.items())}

    @property
    def guests(self) -> tuple[NodeId, ...]:
        return tuple(self._guests)

    @property
    def former_ids(self) -> tuple[NodeId, ...]:
        return tuple(self._former)

    def role_of(self, peer: NodeId) -> PeerRole:
        if self._committee.has(peer):
            return PeerRole.MEMBER
        if peer in self._guests:
            return PeerRole.GUEST
        return PeerRole.FORMER if peer in self._former else PeerRole.STRANGER

    def knows(self, peer: NodeId) -> bool:
        return peer in self.all

    def peer_of(self, key: bytes) -> NodeId | None:
        return self._ids.get(key)

    def key_of(self, peer: NodeId) -> bytes | None:
        contact = self.all.get(peer)
        return contact.key if contact is not None else None

    @property
    def leavers(self) -> tuple[NodeId, ...]:
        """The former members of the epoch before this one: until they go, they serve its blobs."""
        return tuple(
            id_
            for id_, known in zip(self._former, self.former, strict=True)
            if known.round == self._closing
        )

    def last_round(self, peer: NodeId) -> Round | None:
        """The last round whose blobs a former member may have; None: any."""
        if peer not in self._former:
            return None
        return self.former[peer - FORMER_FROM].round

    def set_changes(self, changes: Iterable[PendingChange]) -> None:
        """Guests are the machines of approved changes; each keeps its number while it is one."""
        approved = [change for change in changes if len(change.approvals) >= self._quorum]
        cards = [card_in(operation) for change in approved for operation in change.operations]
        wanted = {card.key: card for card in cards if card is not None}
        kept = {id_: guest for id_, guest in self._guests.items() if guest.key in wanted}
        known = {guest.key for guest in kept.values()}
        numbers = (number for number in GUEST_IDS if number not in kept)
        new = (card for key, card in wanted.items() if key not in known)
        guests = {**kept, **dict(zip(numbers, map(member_of, new), strict=False))}
        if guests != self._guests:
            self._guests = guests
            self.version += 1
            self._number()


def former_after(
    before: tuple[Former, ...], federation: Federation, following: Federation
) -> tuple[Former, ...]:
    """The former keys of the next epoch: the newest, if there are too many."""
    keys = {following.committee.keys[id_] for id_ in following.committee.members}
    last = Round(following.first_round - 1)
    gone = tuple(
        Former(federation.members[id_], last)
        for id_ in federation.committee.members
        if federation.committee.keys[id_] not in keys
    )
    kept = tuple(known for known in before if known.member.key not in keys)
    return (*kept, *gone)[-FORMER_MAX:]
