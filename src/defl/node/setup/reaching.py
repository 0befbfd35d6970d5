"""Can the other members be reached from here, and if not, what is in the way?

The calls are those of a running node, with the same words for what fails. But our hello states no
federation: the peer answers with its own and closes the connection, so a node of this identity that
is running keeps its links.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from defl.cards import Card, Reach
from defl.ids import NO_DIGEST, Digest, NodeId
from defl.node.net.connecting import connected_socket, explained_refusal
from defl.node.net.contact import Contact, ContactBook
from defl.node.net.framing import Lane
from defl.node.net.greeter import Greeter
from defl.node.net.obstacles import WITHOUT_RELAY, CallStage
from defl.node.net.proxy import Proxies
from defl.node.net.refusal import Refusal, Refused
from defl.node.net.relayed import RelayFault, probe_relay
from defl.node.net.route import DIRECT
from defl.node.net.tls import relay_client_context, server_name
from defl.node.net.tls_transport import secure
from defl.node.setup.identity import Identity
from defl.node.setup.requirements import Check

# For TLS and the hello; people wait for the answer.
GREETING_S = 5.0
PROBES_AT_ONCE_MAX = 32
REACHED = "reached"
ONLY_DIALS = "only_dials"


@dataclass(frozen=True, slots=True)
class Outlook:
    """This node, as far as it matters for calls."""

    identity: Identity
    reach: Reach
    origin: Digest  # the federation
    proxies: Proxies
    is_running: bool = False  # the node itself, in this folder


def probe_peers(
    outlook: Outlook,
    agreed: Mapping[NodeId, Card],
    relays: Sequence[Card] = (),
    newer: Sequence[Card] = (),
) -> list[Check]:
    """`relays` are no members; `newer` are cards that replace agreed ones."""
    return asyncio.run(_probe_all(outlook, agreed, relays, newer))


async def _probe_all(
    outlook: Outlook, agreed: Mapping[NodeId, Card], relays: Sequence[Card], newer: Sequence[Card]
) -> list[Check]:
    contacts = ContactBook()
    defects = contacts.replace(agreed, outlook.identity.public_key).defects
    for card in newer:
        contacts.update(card)
    cards = {**agreed, **{contact.peer: contact.card for contact in contacts}}
    greeter = Greeter(
        outlook.identity,
        outlook.origin,
        contacts,
        connect_s=GREETING_S,
        handshake_s=GREETING_S,
        proxies=outlook.proxies,
        stated=NO_DIGEST,
    )
    places = asyncio.Semaphore(PROBES_AT_ONCE_MAX)
    relaying = [*relays, *(card for card in cards.values() if card.relay)]
    # Only members that cannot be dialled meet at relays.
    needed = relays if outlook.reach is Reach.DIAL else ()

    async def probe(peer: NodeId, card: Card) -> Check:
        if peer in defects:
            return Check(f"peer {card.name}", False, defects[peer])
        if card.reach is Reach.DIAL:
            return _undialled(card, outlook.reach, relaying)
        async with places:
            return await _probe(greeter, contacts[peer], is_running=outlook.is_running)

    async def probe_one(relay: Card) -> Check:
        async with places:
            return await _probe_relay(outlook, relay)

    return await asyncio.gather(
        *(probe(peer, card) for peer, card in cards.items()), *map(probe_one, needed)
    )


def _undialled(card: Card, own_reach: Reach, relays: Sequence[Card]) -> Check:
    name = f"peer {card.name}"
    if own_reach is Reach.BOTH:
        return Check(name, True, "only dials: it will dial this node", ONLY_DIALS)
    if not relays:
        return Check(name, False, WITHOUT_RELAY.text, WITHOUT_RELAY.kind)
    names = " or ".join(relay.name for relay in relays)
    return Check(
        name, True, f"only dials, as this node does: through the relay {names}", ONLY_DIALS
    )


async def _probe(greeter: Greeter, contact: Contact, *, is_running: bool) -> Check:
    """A member that is connected with the process that has our key: it should be our own."""
    card = contact.card
    name = f"peer {card.name}"
    answer = await greeter.call(contact, Lane.CONTROL)
    if isinstance(answer, Refused) and answer.kind is Refusal.ELSEWHERE and is_running:
        return Check(name, True, f"{card.address} is connected with this node", REACHED)
    if isinstance(answer, Refused):
        return Check(name, False, answer.text, answer.kind)
    link, _ = answer
    link.abort()
    await asyncio.wait([link.closed])
    return Check(
        name, True, f"{card.address} answers as a member of this federation ({link.route})", REACHED
    )


async def _probe_relay(outlook: Outlook, relay: Card) -> Check:
    """The handshake first, which says what is in the way; then whether the relay serves us. What a
    running node of this identity has there is not touched."""
    name, proxy = f"relay {relay.name}", outlook.proxies.of(relay.address)
    stage, route = CallStage.CONNECTING, DIRECT
    try:
        connection, route = await connected_socket(relay.address, proxy)
        stage = CallStage.SECURING
        transport = await secure(
            connection,
            asyncio.Protocol(),
            relay_client_context(outlook.identity, relay),
            handshake_s=GREETING_S,
            server_name=server_name(relay.address),
        )
    except OSError as error:
        refused = await explained_refusal(error, stage, route, relay, proxy)
        return Check(name, False, refused.text, refused.kind)
    transport.abort()
    try:
        await probe_relay(
            relay,
            outlook.identity,
            outlook.origin,
            lambda address: connected_socket(address, outlook.proxies.of(address)),
            GREETING_S,
        )
    except RelayFault as fault:
        return Check(name, False, str(fault), Refusal.UNKNOWN)
    return Check(name, True, f"{relay.address} serves this node ({route})", REACHED)
