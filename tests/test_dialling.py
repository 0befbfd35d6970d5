"""When a contact is called again, on virtual time."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest

from defl.ids import NodeId
from defl.node.net.contact import Contact
from defl.node.net.dialler import Dialler, DialLimits
from defl.node.net.framing import Lane, Link
from defl.node.net.transport import Refusal
from defl.node.setup.identity import make_card, make_identity
from support.virtual_links import clock, run_virtually

LIMITS = DialLimits()
CARD = make_card(make_identity("bob"), "127.0.0.1:9")


class Network:
    """While it is cut, each call lasts as long as the caller has patience."""

    def __init__(self, patience_s: float, kind: Refusal = Refusal.SILENT) -> None:
        self.cut = True
        self.called_at: list[float] = []
        self.patience_s = patience_s
        self._kind = kind

    async def dial(self, contact: Contact, lane: Lane) -> Link | Refusal:  # noqa: ARG002
        self.called_at.append(clock().time())
        ends_at = clock().time() + self.patience_s
        while self.cut and clock().time() < ends_at:
            await asyncio.sleep(1)  # the kernel asks again
        return self._kind if self.cut else Link()


async def letterbox(_: Contact) -> None:
    pass


def dialler(network: Network) -> Dialler:
    return Dialler(LIMITS, network.dial, letterbox, Random(1), asyncio.sleep)  # noqa: S311


def test_a_call_that_was_never_answered_is_followed_by_the_next_at_once() -> None:
    async def scenario() -> None:
        network = Network(patience_s=5.0)
        contact = Contact(NodeId(1), CARD)
        calls = asyncio.create_task(dialler(network).keep_connected(contact, Lane.CONTROL))
        await asyncio.sleep(600)
        calls.cancel()
        between = [b - a for a, b in pairwise(network.called_at)]
        assert len(between) >= 100
        assert max(between) <= 5.0 + 1e-6

    run_virtually(scenario)


@pytest.mark.parametrize(
    "network",
    [
        lambda: Network(0.0, Refusal.CLOSED),
        lambda: Network(2.0, Refusal.UNKNOWN),  # too busy to answer in time
    ],
    ids=["at once", "late"],
)
def test_a_call_that_is_refused_is_followed_by_a_pause(network: Callable[[], Network]) -> None:
    async def scenario() -> None:
        refusing = network()
        contact = Contact(NodeId(1), CARD)
        calls = asyncio.create_task(dialler(refusing).keep_connected(contact, Lane.CONTROL))
        await asyncio.sleep(120)
        calls.cancel()
        late = refusing.called_at[10:]
        assert len(late) > 5
        shortest_s = refusing.patience_s + LIMITS.backoff_max_s / 2
        assert all(b - a >= shortest_s - 1e-6 for a, b in pairwise(late))

    run_virtually(scenario)


def test_a_link_that_lived_is_dialled_again_very_soon() -> None:
    async def scenario() -> None:
        network = Network(patience_s=5.0)
        network.cut = False
        contact = Contact(NodeId(1), CARD)
        links: list[Link] = []

        async def dial(to: Contact, lane: Lane) -> Link | Refusal:
            link = await network.dial(to, lane)
            assert isinstance(link, Link)
            links.append(link)
            return link

        calling = Dialler(LIMITS, dial, letterbox, Random(1), asyncio.sleep)  # noqa: S311
        calls = asyncio.create_task(calling.keep_connected(contact, Lane.CONTROL))
        await asyncio.sleep(1000)
        links[0].closed.set_result("silent for 60 s")
        ended_at = clock().time()
        await asyncio.sleep(LIMITS.backoff_first_s)
        calls.cancel()
        assert len(network.called_at) == 2
        assert network.called_at[1] - ended_at <= LIMITS.backoff_first_s

    run_virtually(scenario)


class StallingLink(Link):
    stalls = False

    @property
    def is_stalled(self) -> bool:
        return self.stalls


@pytest.mark.parametrize("bounded", [False, True], ids=["older kernel", "newer kernel"])
def test_a_stalled_link_is_replaced_by_a_call_unless_the_kernel_sees_to_it(
    bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("defl.node.net.dialler.bounds_pauses", lambda: bounded)

    async def scenario() -> None:
        contact = Contact(NodeId(1), CARD)
        links: list[StallingLink] = []
        network = Network(patience_s=5.0)

        async def dial(to: Contact, lane: Lane) -> Link | Refusal:
            answer = await network.dial(to, lane)
            if isinstance(answer, Refusal):
                return answer
            for older in links[-1:]:
                older.closed.set_result("replaced")
            links.append(StallingLink())
            contact.channels[lane].link = links[-1]
            return links[-1]

        network.cut = False
        calling = Dialler(LIMITS, dial, letterbox, Random(1), asyncio.sleep)  # noqa: S311
        calls = asyncio.create_task(calling.keep_connected(contact, Lane.CONTROL))
        await asyncio.sleep(1000)
        assert len(network.called_at) == 1
        network.cut = links[0].stalls = True
        await asyncio.sleep(60)
        network.cut = False
        await asyncio.sleep(2.5)
        assert len(links) == (1 if bounded else 2)
        assert contact.channels[Lane.CONTROL].link is links[-1]
        await asyncio.sleep(100)
        assert len(links) == (1 if bounded else 2)
        calls.cancel()

    run_virtually(scenario)
