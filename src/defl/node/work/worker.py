"""User code and heavy arithmetic in child processes, so that nothing they do stops the replica.

There are two children. One runs the user's client; the other checks and aggregates, so a peer's
update is acknowledged while this node trains for an hour. A child that crashes, hangs or answers
garbage is killed (child.py), `last_error` keeps the reason, and the next work starts a new child.
Weights are passed as open files that the child maps; nothing is ever pickled.
"""

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path

from defl.committee import Federation
from defl.errors import BadBlob, LocalFault, WorkerFailed
from defl.ids import NO_DIGEST, Digest
from defl.messages import Manifest
from defl.node.files import WORKER_LOG
from defl.node.store.private import make_folder
from defl.node.store.storage import WORK
from defl.node.work.child import Child, ChildLimits
from defl.node.work.compiled_code import cache_settings
from defl.node.work.environment import KEPT_MEMORY, ONE_THREAD, THREAD_SETTINGS, passed
from defl.node.work.local_entries import LOCAL_FILE
from defl.node.work.worker_process import (
    POSTPONE,
    AggregateTask,
    Checked,
    Evaluated,
    EvaluateTask,
    Produced,
    Request,
    SetUp,
    TrainTask,
    ValidateTask,
    WorkReport,
)
from defl.output import Aggregate, Aggregated, Train, Trained, Validate, Validated, Work
from defl.pool.weights import FP32, check_manifest, payload_bytes
from defl.schema import Codec
from defl.work import inputs_of

__all__ = ["ChildLimits", "Worker", "WorkerFailed"]

Inputs = Mapping[Digest, Path] | Callable[[Digest], Path]
Result = Trained | Aggregated | Validated
TakeSpare = Callable[[int, Path], bool]  # moves a spare file of this size to this path, if any


def no_spare(_size: int, _to: Path) -> bool:
    return False


# A signal may reach a child that has not begun the evaluation yet, so it is repeated.
POSTPONE_EVERY_S = 0.05


class Worker:
    def __init__(
        self,
        client: str | None,
        folder: Path,
        federation: Federation,
        limits: ChildLimits = ChildLimits(),  # noqa: B008 - frozen
        *,
        project: Path | None = None,
        environment: Mapping[str, str] | None = None,
        client_environment: Sequence[str] = (),
    ) -> None:
        """`environment` is added to that of the node, of which the client also gets the variables
        that `client_environment` names."""
        self._federation = federation
        self._limits = limits
        self._work = folder / WORK
        make_folder(self._work)
        self._serial = itertools.count()
        self._outputs: dict[Digest, list[Path]] = {}  # two rounds may have the same result
        self._trainings = 0  # requested and not finished
        self._no_training = asyncio.Event()
        self._no_training.set()
        self._evaluating = False
        self.last_error: str | None = None
        self.training_failures = 0  # since the last training that succeeded
        self.training: WorkReport | None = None  # the newest of each kind, for people
        self.aggregation: WorkReport | None = None
        log, state = folder / WORKER_LOG, folder / LOCAL_FILE
        added = environment or {}
        variables = {**KEPT_MEMORY, **passed(os.environ), **added}
        clients = {**KEPT_MEMORY, **passed(os.environ, client_environment), **added}
        threads = dict.fromkeys(THREAD_SETTINGS, str(limits.threads))
        place = str(project.resolve()) if project is not None else None
        self._client = Child(
            SetUp(federation, client or None, place, str(state.resolve())),
            log,
            {**threads, **clients},
            limits,
            limits.niceness,
        )
        self._own = Child(
            SetUp(federation, None, None, str(state.resolve())),
            folder / "arithmetic.log",
            {
                **variables,
                **ONE_THREAD,
                **cache_settings(variables, folder),
            },
            limits,
            0,
        )

    @property
    def starts(self) -> int:
        """How often the client's process was started; more than once means that it failed."""
        return self._client.starts

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(c.pid for c in (self._client, self._own) if c.pid is not None)

    async def start(self) -> None:
        """Start both children now. WorkerFailed gives the reason if one does not start; work can
        still be requested, and tries again."""
        outcomes = await asyncio.gather(
            self._client.start(), self._own.start(), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                self._note(outcome)
                raise outcome

    async def close(self) -> None:
        await asyncio.gather(self._client.close(), self._own.close())

    async def run(self, work: Work, inputs: Inputs, take_spare: TakeSpare = no_spare) -> Result:
        """Do the work. A blob that it makes is a file to be taken with `take_output`: checked
        against its manifest, not synced, and written over a spare file if there is one.
        """
        try:
            # Open the inputs now: retention may unlink them while the work is queued.
            with _opened(inputs, inputs_of(work)) as files:
                match work:
                    case Validate(manifest=manifest):
                        return Validated(manifest.digest, await self._validate(files))
                    case Aggregate():
                        manifest = await self._aggregate(work, files, take_spare)
                        return Aggregated(work.round, manifest)
                    case Train():
                        return Trained(work.round, await self._train(work, files, take_spare))
        except WorkerFailed as failed:
            self._note(failed)
            self.training_failures += isinstance(work, Train)
            raise

    async def evaluate(self, model: Path) -> Evaluated:
        """The client's metrics for a model, computed in a gap between trainings. Training
        interrupts an evaluation, which restarts in the next gap."""
        try:
            with _opened({NO_DIGEST: model}, (NO_DIGEST,)) as files:
                answer = Evaluated({}, postponed=True)
                while answer.postponed:
                    await self._no_training.wait()
                    answer = await self._evaluate_once(files)
                if answer.fault is not None:
                    self.last_error = f"evaluating failed:\n{answer.fault}"
                return answer
        except WorkerFailed as failed:
            self._note(failed)
            raise

    async def _evaluate_once(self, files: Sequence[int]) -> Evaluated:
        limit_s = self._limits.evaluation_s
        self._evaluating = True
        try:
            answer = await self._client.ask(
                EvaluateTask(), files, doing="evaluating", limit_s=limit_s
            )
        finally:
            self._evaluating = False
        if not isinstance(answer, Evaluated):
            raise await self._client.reject("the answer to an evaluation is of another kind")
        return answer

    @contextlib.asynccontextmanager
    async def _before_evaluations(self) -> AsyncIterator[None]:
        """Within this context no evaluation begins, and a running one is interrupted."""
        self._trainings += 1
        self._no_training.clear()
        interrupting = asyncio.create_task(self._postpone_evaluation())
        try:
            yield
        finally:
            interrupting.cancel()
            self._trainings -= 1
            if not self._trainings:
                self._no_training.set()

    async def _postpone_evaluation(self) -> None:
        while self._evaluating:
            self._client.send_signal(POSTPONE)
            await asyncio.sleep(POSTPONE_EVERY_S)

    def take_output(self, manifest: Manifest) -> Path:
        """The file with a result's blob, which the caller now owns."""
        paths = self._outputs.pop(manifest.digest)
        if len(paths) > 1:
            self._outputs[manifest.digest] = paths[1:]
        return paths[0]

    def _note(self, error: BaseException) -> None:
        self.last_error = str(error)

    async def _validate(self, files: Sequence[int]) -> str | None:
        limit_s = self._limits.own_s
        answer = await self._own.ask(
            ValidateTask(), files, doing="checking an update", limit_s=limit_s
        )
        if not isinstance(answer, Checked):
            raise await self._own.reject("the answer to the check of an update is of another kind")
        return answer.fault

    async def _aggregate(
        self, work: Aggregate, files: Sequence[int], take_spare: TakeSpare
    ) -> Manifest:
        output = self._new_file()
        take_spare(payload_bytes(self._federation.schema, FP32), output)
        task = AggregateTask(work, inputs_of(work), str(output))
        doing = f"aggregating round {work.round}"
        answer = await self._produce(
            self._own, task, files, output, doing, self._limits.own_s, NO_DIGEST
        )
        self.aggregation = answer.report
        return answer.manifest

    async def _train(self, work: Train, files: Sequence[int], take_spare: TakeSpare) -> Manifest:
        output = self._new_file()
        take_spare(payload_bytes(self._federation.schema, self._federation.codec), output)
        task = TrainTask(work.round, work.base, str(output))
        doing = f"training for round {work.round}"
        async with self._before_evaluations():
            answer = await self._produce(
                self._client, task, files, output, doing, self._limits.client_s, work.base
            )
        self.training = answer.report
        self.training_failures = 0
        return answer.manifest

    async def _produce(
        self,
        child: Child,
        task: Request,
        files: Sequence[int],
        output: Path,
        doing: str,
        limit_s: float,
        base: Digest,
    ) -> Produced:
        kept = False
        try:
            answer = await child.ask(task, files, doing=doing, limit_s=limit_s)
            codec = FP32 if base == NO_DIGEST else self._federation.codec
            if not isinstance(answer, Produced) or not self._is_expected(
                answer.manifest, output, codec, base
            ):
                raise await child.reject(f"{doing}: the result is not what the worker says")
            kept = True
        finally:
            if not kept:
                with contextlib.suppress(OSError):  # the first error is the one to report
                    output.unlink(missing_ok=True)
        self._outputs.setdefault(answer.manifest.digest, []).append(output)
        return answer

    def _is_expected(self, manifest: Manifest, path: Path, codec: Codec, base: Digest) -> bool:
        """Whether the blob is of the requested kind and size. The child hashed the bytes that it
        wrote; a second hash here would only detect that the disk has changed them since."""
        try:
            check_manifest(manifest, self._federation.schema, codec, self._federation.chunk_bytes)
        except BadBlob:
            return False
        return manifest.base == base and path.exists() and path.stat().st_size == manifest.size

    def _new_file(self) -> Path:
        return self._work.resolve() / f"output-{next(self._serial)}"


@contextlib.contextmanager
def _opened(inputs: Inputs, digests: Sequence[Digest]) -> Iterator[list[int]]:
    path_of = inputs if callable(inputs) else inputs.__getitem__
    with contextlib.ExitStack() as stack:
        files = []
        for digest in digests:
            try:
                file = stack.enter_context(path_of(digest).open("rb"))
            except (KeyError, OSError, LocalFault) as error:
                raise WorkerFailed(f"blob {digest.hex()} cannot be opened: {error}") from error
            files.append(file.fileno())
        yield files
