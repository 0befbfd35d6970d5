"""The user's evaluation of each round's model, in the gaps between trainings.

An evaluation is requested once the node's update is sent. Training has priority: it interrupts an
evaluation, which restarts in the next gap. A node without gaps evaluates the newest models at the
end. An evaluation that raises or returns garbage is reported, and the next model is evaluated as
usual. One that hangs or kills its process is the last until the node restarts.
"""

import asyncio
from collections import deque

from defl.errors import LocalFault, WorkerFailed
from defl.ids import Digest, Round
from defl.node.report.best_model import BestModel
from defl.node.report.history import RoundHistory, log_fields
from defl.node.report.log import Log
from defl.node.report.non_finite import warn_not_finite
from defl.node.store.blobs import Blobs
from defl.node.work.worker import Worker

# Models that wait for a gap; the oldest is dropped.
WAITING_MAX = 2


class Evaluations:
    def __init__(
        self,
        worker: Worker,
        blobs: Blobs,
        history: RoundHistory,
        log: Log,
        best: BestModel | None = None,
    ) -> None:
        self._worker = worker
        self._blobs = blobs
        self._history = history
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
        """Wait until no evaluation is running."""
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
            with self._blobs.reading((model,)):
                answer = await self._worker.evaluate(self._blobs.path(model))
                if self._best is not None and answer.fault is None:
                    await self._best.evaluated(round_, model, answer.metrics)
        except LocalFault:
            return  # the model was dropped during a training that took many rounds
        except WorkerFailed as failed:
            self._wanted = False
            self._failed(round_, f"{failed}\nthere is no evaluation until the node starts again")
            return
        if answer.fault is not None:
            self._failed(round_, answer.fault)
            return
        self._history.evaluated(round_, answer.metrics, answer.seconds)
        fields = log_fields(answer.metrics, round=round_, seconds=round(answer.seconds, 6))
        self._log.info("evaluated", **fields)
        warn_not_finite(self._log, "evaluate", round_, answer.metrics)

    def _failed(self, round_: Round, why: str) -> None:
        self._history.evaluation_error = f"round {round_}: {why}"
        self._log.warning("the model could not be evaluated", round=round_, why=why)
