"""The user's evaluation of each round's model, in the gaps between trainings.

It is asked for when an update is on its way. The next training comes first: it interrupts an
evaluation, which then begins anew in the next gap; a node without gaps evaluates the newest models
at the end. One that raises or returns rubbish is reported and tried again with the next model; one
that hangs or takes its process with it is the last until the node starts again.
"""

import asyncio
from collections import deque

from defl.errors import LocalFault, WorkerFailed
from defl.ids import Digest, Round
from defl.node.report.best_model import BestModel
from defl.node.report.history import Evaluation, Reports, told
from defl.node.report.non_finite import warn_not_finite
from defl.node.report.telemetry import Log
from defl.node.store.storage import Storage
from defl.node.work.worker import Worker

# Models that wait for a gap; the oldest makes room.
WAITING_MAX = 2


class Evaluations:
    def __init__(
        self,
        worker: Worker,
        storage: Storage,
        reports: Reports,
        log: Log,
        best: BestModel | None = None,
    ) -> None:
        self._worker = worker
        self._storage = storage
        self._reports = reports
        self._log = log
        self._best = best
        self._wanted = True
        self._waiting: deque[tuple[Round, Digest]] = deque(maxlen=WAITING_MAX)
        self._running: asyncio.Task[None] | None = None

    def begin(self, round_: Round, model: Digest) -> None:
        """Evaluate the model of this round when the client is free."""
        if not self._wanted:
            return
        self._waiting.append((round_, model))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._evaluate_all())

    async def finish(self) -> None:
        """Until none is under way."""
        if self._running is not None:
            await self._running

    async def cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _evaluate_all(self) -> None:
        while self._waiting and self._wanted:
            await self._evaluate(*self._waiting.popleft())

    async def _evaluate(self, round_: Round, model: Digest) -> None:
        try:
            with self._storage.reading((model,)):
                answer = await self._worker.evaluate(self._storage.path(model))
                if self._best is not None and answer.fault is None:
                    await self._best.evaluated(round_, model, answer.metrics)
        except LocalFault:
            return  # a training that took many rounds: its base is history
        except WorkerFailed as failed:
            self._wanted = False
            self._failed(round_, f"{failed}\nthere is no evaluation until the node starts again")
            return
        if answer.fault is not None:
            self._failed(round_, answer.fault)
            return
        self._reports.evaluated(Evaluation(round_, answer.metrics, answer.seconds))
        fields = told(answer.metrics, round=round_, seconds=round(answer.seconds, 6))
        self._log.info("evaluated", **fields)
        warn_not_finite(self._log, "evaluate", round_, answer.metrics)

    def _failed(self, round_: Round, why: str) -> None:
        self._reports.evaluation_error = f"round {round_}: {why}"
        self._log.warning("the model could not be evaluated", round=round_, why=why)
