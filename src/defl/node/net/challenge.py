"""Asks the process that holds a contact's place whether it lives, when another one wants it."""

import asyncio
from collections.abc import Sequence
from datetime import datetime

from defl.node.net.contact import Contact
from defl.node.net.framing import Link
from defl.node.net.hello import Hello
from defl.node.net.refusal import Refusal, Refused
from defl.node.net.route import RouteKind
from defl.node.net.sessions import ANSWER_S, SeatVerdict


async def second_process(contact: Contact, hello: Hello, link: Link) -> Refused | None:
    """None: this process may have the place. The link is not open yet."""
    now = asyncio.get_running_loop().time
    seat, links = contact.seat, contact.links
    holder, signs = seat.holder, seat.signs
    relayed = link.route.kind is RouteKind.RELAY
    verdict = seat.judge(hello.session, now(), linked=bool(links), relayed=relayed)
    if verdict is SeatVerdict.ASK:
        if await _answers(links):
            seat.lived(now())
        verdict = seat.settle(hello.session, holder, signs, now(), relayed=relayed)
    match verdict:
        case SeatVerdict.ADMIT:
            return None
        case SeatVerdict.LATER:
            text = f"{contact.card.name} calls from another process; the one before may be alive"
        case _:
            text = _sentence(contact)
    return Refused(Refusal.SECOND, text, contact.peer)


async def is_in_use(contact: Contact) -> bool:
    """For a probe, which wants no place."""
    return await _answers(contact.links)


async def _answers(links: Sequence[Link]) -> bool:
    """Whether one of the holder's links answers in time."""
    asked = {asyncio.create_task(link.answers()) for link in links}
    pending = set(asked)
    try:
        async with asyncio.timeout(ANSWER_S):
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                if any(task.result() for task in done):
                    return True
    except TimeoutError:
        pass
    finally:
        for task in asked:
            task.cancel()
    return False


def _sentence(contact: Contact) -> str:
    held = [f"{link.remote} since {_clock(link.made_at)}" for link in contact.links]
    where = f"is connected from {held[0]}" if held else "has taken its place"
    return (
        f"a second process has {contact.card.name}'s key and is refused: another one {where}; "
        f"{contact.card.name} must stop one of them"
    )


def _clock(when: float) -> str:
    return f"{datetime.fromtimestamp(when).astimezone():%H:%M}"
