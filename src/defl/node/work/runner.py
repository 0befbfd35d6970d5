"""A piece of work from its order to its result: run by the worker and logged.

A failure is a result too. A blob that the work made waits as a file until it is placed.
"""

import asyncio

from defl.errors import ChunkRotten, LocalFault, WorkerFailed
from defl.node.report.history import RoundHistory, log_fields
from defl.node.report.log import Log
from defl.node.report.non_finite import warn_not_finite
from defl.node.report.results import Results
from defl.node.store.blobs import Blobs
from defl.node.work.checked_values import CheckedValues
from defl.node.work.worker import Result, Worker
from defl.output import Aggregate, Train, Validate, Validated, Work, WorkFailed
from defl.work import inputs_of


class WorkRunner:
    def __init__(
        self,
        worker: Worker,
        blobs: Blobs,
        checked: CheckedValues,
        history: RoundHistory,
        results: Results,
        log: Log,
    ) -> None:
        self._worker = worker
        self._blobs = blobs
        self._checked = checked
        self._history = history
        self._results = results
        self._log = log

    async def start(self) -> None:
        try:
            await self._worker.start()
        except WorkerFailed as failed:
            self._log.warning("the worker does not start; the next work retries", why=failed)

    async def run(self, work: Work) -> Result | WorkFailed:
        """Raises ChunkRotten if an input has changed on disk."""
        if isinstance(work, Validate) and self._checked.cover(work.manifest):
            return Validated(work.manifest.digest, None)
        if isinstance(work, Train | Aggregate):
            self._history.begins(work)
        inputs = inputs_of(work)
        try:
            with self._blobs.reading(inputs):
                stale = self._blobs.stale(inputs)
                if stale:
                    await asyncio.to_thread(self._blobs.check, stale)
                done = await self._worker.run(work, self._blobs.path, self._blobs.take_spare)
        except ChunkRotten:
            raise
        except (WorkerFailed, LocalFault, OSError) as failed:
            self._log.warning("work failed", work=type(work).__name__, why=failed)
            return WorkFailed(work, str(failed))
        self._report(work)
        return done

    def _report(self, work: Work) -> None:
        training, aggregation = self._worker.training, self._worker.aggregation
        if isinstance(work, Train) and training is not None:
            self._history.trained(training)
            self._log.info("trained", **log_fields(training.metrics, round=training.round))
            warn_not_finite(self._log, "train", training.round, training.metrics)
        if isinstance(work, Aggregate) and aggregation is not None:
            self._results.aggregated(work, aggregation)
