"""The user's evaluation of each round's model, in the pauses of training.

It is asked for when an update is on its way, so that no round waits for it; the next training waits
at most `Limits.evaluation_s`. One that raises or returns rubbish is reported and tried again with
the next model; one that hangs or takes its process with it is the last until the node starts again.
"""

import asyncio

from defl.errors import LocalFault, WorkerFailed
from defl.ids import Digest, Round
from defl.node.reports import Evaluation, Reports, told
from defl.node.storage import Storage
from defl.node.telemetry import Log
from defl.node.worker import Worker


class Evaluations:
    def __init__(self, worker: Worker, storage: Storage, reports: Reports, log: Log) -> None:
        self._worker = worker
        self._storage = storage
        self._reports = reports
        self._log = log
        self._wanted = True
        self._under_way: set[asyncio.Task[None]] = set()

    def begin(self, round_: Round, model: Digest) -> None:
        """Evaluate the model of this round when the client is free."""
        if not self._wanted:
            return
        task = asyncio.create_task(self._evaluate(round_, model))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def finish(self) -> None:
        """Until none is under way."""
        await asyncio.gather(*self._under_way)

    async def cancel(self) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _evaluate(self, round_: Round, model: Digest) -> None:
        try:
            with self._storage.reading((model,)):
                answer = await self._worker.evaluate(self._storage.path(model))
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

    def _failed(self, round_: Round, why: str) -> None:
        self._reports.evaluation_error = f"round {round_}: {why}"
        self._log.warning("the model could not be evaluated", round=round_, why=why)
