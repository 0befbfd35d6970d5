"""Peers by name: their numbers change from epoch to epoch, and people do not know them."""

from defl.ids import NodeId
from defl.participant import Participant

STRANGER = "a stranger"


class Names:
    """The names of a participant's members and contacts, as they are now."""

    def __init__(self, participant: Participant) -> None:
        self._participant = participant

    def of(self, peer: NodeId) -> str:
        """Also of members that have left: their places in the list stay."""
        members = self._participant.federation.members
        if peer < len(members):
            return members[peer].name
        contacts = self._participant.contacts
        contact = contacts.all.get(peer)
        if contact is None:
            return STRANGER
        # A replaced key has the name of the member that it was.
        return f"{contact.name} ({contacts.role_of(peer)})"
