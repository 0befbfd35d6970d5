"""Cards: what a member tells the others about itself, signed by its own key.

A card exists before the federation that it founds, so its signature names none. A card that asks
for a place in a running federation is signed for that federation alone. A relay that is no member
signs its card as a relay's, so that nobody can take it for a member's.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from defl.crypto import KEY_BYTES, SIGNATURE_BYTES, Tag, statement
from defl.ids import NO_DIGEST, Digest, digest_of

NAME_CHARACTERS_MAX = 64
ADDRESS_CHARACTERS_MAX = 300  # a host name has at most 253
CERTIFICATE_BYTES_MAX = 4096  # ours have about 400; a card must not smuggle anything else
SERIAL_MAX = 2**63 - 1  # integers have 8 bytes in a statement and a sign in the file

RELAY_ORIGIN = digest_of(b"defl/relay")  # in place of a federation, on the card of a relay

Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
Key = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
Certificate = Annotated[bytes, Meta(max_length=CERTIFICATE_BYTES_MAX)]
Address = Annotated[str, Meta(max_length=ADDRESS_CHARACTERS_MAX)]


class Reach(StrEnum):
    """How a member can be connected to."""

    BOTH = "both"  # it dials, and can be dialled
    DIAL = "dial"  # its network lets nothing in


class Card(Struct, frozen=True, array_like=True):
    """A member's public data. Of two cards of one key the higher serial is valid."""

    name: Name
    key: Key  # the public key
    certificate: Certificate  # X.509, DER
    address: Address  # "host:port"; may be empty if nobody can dial it
    serial: Annotated[int, Meta(ge=0, le=SERIAL_MAX)]
    signature: Annotated[bytes, Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
    reach: Reach = Reach.BOTH
    relay: bool = False  # it also connects members that can only dial

    def statement(self, origin: Digest = NO_DIGEST) -> Digest:
        """What its key signs; `origin` is the federation that it asks for a place in, or
        RELAY_ORIGIN."""
        return statement(
            Tag.CARD,
            origin,
            0,
            self.name.encode(),
            self.key,
            self.certificate,
            self.address.encode(),
            self.serial,
            self.reach.encode(),
            int(self.relay),
        )


def whereabouts(card: Card) -> str:
    """In words, after the member's name."""
    if card.reach is Reach.DIAL:
        return "(only dials)"
    return f"at {card.address}" + (" (relays)" if card.relay else "")
