"""Links through relays, between two nodes that can only dial.

Of such a pair the lower key calls, at one relay after the other; the other one parks at all of
them. The connection to the relay is joined with a local one, on which TLS and hellos run as on any
other: the relay passes on bytes that it can neither read nor change, and a link knows no relay.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import UTC, datetime

from defl.budget import TokenBucket
from defl.cards import Card
from defl.ids import Digest, digest_of
from defl.node.net.beats import BEAT_S
from defl.node.net.contact import Channel, Contact
from defl.node.net.dialler import STABLE_S, Dialler
from defl.node.net.framing import Lane, Link
from defl.node.net.greeter import Greeter
from defl.node.net.hello import Hello
from defl.node.net.obstacles import WITHOUT_RELAY, CallStage, Obstacle, dial_refusal
from defl.node.net.refusal import Refusal, Refused
from defl.node.net.route import DIRECT, Route, RouteKind
from defl.node.net.tls import relay_client_context, server_name
from defl.node.net.tls_transport import OnFlood, secure
from defl.node.net.who_dials import is_member
from defl.node.relay.leg import Leg, splice
from defl.node.relay.protocol import (
    RELAY_VERSION,
    Notice,
    Request,
    Signal,
    Verb,
    calls,
    decode_notice,
    encode,
)
from defl.node.relay.server import NOTICES_BURST, NOTICES_PER_S
from defl.node.setup.identity import Identity
from defl.printable import printable

# A relay that answers none of so many beats is gone.
PARKED_BEATS_MISSED = 3
# Fewer than a relay lets wait of one member (PendingLimits.per_member).
HANDSHAKES_AT_ONCE = 4

# A connected socket for an address.
Connect = Callable[[str], Awaitable[tuple[socket.socket, Route]]]
Adopt = Callable[[Contact, Link, Hello], None]
Report = Callable[[Contact, Refused], None]


class RelayFault(OSError):
    """A relay does not do what it is there for; the text says which and what."""


class RelayedCalls:
    def __init__(
        self,
        identity: Identity,
        origin: Digest,
        relays: Sequence[Card],
        greeter: Greeter,
        dialler: Dialler,
        connect: Connect,
        adopt: Adopt,
        report: Report,
        *,
        connect_s: float,
        on_flood: OnFlood,
    ) -> None:
        self._identity = identity
        self._origin = origin
        self._greeter = greeter
        self._dialler = dialler
        self._connect = connect
        self._adopt = adopt
        self._report = report
        self._connect_s = connect_s
        self._on_flood = on_flood
        self._turns: dict[bytes, asyncio.Semaphore] = {}
        self._failing: set[bytes] = set()  # the keys of relays whose last answer was none
        self._standing = tuple(relays)  # which are no members
        self.relays = self._standing

    def know(self, contacts: Iterable[Contact]) -> None:
        """Members may be relays too."""
        members = (contact.card for contact in contacts if is_member(contact.peer))
        relaying = sorted((card for card in members if card.relay), key=lambda card: card.key)
        self.relays = (*self._standing, *relaying)

    def tasks(self, contact: Contact) -> list[Coroutine[object, object, None]]:
        """What keeps this node connected to a contact that it meets at relays."""
        if calls(self._identity.public_key, contact.card.key):
            return [self._dialler.keep_connected(contact, lane) for lane in Lane]
        if not self.relays:
            self._report(contact, WITHOUT_RELAY)
        return [self._keep_parked(contact, lane, relay) for lane in Lane for relay in self.relays]

    # ------------------------------------------------------------------ the caller

    async def call(self, contact: Contact, lane: Lane) -> tuple[Link, Hello] | Refused:
        refused = WITHOUT_RELAY
        channel = contact.channels[lane]
        channel.calls += 1
        for relay in self._in_order(contact, channel):
            channel.relays_called.pop(relay.key, None)
            channel.relays_called[relay.key] = None
            try:
                connection = await self._called(relay, contact, lane)
            except OSError as error:
                refused = _refused(relay, error)
                continue
            answer = await self._greeter.greet_through(
                contact, lane, connection, _route(relay), calling=True
            )
            if not isinstance(answer, Refused):
                return answer
            refused = answer
        return refused

    def _in_order(self, contact: Contact, channel: Channel) -> Sequence[Card]:
        """Another order for each pair, so that the relays share the work. Those that were called
        last come last: one that ends its links or passes nothing on must not get the pair each
        time. Those that do not answer come after them, but only at every second call: one may have
        come back."""
        pair = min(self._identity.public_key, contact.card.key) + max(
            self._identity.public_key, contact.card.key
        )
        turns = {key: turn for turn, key in enumerate(channel.relays_called, start=1)}
        failing = self._failing if channel.calls % 2 else frozenset()
        return sorted(
            self.relays,
            key=lambda relay: (
                relay.key in failing,
                turns.get(relay.key, 0),
                digest_of(pair + relay.key),
            ),
        )

    async def _called(self, relay: Card, contact: Contact, lane: Lane) -> socket.socket:
        leg = await self._opened(relay, Verb.CALL, contact, lane)
        joined = False
        try:
            async with asyncio.timeout(self._connect_s):
                signal = await _next_signal(leg, relay)
                if signal is Signal.ABSENT:
                    raise RelayFault(f"it is not at the relay {relay.name}")
                if signal is not Signal.GO:
                    raise _nonsense(relay)
                local = await _joined(leg)
                joined = True
                return local
        finally:
            if not joined:
                leg.abort()

    # ------------------------------------------------------------------ the parked one

    async def _keep_parked(self, contact: Contact, lane: Lane, relay: Card) -> None:
        """Beside a link through another relay too: the caller may know sooner that it is dead. But
        not beside one through this relay, which would end it."""
        loop = asyncio.get_running_loop()
        attempt = 0
        while True:
            contact.moved.clear()
            began = loop.time()
            link = contact.channels[lane].link
            if link is None or link.route != _route(relay):
                link = await self._parked_link(relay, contact, lane)
            if link is not None:
                await asyncio.wait([link.closed])
            if loop.time() - began >= STABLE_S:
                attempt = 0
            await self._dialler.back_off(contact, attempt, loop.time())
            attempt += 1

    async def _parked_link(self, relay: Card, contact: Contact, lane: Lane) -> Link | None:
        try:
            connection = await self._parked(relay, contact, lane)
        except OSError as error:
            self._report(contact, _refused(relay, error))
            return None
        answer = await self._greeter.greet_through(
            contact, lane, connection, _route(relay), calling=False
        )
        if isinstance(answer, Refused):
            self._report(contact, answer)
            return None
        self._adopt(contact, *answer)
        return answer[0]

    async def _parked(self, relay: Card, contact: Contact, lane: Lane) -> socket.socket:
        leg = await self._opened(relay, Verb.PARK, contact, lane)
        joined = False
        try:
            async with asyncio.timeout(self._connect_s):
                if await _next_signal(leg, relay) is not Signal.PARKED:
                    raise _nonsense(relay)
            await _until_go(leg, relay)
            leg.send(encode(Notice(Signal.READY)))
            local = await _joined(leg)
            joined = True
            return local
        finally:
            if not joined:
                leg.abort()

    # ------------------------------------------------------------------ both

    async def _opened(self, relay: Card, verb: Verb, contact: Contact, lane: Lane) -> Leg:
        request = Request(RELAY_VERSION, self._origin, verb, contact.card.key, lane)
        turn = self._turns.setdefault(relay.key, asyncio.Semaphore(HANDSHAKES_AT_ONCE))
        try:
            async with turn:
                leg, _ = await _asked(
                    relay, request, self._identity, self._connect, self._connect_s, self._on_flood
                )
        except RelayFault:
            self._failing.add(relay.key)
            raise
        self._failing.discard(relay.key)
        return leg


async def probe_relay(
    relay: Card, identity: Identity, origin: Digest, connect: Connect, connect_s: float
) -> Route:
    """How the relay is reached; raises a RelayFault if it does not serve this key."""
    request = Request(RELAY_VERSION, origin, Verb.PROBE, identity.public_key, Lane.CONTROL)
    leg, route = await _asked(relay, request, identity, connect, connect_s)
    try:
        async with asyncio.timeout(connect_s):
            if await _next_signal(leg, relay) is not Signal.KNOWN:
                raise _nonsense(relay)
    except TimeoutError as error:
        raise RelayFault(f"the relay {relay.name} does not answer in time") from error
    finally:
        leg.abort()
        await asyncio.wait([leg.ended])
    return route


async def _asked(
    relay: Card,
    request: Request,
    identity: Identity,
    connect: Connect,
    connect_s: float,
    on_flood: OnFlood = lambda _: None,
) -> tuple[Leg, Route]:
    """A connection to the relay, with our request on its way."""
    leg, stage, route = Leg(), CallStage.CONNECTING, DIRECT
    try:
        context = relay_client_context(identity, relay)
        connection, route = await connect(relay.address)
        stage = CallStage.SECURING
        host = server_name(relay.address)
        await secure(
            connection, leg, context, handshake_s=connect_s, server_name=host, on_flood=on_flood
        )
    except OSError as error:
        obstacle = Obstacle(error, stage, route, None, datetime.now(UTC))
        text = dial_refusal(obstacle, relay).text
        raise RelayFault(f"the relay {relay.name}: {text}") from error
    leg.send(encode(request))
    return leg, route


async def _until_go(leg: Leg, relay: Card) -> None:
    """A relay that beats like mad is read slowly."""
    loop = asyncio.get_running_loop()
    notices = TokenBucket(NOTICES_PER_S, NOTICES_BURST, loop.time())
    missed = 0
    while True:
        try:
            async with asyncio.timeout(BEAT_S):
                signal = await _next_signal(leg, relay)
        except TimeoutError:
            if missed == PARKED_BEATS_MISSED:
                raise RelayFault(f"the relay {relay.name} is silent") from None
            leg.send(encode(Notice(Signal.BEAT)))
            missed += 1
            continue
        if signal is Signal.GO:
            return
        if signal is not Signal.BEAT:
            raise _nonsense(relay)
        missed = 0
        await asyncio.sleep(notices.take(1, loop.time()))


async def _next_signal(leg: Leg, relay: Card) -> Signal:
    frame = await leg.frame()
    if frame is None:
        raise RelayFault(
            f"the relay {relay.name} ended the connection: are both members' keys in its "
            "federation.toml, lineage or cards?"
        )
    notice = decode_notice(frame)
    if notice is None:
        raise _nonsense(relay)
    if notice.signal is Signal.REFUSED:
        raise RelayFault(f"the relay {relay.name} refuses us: {printable(notice.reason)}")
    return notice.signal


def _nonsense(relay: Card) -> RelayFault:
    return RelayFault(f"the relay {relay.name} does not follow the protocol")


async def _joined(leg: Leg) -> socket.socket:
    """The local socket whose bytes travel through the relay."""
    ours, theirs = socket.socketpair()
    made = False
    try:
        ours.setblocking(False)
        theirs.setblocking(False)
        local = Leg()
        await asyncio.get_running_loop().create_connection(lambda: local, sock=theirs)
        splice(leg, local)
        made = True
        return ours
    finally:
        if not made:
            ours.close()


def _route(relay: Card) -> Route:
    return Route(RouteKind.RELAY, relay.name)


def _refused(relay: Card, error: OSError) -> Refused:
    text = str(error) or f"the relay {relay.name} does not answer in time"
    return Refused(Refusal.UNREACHABLE, text)
