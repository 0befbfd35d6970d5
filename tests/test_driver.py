"""The node's driver: its timer, on both event loops, and connections that come and go."""

import asyncio
from typing import NoReturn

import pytest

from defl.errors import UserError
from defl.ids import NodeId
from defl.node.driver import Driver, Outlets
from defl.output import Connected, Disconnected, Event, Output, Tick


class Overdue:
    """A participant that always wants to be woken at once, and finishes at its fourth event."""

    def __init__(self) -> None:
        self.events = 0

    @property
    def is_over(self) -> bool:
        return self.events == 4

    def handle(self, _event: Event, now: float) -> Output:
        self.events += 1
        return Output(wake_at=now)


class NoWriting:
    def start(self, *_: object) -> None:
        pass


def nothing(*_: object) -> NoReturn:
    raise AssertionError("there is nothing to carry out")


@pytest.mark.usefixtures("on_both_loops")
def test_an_event_that_comes_before_an_overdue_tick_is_handled() -> None:
    """uvloop's handle of a timer that is already due does not know its time."""
    participant = Overdue()

    async def scenario() -> None:
        outlets = Outlets(send=nothing, report=nothing, work=nothing, follow=lambda: None)
        driver = Driver(participant, NoWriting(), outlets)  # type: ignore[arg-type]
        running = asyncio.create_task(driver.run())
        await asyncio.sleep(0)
        driver.feed(Tick())
        driver.feed(Tick())
        await running

    asyncio.run(scenario())
    assert participant.is_over


def test_of_a_peers_connections_that_wait_the_newest_counts() -> None:
    """The first is not handled yet when the peer reconnects."""
    outlets = Outlets(send=nothing, report=nothing, work=nothing, follow=lambda: None)
    driver = Driver(Overdue(), NoWriting(), outlets)  # type: ignore[arg-type]
    peer, other = NodeId(1), NodeId(2)
    for event in (Connected(peer), Connected(other), Disconnected(peer), Connected(peer)):
        driver.feed(event)

    assert list(driver._events) == [Connected(other), Connected(peer)]


@pytest.mark.parametrize("before", [True, False], ids=["before it runs", "while it runs"])
def test_a_driver_that_is_stopped_decides_nothing_more(before: bool) -> None:
    participant = Overdue()
    reason = UserError("this node's key is in use elsewhere")

    async def scenario() -> None:
        outlets = Outlets(send=nothing, report=nothing, work=nothing, follow=lambda: None)
        driver = Driver(participant, NoWriting(), outlets)  # type: ignore[arg-type]
        if before:
            driver.stop(reason)
        running = asyncio.create_task(driver.run())
        await asyncio.sleep(0)
        decided = participant.events
        driver.stop(reason)
        driver.feed(Tick())
        assert participant.events == decided == (0 if before else 1)
        with pytest.raises(UserError, match="in use elsewhere"):
            await running

    asyncio.run(scenario())
    assert not participant.is_over
