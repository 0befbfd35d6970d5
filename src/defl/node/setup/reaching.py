"""Can the other members be reached from here, and if not, what is in the way?

The calls are those of a running node, with the same words for what fails. But our hello states no
federation: the peer answers with its own and closes the connection, so a node of this identity that
is running keeps its links.
"""

import asyncio
from collections.abc import Iterable, Mapping

from defl.cards import Card, Reach
from defl.ids import NO_DIGEST, Digest, NodeId
from defl.node.net.connecting import connected_socket
from defl.node.net.contact import Contact, ContactBook
from defl.node.net.framing import Lane
from defl.node.net.greeter import Greeter
from defl.node.net.proxy import Proxies
from defl.node.net.refusal import Refused
from defl.node.net.relayed import RelayFault, probe_relay
from defl.node.setup.identity import Identity
from defl.node.setup.requirements import Check

# For TLS and the hello; people wait for the answer.
GREETING_S = 5.0
PROBES_AT_ONCE_MAX = 32
REACHED = "reached"
ONLY_DIALS = "only_dials"


def probe_peers(
    cards: Mapping[NodeId, Card], identity: Identity, origin: Digest, proxies: Proxies
) -> list[Check]:
    return asyncio.run(_probe_all(cards, identity, origin, proxies))


async def _probe_all(
    cards: Mapping[NodeId, Card], identity: Identity, origin: Digest, proxies: Proxies
) -> list[Check]:
    contacts = ContactBook()
    defects = contacts.replace(cards, identity.public_key).defects
    greeter = Greeter(
        identity,
        origin,
        contacts,
        connect_s=GREETING_S,
        handshake_s=GREETING_S,
        proxies=proxies,
        stated=NO_DIGEST,
    )
    places = asyncio.Semaphore(PROBES_AT_ONCE_MAX)

    async def probe(peer: NodeId, card: Card) -> Check:
        if peer in defects:
            return Check(f"peer {card.name}", False, defects[peer])
        async with places:
            return await _probe(greeter, contacts[peer])

    return await asyncio.gather(*(probe(peer, card) for peer, card in cards.items()))


def probe_relays(
    relays: Iterable[Card], identity: Identity, origin: Digest, proxies: Proxies
) -> list[Check]:
    async def probe(relay: Card) -> Check:
        name = f"relay {relay.name}"
        try:
            route = await probe_relay(
                relay,
                identity,
                origin,
                lambda address: connected_socket(address, proxies.of(address)),
                GREETING_S,
            )
        except RelayFault as fault:
            return Check(name, False, str(fault))
        return Check(name, True, f"{relay.address} serves this node ({route})", REACHED)

    async def probe_all() -> list[Check]:
        return await asyncio.gather(*map(probe, relays))

    return asyncio.run(probe_all())


async def _probe(greeter: Greeter, contact: Contact) -> Check:
    card = contact.card
    name = f"peer {card.name}"
    if card.reach is Reach.DIAL:
        return Check(name, True, "only dials: it cannot be tried from here", ONLY_DIALS)
    answer = await greeter.call(contact, Lane.CONTROL)
    if isinstance(answer, Refused):
        return Check(name, False, answer.text, answer.kind)
    link, _ = answer
    link.abort()
    await asyncio.wait([link.closed])
    return Check(
        name, True, f"{card.address} answers as a member of this federation ({link.route})", REACHED
    )
