"""The participant's notices, handled one after the other, off the loop: what is written for people
must not delay what is decided. A full disk delays the newest and skips the others."""

import asyncio

from defl.errors import LocalFault
from defl.node.report.log import Log
from defl.node.report.results import Results
from defl.node.store.writing import RETRY_S
from defl.output import Notice


class NoticeQueue:
    def __init__(self, results: Results, log: Log) -> None:
        self._results = results
        self._log = log
        self._waiting: asyncio.Queue[Notice] = asyncio.Queue()  # a few per round

    def put(self, notice: Notice) -> None:
        self._waiting.put_nowait(notice)

    async def join(self) -> None:
        """Wait until all are handled."""
        await self._waiting.join()

    async def run(self) -> None:
        """Runs forever."""
        while True:
            notice = await self._waiting.get()
            while not await self._handle(notice) and self._waiting.empty():
                await asyncio.sleep(RETRY_S)  # the newest is worth waiting for room
            self._waiting.task_done()

    async def _handle(self, notice: Notice) -> bool:
        try:
            await self._results.notice(notice)
        except (OSError, LocalFault) as fault:
            self._log.warning("not written", what=type(notice).__name__, why=fault)
            return False
        return True
