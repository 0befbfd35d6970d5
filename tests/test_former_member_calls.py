"""A member that slept through its own removal finds the others, who dial nobody that has left."""

import asyncio

from defl.ids import NodeId
from defl.node.net.dialler import DialLimits
from defl.node.net.transport import TransportLimits
from support.transports import IDENTITIES, Peer, cards_of, listener, running

FORMER = NodeId(116)
IMPATIENT = TransportLimits(
    dial=DialLimits(backoff_first_s=0.001, backoff_max_s=0.01, uncalled_s=0.05)
)


def test_it_calls_them_itself_and_learns_their_epoch() -> None:
    async def scenario() -> None:
        sockets = [listener(), listener()]
        cards = cards_of(sockets, [IDENTITIES[0], IDENTITIES[3]])
        member = Peer(0, (), sockets[0], contacts={FORMER: cards[1]}, epoch=1)
        sleeper = Peer(3, (), sockets[1], contacts={NodeId(0): cards[0]}, limits=IMPATIENT)
        async with running(member, sleeper):
            await sleeper.until_connected(member)

        assert sleeper.epochs == {NodeId(0): 1}
        assert member.epochs == {FORMER: 0}

    asyncio.run(scenario())
