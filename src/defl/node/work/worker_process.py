"""The child's side of a worker, and the messages between both sides.

One process with one socket: a request arrives with open files, the answer goes back, and results
are files. The process runs either the user's client or our own arithmetic, never both: a library
that the user loads may change how floats are rounded, and all nodes must compute the same bits.

Any failure ends the process, and the parent starts another one. The client's standard output goes
to a log, not to the socket.
"""

import contextlib
import faulthandler
import mmap
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from types import FrameType, TracebackType

import msgspec
from msgspec import Struct

from defl.aggregation import kernels
from defl.aggregation.aggregate import AggregationResult
from defl.clients.prior import describe_one_class
from defl.clients.protocol import Client, Metrics, Training, class_counts_of
from defl.committee import Federation
from defl.errors import UserError
from defl.ids import Digest, Round
from defl.messages import Manifest
from defl.node.store.private import create_file
from defl.node.work.local_entries import read_local, write_local
from defl.node.work.orphans import die_with
from defl.node.work.user_code import load_client, missing_variable, reason_of
from defl.output import Aggregate
from defl.pool.weights import Base, Payload
from defl.schema import Array, Weights
from defl.unsent import Unsent
from defl.work import Write, aggregate, model_row, update_blob, validate

# The longest answer is a manifest with the most chunks, or a traceback.
FRAME_BYTES_MAX = 2**20
# A base and an update of every member.
FILES_MAX = 128
# Metrics are for people: excess ones are dropped, so that the status stays readable.
METRICS_MAX = 32
METRIC_NAME_CHARACTERS_MAX = 64

# --- Messages --------------------------------------------------------------------------------


class SetUp(Struct, frozen=True, array_like=True, tag=1):
    federation: Federation
    client: str | None  # "module:attribute"; None for the arithmetic process
    project: str | None
    state: str  # the file that keeps the client's local entries between processes


class TrainTask(Struct, frozen=True, array_like=True, tag=2):
    round: Round
    base: Digest
    output: str  # the file to write the payload to


class AggregateTask(Struct, frozen=True, array_like=True, tag=3):
    work: Aggregate
    inputs: tuple[Digest, ...]  # the blob of each open file
    output: str


class ValidateTask(Struct, frozen=True, array_like=True, tag=4):
    pass


class EvaluateTask(Struct, frozen=True, array_like=True, tag=5):
    pass


Request = SetUp | TrainTask | AggregateTask | ValidateTask | EvaluateTask


class WorkerReady(Struct, frozen=True, array_like=True, tag=20):
    pass


class WorkReport(Struct, frozen=True, array_like=True):
    """Details of a piece of work, for people."""

    round: Round
    metrics: dict[str, float] = {}
    weights: tuple[float, ...] = ()  # of each update, in the order of the work's references
    scores: tuple[float, ...] = ()
    reason: str = ""
    details: tuple[str, ...] = ()  # the rule's words about each update; () if it has none
    trusts: tuple[float, ...] = ()  # in the updates' members, from a rule that remembers


class Produced(Struct, frozen=True, array_like=True, tag=21):
    manifest: Manifest
    report: WorkReport


class Checked(Struct, frozen=True, array_like=True, tag=22):
    fault: str | None


class Evaluated(Struct, frozen=True, array_like=True, tag=23):
    metrics: dict[str, float]
    seconds: float = 0.0  # in the client's code
    fault: str | None = None  # it raised or returned garbage; the process continues
    postponed: bool = False  # interrupted by a training


class Failed(Struct, frozen=True, array_like=True, tag=24):
    reason: str


Answer = WorkerReady | Produced | Checked | Evaluated | Failed


def frame_of(message: Request | Answer) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "big") + body


def _receive(channel: socket.socket) -> tuple[Request, list[int]]:
    """The next request and its open files; exits when the parent has exited."""
    header, files, _, _ = socket.recv_fds(channel, 4, FILES_MAX)
    data = bytearray(header)
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        part = channel.recv(2**16)
        if not part:
            sys.exit(0)
        data += part
    request: Request = msgspec.msgpack.decode(data[4:], type=Request)
    return request, list(files)


def _aggregation_report(round_: Round, result: AggregationResult) -> WorkReport:
    return WorkReport(
        round=round_,
        weights=result.weights,
        scores=result.scores,
        reason=result.reason,
        details=result.details,
        trusts=result.trusts,
    )


# --- The user's client -----------------------------------------------------------------------


class _Resumed:
    """A client that continues with the local entries of its last training."""

    def __init__(self, client: Client, local: dict[str, Array]) -> None:
        self._client = client
        self._local = local
        self.train = client.train
        self.evaluate = client.evaluate

    def initial_weights(self) -> Weights:
        return {**self._client.initial_weights(), **self._local}


# --- Work ------------------------------------------------------------------------------------

# The signal by which the parent interrupts an evaluation.
POSTPONE = signal.SIGUSR1


class Postponed(BaseException):
    """A training is due. Not an Exception, so that a client's own handlers do not catch it."""


class Runner:
    def __init__(self, setup: SetUp) -> None:
        self._federation = setup.federation
        self._state = Path(setup.state)
        self._training: Training | None = None
        self._local_saved = False
        self._evaluating = False
        self._unsent = Unsent(setup.federation.schema, setup.federation.codec)
        if setup.client is not None:
            schema = setup.federation.schema
            client = load_client(setup.client, Path(setup.project or "."))
            if warning := describe_one_class(class_counts_of(client)):
                sys.stderr.write(f"WARNING: {warning}\n")
            local = read_local(self._state, schema)
            self._local_saved = bool(local)
            self._training = Training(_Resumed(client, local), schema)

    def do(self, request: Request, files: Sequence[int]) -> Answer:
        payloads = [_mapped(file) for file in files]
        match request:
            case TrainTask():
                return self._train(request, payloads[0])
            case EvaluateTask():
                return self._evaluate(payloads[0])
            case AggregateTask(work=work, inputs=inputs, output=output):
                read = dict(zip(inputs, payloads, strict=True)).__getitem__
                with _writing(Path(output), sync=False) as write:
                    (manifest, _), result = aggregate(self._federation, work, read, write)
                return Produced(manifest, _aggregation_report(work.round, result))
            case ValidateTask():
                return Checked(validate(self._federation, payloads[0]))
            case SetUp():
                raise UserError("a worker is set up once")

    @property
    def _client(self) -> Training:
        if self._training is None:
            raise UserError("no client is named in this node's settings: it cannot train")
        return self._training

    def _train(self, task: TrainTask, payload: memoryview) -> Produced:
        base = model_row(self._federation, payload)
        row, metrics = self._client.train(self._unsent.start(base, task.round), task.round)
        with _writing(Path(task.output), sync=True) as write:
            start = Base(base, task.round)
            manifest, _ = update_blob(self._federation, row, task.base, start, write)
        self._unsent.keep(row, base, task.round)
        if self._client.local_changed or not self._local_saved:
            write_local(self._state, self._federation.schema, self._client.local)
            self._local_saved = True
        return Produced(manifest, WorkReport(task.round, _plain(metrics)))

    def postpone(self, _signal: int, _frame: FrameType | None) -> None:
        """Handle POSTPONE. It may arrive too late, and then interrupts nothing."""
        if self._evaluating:
            self._evaluating = False
            raise Postponed

    def _evaluate(self, payload: memoryview) -> Evaluated:
        row = model_row(self._federation, payload)
        started = time.perf_counter()
        metrics: Metrics = {}
        fault, postponed = None, False
        try:
            self._evaluating = True
            metrics = self._client.evaluate(row)
            self._evaluating = False
        except Postponed:
            postponed = True
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            fault = reason_of(error) + missing_variable(error)
            with contextlib.suppress(OSError):  # the log's disk may be full
                sys.stderr.write(f"{fault}\n")
        finally:
            self._evaluating = False
        return Evaluated(_plain(metrics), time.perf_counter() - started, fault, postponed)


def _plain(metrics: Metrics) -> dict[str, float]:
    """At most METRICS_MAX, each name a single line of valid Unicode."""
    return {
        " ".join(name.encode(errors="replace").decode().split())[:METRIC_NAME_CHARACTERS_MAX]: value
        for name, value in islice(metrics.items(), METRICS_MAX)
    }


@contextlib.contextmanager
def _writing(path: Path, *, sync: bool) -> Iterator[Write]:
    """A function that begins to write a payload to this file; at the end it is written."""
    with ThreadPoolExecutor(1) as disk:
        writes: list[Future[None]] = []
        yield lambda payload: writes.append(disk.submit(_write_over, path, payload, sync=sync))
        for write in writes:
            write.result()


def _write_over(path: Path, payload: Payload, *, sync: bool) -> None:
    """Overwrite the file or create it. Truncating it first would throw away its cached pages."""
    with path.open("r+b", buffering=0) if path.exists() else create_file(path) as file:
        written = 0
        while written < len(payload):
            written += file.write(payload[written:])
        file.truncate()
        if sync:
            os.fsync(file.fileno())


def _mapped(file: int) -> memoryview:
    """Valid until the request is answered: then the file may be overwritten."""
    with os.fdopen(file, "rb") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))


# --- The process -----------------------------------------------------------------------------


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    die_with(int(sys.argv[2]))
    os.nice(int(sys.argv[3]))
    signal.signal(POSTPONE, signal.SIG_IGN)
    faulthandler.enable()  # a crash, or the parent's SIGABRT, leaves its traceback in the log
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]

    def report(_: type[BaseException], error: BaseException, __: TracebackType | None) -> None:
        reason = reason_of(error) + missing_variable(error)
        sys.stderr.write(f"{reason}\n")
        with contextlib.suppress(OSError):
            channel.sendall(frame_of(Failed(reason)))

    sys.excepthook = report
    setup, _ = _receive(channel)
    if not isinstance(setup, SetUp):
        raise UserError("a worker is set up first")
    runner = Runner(setup)
    signal.signal(POSTPONE, runner.postpone)
    channel.sendall(frame_of(WorkerReady()))
    if setup.client is None:
        # Loads or compiles for seconds, so that no round has to wait for it.
        federation = setup.federation
        kernels.best(federation.committee.size * federation.schema.values)
    while True:
        request, files = _receive(channel)
        channel.sendall(frame_of(runner.do(request, files)))


if __name__ == "__main__":
    main()
