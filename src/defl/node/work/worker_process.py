"""The child's side of a worker, and the words that both sides speak.

One process with one socket: a request comes in with open files, the answer goes out, what was made
is a file. It runs either the user's client or our own arithmetic, never both: a library that the
user loads may change how floats are rounded, and every node's aggregate must be the same bits.

Whatever goes wrong ends the process; the parent starts another one. What the client prints goes
where the parent sends standard output, which is not the socket.
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
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from types import FrameType, TracebackType

import msgspec
from msgspec import Struct

import defl
from defl.aggregation import kernels
from defl.clients.protocol import Client, Metrics, Training
from defl.committee import Federation
from defl.errors import DeflError, UserError
from defl.ids import NO_DIGEST, Digest, Round
from defl.messages import Manifest
from defl.node.work.local_entries import read_local, write_local
from defl.node.work.orphans import die_with
from defl.node.work.user_code import load_client
from defl.output import Aggregate
from defl.pool.weights import FP32, Payload, encode, manifest_of
from defl.schema import Array, Row, Weights
from defl.work import aggregated, model_row, validate

# The longest answer is a manifest of the most chunks, or a traceback.
FRAME_BYTES_MAX = 2**20
REASON_CHARACTERS_MAX = 8000
# A base and an update of every member.
FILES_MAX = 128
# Metrics are for people: a client that returns more is cut short, so that status stays readable.
METRICS_MAX = 32
METRIC_NAME_CHARACTERS_MAX = 64

# --- What is said ----------------------------------------------------------------------------


class SetUp(Struct, frozen=True, array_like=True, tag=1):
    federation: Federation
    client: str | None  # "module:attribute"; None for a process that does our own arithmetic
    project: str | None
    state: str  # the file in which the client's local entries outlive the process


class TrainTask(Struct, frozen=True, array_like=True, tag=2):
    round: Round
    base: Digest
    made: str  # where to write the payload


class AggregateTask(Struct, frozen=True, array_like=True, tag=3):
    work: Aggregate
    inputs: tuple[Digest, ...]  # which blob each of the open files is
    made: str


class ValidateTask(Struct, frozen=True, array_like=True, tag=4):
    pass


class EvaluateTask(Struct, frozen=True, array_like=True, tag=5):
    pass


Request = SetUp | TrainTask | AggregateTask | ValidateTask | EvaluateTask


class Ready(Struct, frozen=True, array_like=True, tag=20):
    pass


class WorkReport(Struct, frozen=True, array_like=True):
    """What a person may want to know of a piece of work."""

    round: Round
    metrics: dict[str, float] = {}
    weights: tuple[float, ...] = ()  # of each update, in the order of the work's references
    scores: tuple[float, ...] = ()
    reason: str = ""


class Made(Struct, frozen=True, array_like=True, tag=21):
    manifest: Manifest
    report: WorkReport


class Checked(Struct, frozen=True, array_like=True, tag=22):
    fault: str | None


class Evaluated(Struct, frozen=True, array_like=True, tag=23):
    metrics: dict[str, float]
    seconds: float = 0.0  # that the client took
    fault: str | None = None  # it raised or returned rubbish; the process goes on
    postponed: bool = False  # interrupted, since a training is due


class Failed(Struct, frozen=True, array_like=True, tag=24):
    reason: str


Answer = Ready | Made | Checked | Evaluated | Failed


def frame_of(message: Request | Answer) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "big") + body


def _receive(channel: socket.socket) -> tuple[Request, list[int]]:
    """The next request and its open files; the parent is gone when there is none."""
    header, files, _, _ = socket.recv_fds(channel, 4, FILES_MAX)
    data = bytearray(header)
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        part = channel.recv(2**16)
        if not part:
            sys.exit(0)
        data += part
    request: Request = msgspec.msgpack.decode(data[4:], type=Request)
    return request, list(files)


# --- The user's client -----------------------------------------------------------------------


class _Resumed:
    """A client whose local entries are those of the last training, not its initial ones."""

    def __init__(self, client: Client, local: dict[str, Array]) -> None:
        self._client = client
        self._local = local
        self.train = client.train
        self.evaluate = client.evaluate

    def initial_weights(self) -> Weights:
        return {**self._client.initial_weights(), **self._local}


# --- Work ------------------------------------------------------------------------------------

# By this the parent interrupts an evaluation.
POSTPONE = signal.SIGUSR1


class Postponed(BaseException):
    """A training is due. Not an Exception, so that a client's own handlers let it pass."""


class Runner:
    def __init__(self, setup: SetUp) -> None:
        self._federation = setup.federation
        self._state = Path(setup.state)
        self._training: Training | None = None
        self._evaluating = False
        if setup.client is not None:
            schema = setup.federation.schema
            client = load_client(setup.client, Path(setup.project or "."))
            self._training = Training(_Resumed(client, read_local(self._state, schema)), schema)

    def do(self, request: Request, files: Sequence[int]) -> Answer:
        payloads = [_mapped(file) for file in files]
        match request:
            case TrainTask():
                return self._train(request, payloads[0])
            case EvaluateTask():
                return self._evaluate(payloads[0])
            case AggregateTask(work=work, inputs=inputs, made=made):
                read = dict(zip(inputs, payloads, strict=True)).__getitem__
                result = aggregated(self._federation, work, read)
                manifest = self._write_blob(Path(made), result.values, FP32, NO_DIGEST, sync=False)
                report = WorkReport(work.round, {}, result.weights, result.scores, result.reason)
                return Made(manifest, report)
            case ValidateTask():
                return Checked(validate(self._federation, payloads[0]))
            case SetUp():
                raise UserError("a worker is set up once")

    @property
    def _client(self) -> Training:
        if self._training is None:
            raise UserError("no client is named in this node's settings: it cannot train")
        return self._training

    def _train(self, task: TrainTask, payload: memoryview) -> Made:
        base = model_row(self._federation, payload)
        row, metrics = self._client.train(base, task.round)
        codec = self._federation.codec
        manifest = self._write_blob(Path(task.made), row, codec, task.base, base, sync=True)
        write_local(self._state, self._federation.schema, self._client.local)
        return Made(manifest, WorkReport(task.round, _plain(metrics)))

    def _write_blob(
        self,
        path: Path,
        row: Row,
        codec: str,
        base: Digest,
        base_row: Row | None = None,
        *,
        sync: bool,
    ) -> Manifest:
        """The row as a blob in this file. The disk works while the bytes are hashed."""
        schema = self._federation.schema
        payload = encode(row, schema, codec, base_row)
        with ThreadPoolExecutor(1) as disk:
            writing = disk.submit(_write_over, path, payload, sync=sync)
            manifest = manifest_of(payload, schema, codec, self._federation.chunk_bytes, base)
            writing.result()
        return manifest

    def postpone(self, _signal: int, _frame: FrameType | None) -> None:
        """Handles POSTPONE; it may come too late, and then nothing is interrupted."""
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
            fault = reason_of(error)
            with contextlib.suppress(OSError):  # the log's disk may be full
                sys.stderr.write(f"{fault}\n")
        finally:
            self._evaluating = False
        return Evaluated(_plain(metrics), time.perf_counter() - started, fault, postponed)


def _plain(metrics: Metrics) -> dict[str, float]:
    """Few, and each name on one line that can be encoded."""
    return {
        " ".join(name.encode(errors="replace").decode().split())[:METRIC_NAME_CHARACTERS_MAX]: value
        for name, value in islice(metrics.items(), METRICS_MAX)
    }


def _write_over(path: Path, payload: Payload, *, sync: bool) -> None:
    """Into the file that is there, or a new one; a file that is emptied first would lose the
    memory that its bytes have."""
    with path.open("r+b" if path.exists() else "wb", buffering=0) as file:
        written = 0
        while written < len(payload):
            written += file.write(payload[written:])
        file.truncate()
        if sync:
            os.fsync(file.fileno())


def _mapped(file: int) -> memoryview:
    """Only until the request is answered: the file may be written over then."""
    with os.fdopen(file, "rb") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))


# --- The process -----------------------------------------------------------------------------


def reason_of(error: BaseException) -> str:
    """The error as its author wants to see it: without the frames that are ours."""
    described = traceback.TracebackException.from_exception(error)
    ours = str(Path(defl.__file__).parent)
    shown: traceback.TracebackException | None = described
    while shown is not None:
        frames = [
            frame for frame in shown.stack if not frame.filename.startswith((ours, "<frozen"))
        ]
        shown.stack = traceback.StackSummary.from_list(frames)
        shown = shown.__cause__ or shown.__context__
    if described.stack:
        text = "".join(described.format())
    elif isinstance(error, DeflError):
        text = str(error)
    else:
        text = "".join(described.format_exception_only())
    return text.strip()[-REASON_CHARACTERS_MAX:]


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    die_with(int(sys.argv[2]))
    os.nice(int(sys.argv[3]))
    signal.signal(POSTPONE, signal.SIG_IGN)
    faulthandler.enable()  # a crash, or the parent's SIGABRT, leaves its traceback in the log
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]

    def report(_: type[BaseException], error: BaseException, __: TracebackType | None) -> None:
        reason = reason_of(error)
        sys.stderr.write(f"{reason}\n")
        with contextlib.suppress(OSError):
            channel.sendall(frame_of(Failed(reason)))

    sys.excepthook = report
    setup, _ = _receive(channel)
    if not isinstance(setup, SetUp):
        raise UserError("a worker is set up first")
    runner = Runner(setup)
    signal.signal(POSTPONE, runner.postpone)
    channel.sendall(frame_of(Ready()))
    if setup.client is None:
        kernels.best()  # loads, the first time compiles, for seconds that no round should wait
    while True:
        request, files = _receive(channel)
        channel.sendall(frame_of(runner.do(request, files)))


if __name__ == "__main__":
    main()
