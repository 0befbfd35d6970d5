"""Calls contacts again and again, with pauses that grow to a bound.

How one call is made is the transport's business.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from defl.node.net.contact import Contact
from defl.node.net.framing import Lane, Link
from defl.node.net.refusal import Refusal
from defl.node.net.sockets import bounds_pauses

# A link that lived this long resets the back-off.
STABLE_S = 5.0
# How often a link is examined where the kernel lets it stall.
STALL_LOOK_S = 1.0
NO_ANSWER = (Refusal.SILENT, Refusal.UNREACHABLE)


@dataclass(frozen=True, slots=True)
class DialLimits:
    backoff_first_s: float = 0.1
    backoff_max_s: float = 3.0
    # A member that should dial us may not know us; after this long without it, we call it.
    uncalled_s: float = 10.0


class Dialler:
    def __init__(
        self,
        limits: DialLimits,
        dial: Callable[[Contact, Lane], Awaitable[Link | Refusal]],
        call_letterbox: Callable[[Contact], Awaitable[None]],
        rng: random.Random,
        wait: Callable[[float], Awaitable[None]],
    ) -> None:
        self._limits = limits
        self._dial = dial
        self._call_letterbox = call_letterbox
        self._rng = rng
        self._wait = wait

    async def keep_connected(self, contact: Contact, lane: Lane) -> None:
        """While the contact has another role in its own epoch, it may be the one that dials: there
        is no dialling beside an open link."""
        loop = asyncio.get_running_loop()
        attempt = 0
        while True:
            contact.moved.clear()
            began = loop.time()
            link = contact.channels[lane].link or await self._dial(contact, lane)
            if isinstance(link, Link):
                await self._until_closed(contact, lane, link)
                if loop.time() - began >= STABLE_S:
                    attempt = 0
            elif link is Refusal.UNKNOWN and lane is Lane.CONTROL:
                await self._call_letterbox(contact)
            # A call that nobody answered has waited long enough, and a cut may have healed. A peer
            # that is too busy to answer in time gets its pause.
            since = began if link in NO_ANSWER else loop.time()
            await self.back_off(contact, attempt, since)
            attempt += 1

    async def _until_closed(self, contact: Contact, lane: Lane, link: Link) -> None:
        """A call that succeeds while the link is stalled replaces it."""
        look_s = None if bounds_pauses() else STALL_LOOK_S
        while not link.closed.done():
            await asyncio.wait([link.closed], timeout=look_s)
            if not link.closed.done() and link.is_stalled:
                await self._dial(contact, lane)

    async def await_calls(self, contact: Contact) -> None:
        """It is the contact's part to dial. But it may have slept and not know us; or we have, and
        are a former member in its epoch, whom nobody dials."""
        while True:
            await asyncio.sleep(self._limits.uncalled_s)
            for lane in Lane:
                if contact.channels[lane].link is None:
                    called = await self._dial(contact, lane)
                    if called is Refusal.UNKNOWN and lane is Lane.CONTROL:
                        await self._call_letterbox(contact)

    async def back_off(self, contact: Contact, attempt: int, since: float) -> None:
        """Waits, unless a newer card gives another address; the pause counts from `since`."""
        limits = self._limits
        longest = min(limits.backoff_max_s, limits.backoff_first_s * 2.0 ** min(attempt, 30))
        loop = asyncio.get_running_loop()
        pause_s = since + longest * self._rng.uniform(0.5, 1.0) - loop.time()
        waits = [
            loop.create_task(_awaited(self._wait(max(0.0, pause_s)))),
            loop.create_task(_awaited(contact.moved.wait())),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


async def _awaited(wait: Awaitable[object]) -> None:
    await wait
