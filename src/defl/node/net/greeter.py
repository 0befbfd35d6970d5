"""The beginning of each connection: TLS, then a hello each way, both judged.

The outcome is an open link with the contact's hello, or the refusal. Whoever asked for the greeting
decides what becomes of the link.
"""

import asyncio
import secrets
import socket
import ssl

from defl.ids import Digest, NodeId
from defl.node.net.admission import (
    NOT_A_HELLO,
    check_hello,
    check_stranger,
    relayed_refusal_of,
)
from defl.node.net.challenge import is_in_use, second_process
from defl.node.net.connecting import connected_socket, explained_refusal
from defl.node.net.contact import Contact, ContactBook
from defl.node.net.framing import Lane, Link
from defl.node.net.hello import PROTOCOL_VERSION, Hello, decode_hello, encode_hello
from defl.node.net.obstacles import CallStage
from defl.node.net.proxy import Proxies
from defl.node.net.refusal import Refusal, Refused
from defl.node.net.route import Route
from defl.node.net.sessions import SESSION_BYTES
from defl.node.net.sockets import set_options
from defl.node.net.tls import (
    client_context,
    letterbox_client_context,
    letterbox_server_context,
    server_context,
    server_name,
)
from defl.node.net.tls_transport import CLOSE_S, OnFlood, secure
from defl.node.net.who_dials import Part
from defl.node.setup.identity import Identity


class Greeter:
    def __init__(
        self,
        identity: Identity,
        origin: Digest,
        contacts: ContactBook,
        *,
        connect_s: float,
        handshake_s: float,
        proxies: Proxies,
        stated: Digest | None = None,
        session: bytes | None = None,
        on_flood: OnFlood = lambda _: None,
    ) -> None:
        """`stated`: the federation in our hellos, if not `origin`. `session`: this process's, if
        not a new one."""
        self._identity = identity
        self._origin = origin
        self._contacts = contacts
        self._connect_s = connect_s
        self._handshake_s = handshake_s
        self._proxies = proxies
        self._stated = origin if stated is None else stated
        self._session = session or secrets.token_bytes(SESSION_BYTES)
        self._on_flood = on_flood
        self._letterbox_context = letterbox_server_context(identity)
        self._server_context: ssl.SSLContext | None = None
        self.epoch = 0

    def refresh(self) -> None:
        """The contacts' certificates have changed: callers with others are refused from now on."""
        # Made for the next caller: here a lack of descriptors would be the node's problem.
        self._server_context = None

    # ------------------------------------------------------------------ accepted connections

    async def answer(
        self, link: Link, connection: socket.socket
    ) -> tuple[Contact, Hello] | Refused:
        """A contact that is refused, even of another federation, gets our hello too, so that it can
        report what differs."""
        if self._server_context is None:
            cards = [contact.card for contact in self._contacts]
            self._server_context = server_context(self._identity, cards)
        hello = await self._accept(link, connection, self._server_context)
        answer = await self._judge(link, hello, None)
        if not isinstance(answer, Refused) and self._is_needless(*answer):
            contact = answer[0]
            text = f"{contact.card.name} dialled us, but we have dialled it"
            answer = Refused(Refusal.DIRECTION, text, contact.peer)
        if hello is not None and not (isinstance(answer, Refused) and answer.peer is None):
            peer = answer.peer if isinstance(answer, Refused) else answer[0].peer
            told = b""
            if isinstance(answer, Refused) and answer.kind is Refusal.PROBE:
                told = await self._told_to_probe(answer.peer, hello)
            link.send_hello(self._hello(hello.lane, peer, told))
        return answer

    async def _told_to_probe(self, peer: NodeId | None, hello: Hello) -> bytes:
        contact = None if peer is None else self._contacts.get(peer)
        return hello.session if contact is not None and await is_in_use(contact) else b""

    def _is_needless(self, contact: Contact, hello: Hello) -> bool:
        """A contact that we dial may call us too: it may not know its part, in another epoch or
        after a change of its reach. But not beside a link that we have made."""
        is_same = contact.seat.holder == hello.session
        ours = is_same and contact.part is Part.DIAL and hello.epoch == self.epoch
        return ours and contact.channels[hello.lane].link is not None

    async def answer_stranger(self, link: Link, connection: socket.socket) -> Refused | None:
        """At the letterbox."""
        hello = await self._accept(link, connection, self._letterbox_context)
        refused = NOT_A_HELLO if hello is None else check_stranger(hello, self._origin)
        if refused is None:
            link.send_hello(self._hello(Lane.CONTROL, None))
        return refused

    async def _accept(
        self, link: Link, connection: socket.socket, context: ssl.SSLContext
    ) -> Hello | None:
        set_options(connection)
        await secure(
            connection, link, context, handshake_s=self._handshake_s, on_flood=self._on_flood
        )
        return decode_hello(await link.hello)

    # ------------------------------------------------------------------ dialled connections

    async def call(
        self, contact: Contact, lane: Lane, *, letterbox: bool = False
    ) -> tuple[Link, Hello] | Refused:
        card, link = contact.card, Link()
        proxy = self._proxies.of(card.address)
        stage, greeted = CallStage.CONNECTING, False
        try:
            context = (
                letterbox_client_context(card)
                if letterbox
                else client_context(self._identity, card)
            )
            connection, link.route = await connected_socket(card.address, proxy)
            async with asyncio.timeout(self._connect_s):
                stage = CallStage.SECURING
                await self._secure(link, connection, server_name(card.address), context)
                stage = CallStage.GREETING
                link.send_hello(self._hello(lane, contact.peer))
                hello = decode_hello(await link.hello)
            answer = await self._judge(link, hello, (contact.peer, lane))
            if isinstance(answer, Refused):
                return answer
            greeted = True
            return link, answer[1]
        except OSError as error:
            return await explained_refusal(error, stage, link.route, card, proxy)
        finally:
            if not greeted:
                link.abort()

    async def _secure(
        self, link: Link, connection: socket.socket, host: str, context: ssl.SSLContext
    ) -> None:
        await secure(
            connection,
            link,
            context,
            handshake_s=self._connect_s,
            server_name=host,
            on_flood=self._on_flood,
        )

    # ------------------------------------------------------------------ through a relay

    async def greet_through(
        self,
        contact: Contact,
        lane: Lane,
        connection: socket.socket,
        route: Route,
        *,
        calling: bool,
    ) -> tuple[Link, Hello] | Refused:
        """Both ends know whom they want, and nobody else's certificate passes."""
        card, link = contact.card, Link()
        link.route = route
        greeted = False
        try:
            async with asyncio.timeout(self._connect_s):
                if calling:
                    await self._secure(link, connection, "", client_context(self._identity, card))
                    link.send_hello(self._hello(lane, contact.peer))
                    hello = decode_hello(await link.hello)
                else:
                    context = server_context(self._identity, (card,))
                    hello = await self._accept(link, connection, context)
            answer = await self._judge(link, hello, (contact.peer, lane))
            if not calling:
                link.send_hello(self._hello(lane, contact.peer))
            if isinstance(answer, Refused):
                link.close()  # after our hello, which may say why
                await asyncio.wait([link.closed], timeout=CLOSE_S)
                return answer
            greeted = True
            return link, answer[1]
        except (OSError, TimeoutError) as error:
            return relayed_refusal_of(error, link, card)
        finally:
            if not greeted:
                link.abort()
                if not link.is_made:
                    connection.close()

    # ------------------------------------------------------------------ both

    def _hello(self, lane: Lane, peer: NodeId | None, told: bytes = b"") -> bytes:
        key = self._identity.public_key
        contact = None if peer is None else self._contacts.get(peer)
        now = asyncio.get_running_loop().time()
        refused = told or (b"" if contact is None else contact.seat.refused(now))
        return encode_hello(
            Hello(PROTOCOL_VERSION, self._stated, self.epoch, key, lane, self._session, refused)
        )

    async def _judge(
        self, link: Link, hello: Hello | None, dialled: tuple[NodeId, Lane] | None
    ) -> tuple[Contact, Hello] | Refused:
        if hello is None:
            return NOT_A_HELLO
        peer = check_hello(
            hello,
            certificate=link.certificate,
            dialled=dialled,
            origin=self._origin,
            session=self._session,
            cards=self._contacts.cards,
        )
        if isinstance(peer, Refused):
            return peer
        contact = self._contacts[peer]
        refused = await second_process(contact, hello, link)
        if contact not in self._contacts:
            return Refused(Refusal.IDENTITY, f"{contact.card.name} is no contact any more")
        return refused or (contact, hello)
