"""Connected sockets, directly and through real proxies on loopback that behave well and badly."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from defl.cards import Card
from defl.ids import NodeId
from defl.node import event_loop
from defl.node.net import connecting
from defl.node.net.connecting import connected_socket, shown_certificate
from defl.node.net.framing import Lane
from defl.node.net.proxy import PROXY_ANSWER_BYTES_MAX, Proxies, Proxy, ProxyRefused
from defl.node.net.refusal import Refusal, Refused
from defl.node.net.route import DIRECT, Route, RouteKind
from defl.node.setup.identity import make_card
from support.doors import serving
from support.proxies import ESTABLISHED, PARTS, always, refusal, tunnelling
from support.transports import IDENTITIES, Peer, cards_of, listener, running

pytestmark = pytest.mark.usefixtures("on_both_loops")

MEMBER = "bob.example.invalid:7400"  # a name that only the proxy knows


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def echoing(plain: socket.socket) -> None:
    plain.sendall(plain.recv(100))


def failure_of(call: Coroutine[Any, Any, object]) -> OSError:
    async def scenario() -> None:
        await call

    with pytest.raises(OSError) as failed:  # noqa: PT011 - the callers look at it
        asyncio.run(scenario())
    return failed.value


def refused_by(reply: Callable[[str], bytes], proxy: Proxy | None = None) -> ProxyRefused:
    before = open_files()
    with tunnelling(reply) as server:
        fault = failure_of(connected_socket(MEMBER, proxy or server.proxy))
    assert isinstance(fault, ProxyRefused)
    assert open_files() == before
    return fault


def test_a_name_is_resolved_and_connected_directly() -> None:
    async def scenario(port: int) -> None:
        connection, route = await connected_socket(f"localhost:{port}", None)
        with connection:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(connection, b"hello")
            assert await loop.sock_recv(connection, 100) == b"hello"
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert route == DIRECT

    bound = listener()
    with serving(bound, echoing):
        asyncio.run(scenario(bound.getsockname()[1]))


def test_the_addresses_of_a_name_are_tried_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = listener()
    place = closed.getsockname()
    closed.close()

    async def scenario(good: Any) -> None:
        loop = asyncio.get_running_loop()
        look_up = loop.getaddrinfo

        async def found(host: str, *rest: Any, **options: Any) -> Any:
            if host != "bob.example.invalid":
                return await look_up(host, *rest, **options)
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", where) for where in (place, good)]

        monkeypatch.setattr(loop, "getaddrinfo", found, raising=False)
        connection, _ = await connected_socket(MEMBER, None)
        with connection:
            assert connection.getpeername() == good

    bound = listener()
    with serving(bound, echoing):
        asyncio.run(scenario(bound.getsockname()))


def test_a_tunnel_leads_to_a_name_that_only_the_proxy_can_resolve() -> None:
    async def scenario(proxy: Proxy) -> None:
        connection, route = await connected_socket(MEMBER, proxy)
        with connection:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(connection, b"hello")
            assert await loop.sock_recv(connection, 100) == b"hello"
        assert route == Route(RouteKind.PROXY, proxy.address)
        assert str(route) == f"through the proxy 127.0.0.1:{proxy.port}"

    bound = listener()
    hosts = {"bob.example.invalid": bound.getsockname()[1]}
    with serving(bound, echoing), tunnelling(hosts=hosts) as server:
        asyncio.run(scenario(server.proxy))
    assert server.requests == [f"CONNECT {MEMBER} HTTP/1.1\r\nHost: {MEMBER}\r\n\r\n"]


def test_an_answer_in_many_pieces_opens_the_tunnel() -> None:
    async def scenario(proxy: Proxy) -> None:
        connection, _ = await connected_socket(MEMBER, proxy)
        connection.close()

    pieces = PARTS.join(bytes([byte]) for byte in ESTABLISHED)
    with tunnelling(always(pieces)) as server:
        asyncio.run(scenario(server.proxy))


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refusal("403 Forbidden"), Refusal.PROXY_FORBIDS),
        (refusal("407 Auth", "Proxy-Authenticate: Basic"), Refusal.PROXY_LOGIN),
        (refusal("503 Unavailable"), Refusal.PROXY_NO_WAY),
        (b"220 mail.site ESMTP\r\n", Refusal.NOT_A_PROXY),
        (ESTABLISHED + b"\x16\x03\x03", Refusal.NOT_A_PROXY),
        (b"HTTP/1.1 200 OK\r\n" + b"x" * 2 * PROXY_ANSWER_BYTES_MAX, Refusal.NOT_A_PROXY),
        (b"HTTP/1.1 200 OK\r\nX: and then it hangs up", Refusal.NOT_A_PROXY),
    ],
)
def test_a_proxy_that_opens_no_tunnel_is_a_refusal_and_leaves_no_descriptor(
    answer: bytes, kind: Refusal
) -> None:
    assert refused_by(always(answer)).kind is kind


def test_a_proxy_that_is_down_is_named() -> None:
    bound = listener()
    proxy = Proxy("127.0.0.1", bound.getsockname()[1])
    bound.close()

    fault = failure_of(connected_socket(MEMBER, proxy))

    assert isinstance(fault, ProxyRefused)
    assert fault.kind is Refusal.PROXY_DOWN
    assert str(fault) == f"the proxy {proxy} cannot be reached: nothing listens there"


def test_a_proxy_whose_name_is_unknown_is_named() -> None:
    fault = failure_of(connected_socket(MEMBER, Proxy("proxy.invalid", 3128)))

    assert isinstance(fault, ProxyRefused)
    assert "its name cannot be resolved" in str(fault)


def test_a_proxy_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "ANSWER_S", 0.01)

    fault = refused_by(always(b""))

    assert fault.kind is Refusal.PROXY_NO_WAY
    assert f"has not reached {MEMBER}" in str(fault)


def test_a_name_server_that_does_not_answer_is_not_taken_for_a_firewall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connecting, "NAME_S", 0.0)

    assert isinstance(failure_of(connected_socket("localhost:1", None)), socket.gaierror)


def test_a_name_that_no_name_server_could_know_is_an_error_of_names() -> None:
    fault = failure_of(connected_socket(f"{'x' * 64}.org:1", None))

    assert isinstance(fault, socket.gaierror)


@pytest.mark.parametrize("stage", ["connecting", "tunnelling", "looking"])
def test_a_cancelled_call_leaves_no_descriptor(stage: str) -> None:
    """Cancelled after each possible number of turns of the loop."""
    full = socket.create_server(("127.0.0.1", 0), backlog=0)  # whose queue is soon full
    crowd = [socket.socket() for _ in range(3)]
    for caller in crowd:
        caller.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            caller.connect(full.getsockname())

    async def scenario(proxy: Proxy) -> None:
        address = f"127.0.0.1:{full.getsockname()[1]}"
        for turns in range(12):
            call: Coroutine[Any, Any, object] = {
                "connecting": lambda: connected_socket(address, None),
                "tunnelling": lambda: connected_socket(MEMBER, proxy),
                "looking": lambda: shown_certificate(address, None),
            }[stage]()
            task = asyncio.ensure_future(call)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                result: Any = task.result()
                result[0].close()
        for _ in range(3):
            await asyncio.sleep(0)

    with tunnelling(always(b"")) as server:
        asyncio.run(scenario(server.proxy))  # once, for what is opened only once
        before = open_files()
        asyncio.run(scenario(server.proxy))
    after = open_files()
    for opened in (full, *crowd):
        opened.close()
    # The proxy's side of each connection is closed with the proxy.
    assert after <= before


@pytest.mark.parametrize("version", ["0.22.1", "0.23.0", "1.0"])
def test_an_event_loop_that_closes_sockets_twice_is_not_used(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    uvloop = pytest.importorskip("uvloop")
    monkeypatch.setattr(event_loop, "version", lambda _: version)

    assert (event_loop.loop_factory() is uvloop.new_event_loop) is (version != "0.22.1")


def two_of_four() -> tuple[list[socket.socket], list[Card]]:
    """The listeners of members 0 and 1, and the cards of all; nobody listens for the others."""
    listeners = [listener() for _ in range(4)]
    cards = cards_of(listeners)
    for bound in listeners[2:]:
        bound.close()
    return listeners[:2], cards


def test_two_members_talk_through_a_proxy_and_the_caller_knows_the_way() -> None:
    """The name on the card is unknown here, as at a site without outside DNS."""
    listeners, cards = two_of_four()
    cards[1] = make_card(IDENTITIES[1], MEMBER)

    async def scenario(proxy: Proxy) -> None:
        a = Peer(0, cards, listeners[0], contacts={NodeId(1): cards[1]}, proxies=Proxies(proxy))
        b = Peer(1, cards, listeners[1])
        async with running(a, b):
            await a.until_connected(b)
            await b.until_connected(a)
            assert a.send(b, b"vote")
            assert b.send(a, b"answer")
            await b.until(lambda: b.received)
            await a.until(lambda: a.received)
            links = [channel.link for channel in a.transport._contacts[b.me].channels.values()]
            assert {str(link.route) for link in links if link is not None} == {
                f"through the proxy {proxy.address}"
            }

    with tunnelling(hosts={"bob.example.invalid": listeners[1].getsockname()[1]}) as server:
        asyncio.run(scenario(server.proxy))
    assert f"CONNECT {MEMBER} HTTP/1.1" in {request.splitlines()[0] for request in server.requests}


@pytest.mark.parametrize("is_proxied", [False, True], ids=["directly", "through a proxy"])
def test_a_call_that_is_cancelled_at_any_time_leaves_no_descriptor(is_proxied: bool) -> None:
    listeners, cards = two_of_four()
    contacts = {NodeId(1): cards[1]}

    async def scenario(proxy: Proxy) -> None:
        proxies = Proxies(proxy if is_proxied else None)
        a = Peer(0, cards, listeners[0], contacts=contacts, proxies=proxies)
        b = Peer(1, cards, listeners[1], contacts={NodeId(0): cards[0]})
        greeter, contact = a.transport._greeter, a.transport._contacts[b.me]

        async def cancel_calls(turns_max: int) -> None:
            for turns in range(turns_max):
                call = asyncio.ensure_future(greeter.call(contact, Lane.CONTROL))
                for _ in range(turns):
                    await asyncio.sleep(0)
                call.cancel()
                await asyncio.wait([call])
                if not call.cancelled() and not isinstance(answer := call.result(), Refused):
                    answer[0].abort()

        async with running(b):
            # A handshake that fails in the turn in which it is cancelled is reported by asyncio.
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            opened_once = 1  # uvloop's /dev/null
            before = open_files() + opened_once
            await cancel_calls(60)
            await b.until(lambda: open_files() <= before)
        listeners[0].close()

    with tunnelling() as server:
        asyncio.run(scenario(server.proxy))


def test_a_running_node_says_what_its_proxy_refuses() -> None:
    listeners, cards = two_of_four()
    listeners[1].close()

    async def scenario(proxy: Proxy) -> None:
        a = Peer(0, cards, listeners[0], proxies=Proxies(proxy))
        async with running(a):
            await a.until(lambda: len(a.transport.stats.trouble) == 3)
            assert "forbids CONNECT" in a.transport.stats.trouble[NodeId(1)]
            assert a.transport.stats.refusals[Refusal.PROXY_FORBIDS] >= 3

    with tunnelling(always(refusal("403 Forbidden"))) as server:
        asyncio.run(scenario(server.proxy))
