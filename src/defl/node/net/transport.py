"""Frames between contacts, over two links per pair: one for each lane.

Contacts are the members of this epoch, the guests of approved changes and former members; they may
change while the transport runs. TLS refuses every caller that is no contact. Then both send a
hello, and both check the certificate's owner, the federation and the lane. Only frames of links
that pass reach `on_frame`, with the contact's number, and those of strangers that called the
letterbox, each with a number of its own.

The file is long because every step of a link's life changes the same table of contacts. What can be
decided without it is elsewhere: greeter.py, dialler.py, acceptor.py, delivery.py, sessions.py.
"""

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from time import monotonic

from defl.cards import Card, Reach
from defl.contacts import FORMER_FROM
from defl.errors import UserError
from defl.ids import Digest, NodeId
from defl.node.net.acceptor import Acceptor
from defl.node.net.connecting import connected_socket
from defl.node.net.contact import Contact, ContactBook, close_links
from defl.node.net.delivery import Delivery, OnFrame
from defl.node.net.dialler import Dialler
from defl.node.net.framing import Lane, Link, Use
from defl.node.net.greeter import Greeter
from defl.node.net.hello import Hello
from defl.node.net.letterbox import Letterbox, LetterboxLink
from defl.node.net.limits import TransportLimits
from defl.node.net.pending import Caller, RelayCaller, Stranger
from defl.node.net.proxy import Proxies
from defl.node.net.refusal import Refusal, Refused
from defl.node.net.relayed import RelayedCalls
from defl.node.net.send_queue import Frame, Traffic
from defl.node.net.sockets import listening
from defl.node.net.stats import Stats
from defl.node.net.tls_transport import RecordFlood
from defl.node.net.who_dials import Part, is_member, part_of
from defl.node.relay.server import RelayServer
from defl.node.setup.identity import Identity

__all__ = ["Frame", "Lane", "Refusal", "Stats", "Traffic", "Transport", "TransportLimits"]


class Transport:
    def __init__(
        self,
        *,
        me: NodeId,
        identity: Identity,
        origin: Digest,
        epoch: int,
        contacts: Mapping[NodeId, Card],
        listen: tuple[str, int] | socket.socket | None,
        reach: Reach = Reach.BOTH,
        relays: Sequence[Card] = (),
        relay: bool = False,
        frame_bytes_max: Mapping[Lane, int],
        on_frame: OnFrame,
        on_connected: Callable[[NodeId, int], None] = lambda _peer, _epoch: None,
        on_disconnected: Callable[[NodeId], None] = lambda _: None,
        on_elsewhere: Callable[[list[NodeId]], None] = lambda _: None,
        on_flood: Callable[[NodeId | None, RecordFlood], None] = lambda _peer, _flood: None,
        is_letter: Callable[[Frame], bool] = lambda _: True,
        limits: TransportLimits | None = None,
        proxies: Proxies = Proxies(),  # noqa: B008  (frozen)
        session: bytes | None = None,
        rng: random.Random | None = None,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`listen` is an address or a listening socket; None: this node only dials. `relays` are
        no members; `relay`: this node is one too. `is_letter` says which frames a letterbox is for;
        others wait until the contact is connected. `wait` sleeps between attempts."""
        self._identity = identity
        self._listen = listen
        self._reach = reach
        self._started = False
        self._frame_bytes_max = frame_bytes_max
        self._on_connected = on_connected
        self._on_disconnected = on_disconnected
        self._on_elsewhere = on_elsewhere
        self._on_flood = on_flood
        self._is_letter = is_letter
        self._limits = limits or TransportLimits()
        self.stats = Stats()
        self._delivery = Delivery(on_frame, self.stats.refusals)
        self._contacts = ContactBook()
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._letterbox = Letterbox(
            self._limits.letterbox,
            frame_bytes_max[Lane.CONTROL],
            lambda stranger, frame: self._delivery.deliver(stranger, Lane.CONTROL, frame),
        )
        self._acceptor = Acceptor(
            identity,
            self._limits.accept,
            self._admit,
            self._letterbox.serve,
            self.stats.refusals,
            wait,
            rng,
        )
        rng = rng or random.Random()  # noqa: S311  (jitter is no secret)
        self._dialler = Dialler(self._limits.dial, self._dial, self._call_letterbox, rng, wait)
        self._greeter = Greeter(
            identity,
            origin,
            self._contacts,
            connect_s=self._limits.connect_s,
            handshake_s=self._limits.accept.handshake_s,
            proxies=proxies,
            session=session,
            on_flood=self._flooded,
        )
        self._relayed = RelayedCalls(
            identity,
            origin,
            relays,
            self._greeter,
            self._dialler,
            lambda address: connected_socket(address, proxies.of(address)),
            self._adopt,
            self._refused,
            connect_s=self._limits.connect_s,
            on_flood=self._flooded,
        )
        self.relay: RelayServer | None = None
        if relay:
            handshake_s = self._limits.accept.handshake_s
            self.relay = RelayServer(
                identity, origin, handshake_s=handshake_s, wait=wait, on_flood=self._flooded
            )
        self.set_contacts(contacts, epoch, me)

    # ------------------------------------------------------------------ for the node

    async def start(self) -> None:
        if self._listen is not None:
            self._listener = await listening(self._listen)
            self._start(self._acceptor.accept(self._listener))
        if self.relay is not None:
            self._start(self.relay.run())
        self._started = True
        self._call_all()

    async def close(self) -> None:
        """Ends every connection, after a moment for the bytes that are already written."""
        await self._acceptor.stop(self._tasks)
        if self._listener is not None:
            self._listener.close()
        await close_links(self._contacts)
        if self.relay is not None:
            await self.relay.close()
        await asyncio.sleep(0)  # aborted handshakes close their sockets in the loop's next turn

    def set_contacts(self, contacts: Mapping[NodeId, Card], epoch: int, me: NodeId) -> None:
        """From now on these are the contacts, `me` is this node's number among them, and its hellos
        state this epoch. Links of a contact whose key stays are not touched; if its number changes,
        it is announced again. A card that cannot be used becomes trouble."""
        self._me = me
        self._greeter.epoch = epoch  # which hellos state from now on
        change = self._contacts.replace(contacts, self._identity.public_key)
        for contact in change.gone:
            self._drop(contact)
        self.stats.follow(change.numbers, self._contacts.traffic)
        self.stats.trouble.update(change.defects)
        self._expect_contacts()
        self._call_all()
        for before, peer in change.numbers.items():
            contact_now = self._contacts.get(peer)
            if before != peer and contact_now is not None and contact_now.is_connected:
                self._on_connected(peer, contact_now.epoch)

    def update_card(self, card: Card) -> bool:
        """Takes address and certificate from a contact's newer signed card; False if it is not
        newer, not signed by the contact or not a contact's."""
        if not self._contacts.update(card):
            return False
        self._expect_contacts()
        self._call_all()  # its reach may have changed, and whether it relays
        return True

    @property
    def address(self) -> tuple[str, int]:
        """Where we listen; the port is the real one."""
        if self._listener is None:
            raise UserError("the transport does not listen")
        host, port = self._listener.getsockname()[:2]
        return host, port

    @property
    def unauthenticated(self) -> int:
        """Accepted connections whose hello has not come yet, and callers of the letterbox."""
        return self._acceptor.pending

    @property
    def turned_away(self) -> int:
        """Accepted connections that lost their place to others, since the start."""
        return self._acceptor.turned_away

    @property
    def is_crowded(self) -> bool:
        return self._acceptor.is_crowded

    def connected(self, peer: NodeId) -> bool:
        contact = self._contacts.get(peer)
        return contact is not None and contact.is_connected

    def away_s(self, peer: NodeId) -> float | None:
        """For how long it has not been connected; None: it is."""
        contact = self._contacts.get(peer)
        return None if contact is None or contact.is_connected else monotonic() - contact.lost_at

    def control_link(self, peer: NodeId) -> Link | None:
        contact = self._contacts.get(peer)
        return None if contact is None else contact.channels[Lane.CONTROL].link

    def queued_bytes(self, peer: NodeId, lane: Lane) -> int:
        contact = self._contacts.get(peer)
        return 0 if contact is None else contact.channels[lane].queue.bytes

    async def drained(self, peer: NodeId, lane: Lane) -> bool:
        """Waits until the queue is empty: at most one frame is then on its way. False if the peer
        is not connected."""
        contact = self._contacts.get(peer)
        if contact is None:
            return False
        channel = contact.channels[lane]
        await channel.queue.empty.wait()
        return channel.link is not None

    def send(self, peer: NodeId, frame: Frame, lane: Lane) -> bool:
        """False if the frame is dropped: the queue is full, or the peer is gone."""
        longest = self._frame_bytes_max[lane]
        if not 1 <= len(frame) <= longest:
            raise ValueError(f"{len(frame)} bytes in a {lane} frame, 1 to {longest} allowed")
        contact, limits = self._contacts.get(peer), self._limits
        if contact is None:
            return lane is Lane.CONTROL and self._letterbox.send(peer, frame)
        channel = contact.channels[lane]
        if channel.link is None:
            if lane is Lane.CONTROL and contact.letterbox is not None and self._is_letter(frame):
                return contact.letterbox.send(frame)
            channel.queue.push(
                frame, frames_max=limits.away_frames_max, bytes_max=limits.away_bytes_max
            )
            return True
        taken = channel.queue.offer(
            frame, frames_max=limits.queue_frames_max, bytes_max=limits.queue_bytes_max
        )
        if taken:
            channel.link.pump_soon()
        return taken

    # ------------------------------------------------------------------ contacts

    def _expect_contacts(self) -> None:
        """Callers with another certificate are refused from now on."""
        callers: dict[Caller, bytes] = {
            contact.peer: contact.card.key for contact in self._contacts
        }
        if self.relay is not None:
            present = (contact for contact in self._contacts if contact.peer < FORMER_FROM)
            callers |= self.relay.agree(contact.card for contact in present)
        self._acceptor.expect(callers)
        self._greeter.refresh()

    def _call_all(self) -> None:
        if not self._started:
            return
        self._relayed.know(self._contacts)
        for contact in self._contacts:
            self._call(contact)

    def _call(self, contact: Contact) -> None:
        """What this node has to do may change with its number and the contact's."""
        part = part_of(self._me, self._reach, contact.peer, contact.card.reach)
        relays = self._relayed.relays if part is Part.MEET else ()
        if (contact.part, contact.relays) == (part, relays):
            return
        contact.stop_calls()
        contact.part, contact.relays = part, relays
        match part:
            case Part.DIAL:
                calls = [self._dialler.keep_connected(contact, lane) for lane in Lane]
            case Part.EXPECT:
                calls = [self._dialler.await_calls(contact)]
            case Part.MEET:
                calls = self._relayed.tasks(contact)
            case Part.LISTEN:
                calls = []
        contact.calls = [self._start(call) for call in calls]

    def _drop(self, contact: Contact) -> None:
        contact.stop_calls()
        if contact.letterbox is not None:
            contact.letterbox.abort()
        self._drop_links(contact)
        for channel in contact.channels.values():
            channel.queue.clear()

    def _drop_links(self, contact: Contact) -> None:
        for lane, channel in contact.channels.items():
            if (link := channel.link) is not None:
                self._lost(contact, lane, link)
                link.abort()

    def _start(self, coroutine: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ------------------------------------------------------------------ connections

    async def _admit(self, link: Link, connection: socket.socket, caller: Caller) -> Refused | None:
        if caller is Stranger.LETTERBOX:
            return await self._greeter.answer_stranger(link, connection)
        at_relay = isinstance(caller, RelayCaller) or caller is Stranger.UNMARKED_AT_RELAY
        if at_relay and self.relay is not None:
            return await self.relay.admit(link, connection)
        answer = await self._greeter.answer(link, connection)
        if isinstance(answer, Refused):
            if answer.peer is not None:
                if answer.kind is not Refusal.PROBE:
                    self.stats.trouble[answer.peer] = answer.text
                self._heed(answer, self._contacts.get(answer.peer))
                link.close()
                await asyncio.wait([link.closed])
            return answer
        contact, hello = answer
        self._adopt(contact, link, hello)
        return None

    async def _dial(self, contact: Contact, lane: Lane) -> Link | Refusal:
        meets = contact.part is Part.MEET
        answer = await (self._relayed if meets else self._greeter).call(contact, lane)
        if isinstance(answer, Refused):
            self._refused(contact, answer)
            return answer.kind
        self._adopt(contact, *answer)
        return answer[0]

    def _refused(self, contact: Contact, refused: Refused) -> None:
        self.stats.refusals[refused.kind] += 1
        self._heed(refused, contact)
        if contact in self._contacts and not contact.is_connected:
            self.stats.trouble[contact.peer] = refused.text

    def _heed(self, refused: Refused, contact: Contact | None) -> None:
        """A member may say that our place there is taken."""
        if (
            refused.kind is not Refusal.ELSEWHERE
            or contact is None
            or contact not in self._contacts
        ):
            return
        now = asyncio.get_running_loop().time()
        contact.claim.heard(now)
        self._on_elsewhere(self._contacts.claiming(now))

    async def _call_letterbox(self, contact: Contact) -> None:
        """There is something to hand in only if the contact is in an older epoch. Guests have
        nothing, and former members are known to whoever sleeps in theirs."""
        if contact.letterbox is not None or not is_member(self._me) or contact.part is Part.MEET:
            return
        answer = await self._greeter.call(contact, Lane.CONTROL, letterbox=True)
        if isinstance(answer, Refused):
            return
        link, hello = answer
        if hello.epoch >= self._greeter.epoch or contact.channels[Lane.CONTROL].link is not None:
            link.abort()
            return
        opened = LetterboxLink(
            link,
            self._limits.letterbox,
            self._frame_bytes_max[Lane.CONTROL],
            lambda frame: self._deliver_of(contact, Lane.CONTROL, frame),
        )
        contact.letterbox = opened
        self._start(self._keep_letterbox(contact, opened))
        self._on_connected(contact.peer, hello.epoch)

    async def _keep_letterbox(self, contact: Contact, opened: LetterboxLink) -> None:
        try:
            await opened.until_idle()
        finally:
            contact.letterbox = None

    def _adopt(self, contact: Contact, link: Link, hello: Hello) -> None:
        """Makes this the only link of the lane: an older one is dead, or the peer has restarted."""
        if link.closed.done():
            return
        now = asyncio.get_running_loop().time()
        if contact.seat.holder != hello.session:
            self._drop_links(contact)  # of a process that does not answer any more
        contact.seat.admit(hello.session, now)
        contact.claim.withdraw()
        channel = contact.channels[hello.lane]
        if (older := channel.link) is not None:
            self.stats.replaced[contact.peer] += 1
            self._lost(contact, hello.lane, older)
            older.abort()
        if channel.was_connected:
            self.stats.reconnects[contact.peer] += 1
        channel.was_connected = True
        channel.link, channel.epoch = link, hello.epoch
        channel.buckets = channel.buckets or self._limits.new_buckets(now)
        messages, volume = channel.buckets
        link.open(
            Use(
                frame_bytes_max=self._frame_bytes_max[hello.lane],
                handler=lambda frame: self._deliver_of(contact, hello.lane, frame),
                queue=channel.queue,
                traffic=channel.traffic,
                messages=messages,
                volume=volume,
                heartbeat=True,
                short_frames=hello.lane is Lane.CONTROL,
            )
        )
        link.closed.add_done_callback(lambda _: self._lost(contact, hello.lane, link))
        if hello.lane is Lane.CONTROL and contact.letterbox is not None:
            contact.letterbox.abort()
        if contact.is_connected:
            self.stats.trouble.pop(contact.peer, None)
            self._on_connected(contact.peer, contact.epoch)

    def _lost(self, contact: Contact, lane: Lane, link: Link) -> None:
        channel = contact.channels[lane]
        if channel.link is not link:
            return
        was_connected = contact.is_connected
        channel.link = None
        channel.queue.clear()  # lost like the frames in flight
        if not contact.links:
            contact.seat.lost(asyncio.get_running_loop().time())
        if link.broken is not None:
            self.stats.refusals[Refusal.FRAME] += 1
        if contact in self._contacts:
            reason = link.closed.result() if link.closed.done() else "replaced"
            self.stats.trouble[contact.peer] = f"the {lane} connection ended: {reason}"
        if was_connected:
            contact.lost_at = monotonic()
            self._on_disconnected(contact.peer)

    def _flooded(self, flood: RecordFlood) -> None:
        """The handshake has proved the certificate, if there is one."""
        certificates = {contact.card.certificate: contact.peer for contact in self._contacts}
        self._on_flood(certificates.get(flood.certificate or b""), flood)

    def _deliver_of(self, contact: Contact, lane: Lane, frame: Frame) -> Awaitable[None] | None:
        """A contact that is gone may have left frames in the link's buffer."""
        if contact not in self._contacts:
            return None
        return self._delivery.deliver(contact.peer, lane, frame)
