"""Calls a function again and again in a thread while something else runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def sampled(sample: Callable[[], None], every_s: float) -> Iterator[None]:
    """At the start, then with this pause in between, and once more at the end."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(every_s):
            sample()

    sample()
    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        sample()
