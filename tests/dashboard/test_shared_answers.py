"""Viewers share answers: one call to the source serves all who ask within half a second."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from defl.dashboard.shared_answers import ANSWERS_MAX, FRESH_S, Busy, SharedAnswers


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def on_a_clock(scenario: Callable[[Clock], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        clock = Clock()
        loop = asyncio.get_running_loop()
        loop.time = clock  # type: ignore[method-assign]
        await scenario(clock)

    asyncio.run(run())


def test_an_answer_is_shared_while_it_is_fresh_and_made_anew_after() -> None:
    async def scenario(clock: Clock) -> None:
        answers, made = SharedAnswers(), iter([b"first", b"second"])

        def make() -> bytes:
            return next(made)

        assert await answers.get("overview", make) == b"first"
        clock.now = FRESH_S * 0.99
        assert await answers.get("overview", make) == b"first"
        clock.now = FRESH_S
        assert await answers.get("overview", make) == b"second"

    on_a_clock(scenario)


def test_viewers_who_ask_while_an_answer_is_made_wait_for_it_however_long_it_takes() -> None:
    async def scenario(clock: Clock) -> None:
        answers, go_on, calls = SharedAnswers(), threading.Event(), []

        def make() -> bytes:
            calls.append(threading.current_thread().name)
            go_on.wait()
            return b"slow"

        viewers = [asyncio.create_task(answers.get("x", make)) for _ in range(100)]
        await asyncio.sleep(0)
        clock.now = 60.0
        viewers.append(asyncio.create_task(answers.get("x", make)))
        await asyncio.sleep(0)
        go_on.set()

        assert set(await asyncio.gather(*viewers)) == {b"slow"}
        assert calls == ["defl-source"]

    on_a_clock(scenario)


def test_a_viewer_who_leaves_takes_nobody_elses_answer_away() -> None:
    async def scenario(_: Clock) -> None:
        answers, go_on = SharedAnswers(), threading.Event()

        def make() -> bytes:
            go_on.wait()
            return b"there"

        leaving = asyncio.create_task(answers.get("x", make))
        staying = asyncio.create_task(answers.get("x", make))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.sleep(0)
        go_on.set()

        assert await staying == b"there"

    on_a_clock(scenario)


def test_an_error_reaches_everybody_who_asked_and_the_next_call_tries_again() -> None:
    async def scenario(clock: Clock) -> None:
        answers, fails = SharedAnswers(), [True]

        def make() -> bytes:
            if fails:
                raise OSError(fails.pop())
            return b"well"

        outcomes = await asyncio.gather(
            answers.get("x", make), answers.get("x", make), return_exceptions=True
        )
        assert [type(outcome) for outcome in outcomes] == [OSError, OSError]
        clock.now = FRESH_S
        assert await answers.get("x", make) == b"well"

    on_a_clock(scenario)


def test_the_number_of_answers_is_bounded_whoever_asks() -> None:
    async def scenario(_: Clock) -> None:
        answers, go_on = SharedAnswers(), threading.Event()

        def make() -> bytes:
            go_on.wait()
            return b""

        waiting = [asyncio.create_task(answers.get(i, make)) for i in range(ANSWERS_MAX)]
        await asyncio.sleep(0)
        refused = asyncio.create_task(answers.get("one more", make))
        await asyncio.sleep(0)
        assert refused.done()
        assert isinstance(refused.exception(), Busy)
        go_on.set()
        await asyncio.gather(*waiting)

        assert await answers.get("one more", make) == b""

    on_a_clock(scenario)
