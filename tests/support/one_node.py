"""One node without a network, for tests of what a peer's frames do to it."""

from typing import Any

import pytest

from defl.errors import PeerFault
from defl.ids import Digest, NodeId
from defl.ingress import Ingress
from defl.messages import Message
from defl.output import Question
from defl.participant import Participant
from defl.wire import encode
from support.builders import Small, let_sign

ME = NodeId(1)


class OneNode:
    """A real participant behind the real ingress, with a count of verified signatures."""

    def __init__(self, small: Small, me: NodeId = ME) -> None:
        self.small = small
        self.checked = 0
        self.ingress = Ingress(small.federation, self)
        self.participant = Participant(small.federation, me, small.signers[me], small.durable())
        let_sign(self.participant)

    def verify(self, public_key: bytes, message: Digest, signature: bytes) -> bool:
        self.checked += 1
        return self.small.scheme.verify(public_key, message, signature)

    def receive(self, peer: int, message: Message, now: float = 0.1) -> list[Any]:
        """The steps of both drivers; returns the messages that the node sends in response."""
        epoch = self.participant.epoch
        if self.ingress.epoch != epoch:
            self.small = self.small.in_epoch_of(self.participant)
            self.ingress = Ingress(self.participant.federation, self, self.participant.closed)
        read = self.ingress.read(NodeId(peer), encode(message, epoch))
        wanted = self.participant.wanted(NodeId(peer), read)
        if wanted is None:
            return []
        if isinstance(wanted, Question):
            return list(self.participant.handle(wanted, now).send)
        examined = self.ingress.examine(NodeId(peer), wanted)
        for claims in examined.slices():
            self.ingress.check(claims)
        return list(self.participant.handle(self.ingress.accept(examined), now).send)

    def cost(self, peer: int, message: Message) -> int:
        before = self.checked
        self.receive(peer, message)
        return self.checked - before

    def refused(self, peer: int, message: Message) -> None:
        with pytest.raises(PeerFault):
            self.receive(peer, message)
