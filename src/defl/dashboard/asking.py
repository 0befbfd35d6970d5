"""Asks the nodes for their status, all at once: one that does not answer delays no other.

Each node has a thread of its own while it is asked, and is not asked again before that has ended.
The threads are daemons, like the one that waits for them.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from defl.node.report.membership import MembershipReport
from defl.node.report.status import NodeStatus
from defl.node.report.status_client import STATUS_WAIT_S, running_membership, running_status

# What an overview waits for a node that has answered before; it takes a few milliseconds.
ANSWER_WAIT_S = 0.5
# A program that took over a node's port and sends a byte now and then: it is no node.
SILENT_S = 2 * STATUS_WAIT_S


class Answer(NamedTuple):
    status: NodeStatus | None = None  # None: the node does not run
    membership: MembershipReport | None = None  # of another epoch than `chain`


class Asking:
    """The questions to one node. `answer` is the newest; `ask`, and later `wait`."""

    def __init__(self, folder: Path) -> None:
        self.answer = Answer()
        self._folder = folder
        self._came: Answer | None = None  # written by the thread, before `_done`
        self._done = threading.Event()
        self._since: float | None = None  # None: nothing is being asked
        self._is_first = True

    def ask(self, chain: str) -> None:
        """`chain`: of the epoch whose members are known; empty: ask for no other."""
        if self._since is None:
            self._since, self._came = monotonic(), None
            self._done.clear()
            threading.Thread(target=self._run, args=(chain,), daemon=True).start()

    def wait(self, waited_s: float) -> None:
        """`waited_s`: how long others have been waited for, since all were asked."""
        if self._since is None:
            return
        longest = SILENT_S if self._is_first else ANSWER_WAIT_S
        if self._done.wait(max(0.0, longest - waited_s)):
            self.answer, self._since = self._came or Answer(), None
        elif monotonic() - self._since > SILENT_S or self._is_first:
            self.answer = Answer()
        self._is_first = False

    def _run(self, chain: str) -> None:
        try:
            status = running_status(self._folder)
            is_known = status is None or chain in ("", status.chain)
            membership = None if is_known else running_membership(self._folder)
            self._came = Answer(status, membership)
        finally:
            self._done.set()


def wait_for(asked: Sequence[Asking]) -> None:
    start = monotonic()
    for asking in asked:
        asking.wait(monotonic() - start)
