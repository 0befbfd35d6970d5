"""Transactions about the membership: what members propose and approve, and what a newcomer says.

`ledger.py` records them, `succession.py` says what follows from them.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from defl.cards import Card, Key
from defl.crypto import Tag, statement
from defl.fields import (
    NUMBER_MAX,
    WEIGHT_DEFAULT,
    ADigest,
    AMember,
    ARound,
    ASignature,
    AWeight,
)
from defl.ids import OUTSIDER, Digest, NodeId, Round, digest_of


class Add(Struct, frozen=True, array_like=True, tag=20):
    """A new member, at the end of the list. Its weight is what the members agree on: it is not on
    the card."""

    card: Card
    weight: AWeight = WEIGHT_DEFAULT


class Remove(Struct, frozen=True, array_like=True, tag=21):
    member: AMember


class ReplaceKey(Struct, frozen=True, array_like=True, tag=22):
    """Another key for a member, present or departed; its name and weight stay."""

    member: AMember
    card: Card


class Rounds(Struct, frozen=True, array_like=True, tag=23):
    """Another last round."""

    rounds: Annotated[Round, Meta(ge=1, le=NUMBER_MAX)]


Operation = Add | Remove | ReplaceKey | Rounds
OPERATIONS_MAX = 8
# A card has about 700 bytes: eight of them, or one with the longest certificate.
CHANGE_BYTES_MAX = 8192


class Change(Struct, frozen=True, array_like=True, tag=3):
    """TX("CHANGE"): the author proposes these operations, all or none; none withdraws its last."""

    round: ARound
    author: AMember
    operations: Annotated[tuple[Operation, ...], Meta(max_length=OPERATIONS_MAX)]
    signature: ASignature

    @property
    def digest(self) -> Digest:
        """Names the proposal: the same operations of another author are another proposal."""
        fields = (self.author, self.operations)
        return digest_of(b"defl/change" + msgspec.msgpack.encode(fields))

    def statement(self, chain: Digest, epoch: int) -> Digest:
        return statement(Tag.CHANGE, chain, epoch, self.round, self.author, self.digest)


class Approve(Struct, frozen=True, array_like=True, tag=4):
    """TX("APPROVE"): the author agrees to a proposed change, or withdraws its approval of it."""

    round: ARound
    author: AMember
    change: ADigest
    agrees: bool  # False: withdrawn, and final for this round
    signature: ASignature

    def statement(self, chain: Digest, epoch: int) -> Digest:
        fields = self.round, self.author, self.change, int(self.agrees)
        return statement(Tag.APPROVE, chain, epoch, *fields)


class Ready(Struct, frozen=True, array_like=True, tag=5):
    """TX("READY"): the machine with this key, not a member yet, is up and has this model."""

    round: ARound
    key: Key
    model: ADigest
    signature: ASignature

    @property
    def author(self) -> NodeId:
        return OUTSIDER

    def statement(self, chain: Digest, epoch: int) -> Digest:
        return statement(Tag.READY, chain, epoch, self.round, self.key, self.model)
