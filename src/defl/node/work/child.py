"""One child process that does one request at a time, and every way in which it can fail.

A child is started on demand. If it crashes, hangs or sends a malformed answer, it is killed with
all its descendants, and the reason tells the user what to fix.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from defl.errors import WorkerFailed
from defl.node.store.private import privately
from defl.node.work.user_code import LOAD_S
from defl.node.work.worker_process import (
    FRAME_BYTES_MAX,
    Answer,
    Failed,
    Request,
    SetUp,
    WorkerReady,
    frame_of,
)

# How much of the log's tail a reason quotes.
LOG_QUOTE_BYTES = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildLimits:
    start_s: float = LOAD_S
    client_s: float = 3600.0  # one training
    evaluation_s: float = 60.0  # one evaluation
    own_s: float = 600.0  # one check or aggregation
    stop_s: float = 2.0  # between SIGTERM and SIGKILL
    threads: int = 1  # of BLAS in the client, unless the environment says otherwise
    niceness: int = 5  # of the client: votes have priority
    log_bytes_max: int = 4 * 2**20  # of the client's output; one older part is kept beside it


class Child:
    """One process that does one request at a time; started on demand."""

    def __init__(
        self,
        setup: SetUp,
        log: Path,
        environment: Mapping[str, str],
        limits: ChildLimits,
        niceness: int,
    ) -> None:
        self._setup = setup
        self._log = log
        self._environment = environment
        self._limits = limits
        self._niceness = niceness
        self._busy = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._channel: socket.socket | None = None
        self._log_start = 0
        self._ready = False
        self._closed = False
        self.starts = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        async with self._busy:
            await self._ensure_started()

    async def ask(
        self, request: Request, files: Sequence[int], *, doing: str, limit_s: float
    ) -> Answer:
        """The child's answer. If there is none, kill the child; WorkerFailed gives the reason."""
        async with self._busy:
            await self._ensure_started()
            return await self._exchange(request, files, doing, limit_s)

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the process itself, if it is running and set up."""
        if self._ready and self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def reject(self, reason: str) -> WorkerFailed:
        """Kill a child whose answer is invalid: its next one could not be trusted either."""
        async with self._busy:
            await self._end()
        return WorkerFailed(reason)

    async def close(self) -> None:
        """Kill it, even during a request, and never start another."""
        self._closed = True
        if self._process is not None:
            await self._stop(self._process)
        async with self._busy:  # after the task that awaits its answer has seen its end
            await self._end()

    async def _ensure_started(self) -> None:
        if self._process is not None and self._process.returncode is not None:
            await self._end()  # it died while idle
        if self._process is None and not self._closed:
            self._cut_log()
            await self._spawn()
            answer = await self._exchange(self._setup, (), "starting", self._limits.start_s)
            if not isinstance(answer, WorkerReady):
                await self._end()
                raise WorkerFailed(f"the worker answered its set-up with a {type(answer).__name__}")
            self._ready = True
        if self._closed:
            raise WorkerFailed("the worker is closed")

    async def _spawn(self) -> None:
        try:
            ours, childs = socket.socketpair()
        except OSError as error:
            raise WorkerFailed(f"the worker cannot be started: {error}") from error
        ours.setblocking(False)
        try:
            with childs, open(self._log, "ab", opener=privately) as log:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "defl.node.work.worker_process"),
                    *(str(childs.fileno()), str(os.getpid()), str(self._niceness)),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    cwd=self._setup.project,
                    pass_fds=(childs.fileno(),),
                    start_new_session=True,
                )
            self._channel = ours
            self.starts += 1
        except OSError as error:
            raise WorkerFailed(f"the worker cannot be started: {error}") from error
        finally:
            if self._channel is not ours:
                ours.close()

    async def _exchange(
        self, request: Request, files: Sequence[int], doing: str, limit_s: float
    ) -> Answer:
        self._cut_log()
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        answer: Answer | None = None
        try:
            async with asyncio.timeout(limit_s):
                answer = await self._send_and_receive(request, files)
        except TimeoutError:
            where = await self._abort()
            raise WorkerFailed(
                f"{doing} took longer than {limit_s:g} s and was ended{where}"
            ) from None
        except (OSError, EOFError):
            raise WorkerFailed(await self._death(doing)) from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise WorkerFailed(f"{doing}: the worker's answer is malformed: {error}") from error
        finally:
            if answer is None or isinstance(answer, Failed):
                await self._end()
        if isinstance(answer, Failed):
            raise WorkerFailed(f"{doing} failed:\n{answer.reason}")
        return answer

    async def _send_and_receive(self, request: Request, files: Sequence[int]) -> Answer:
        loop, channel = asyncio.get_running_loop(), self._channel
        if channel is None:
            raise EOFError
        frame = frame_of(request)
        # The child is idle and has read everything, so the first bytes never block.
        sent = socket.send_fds(channel, [frame[:4]], list(files)) if files else 0
        await loop.sock_sendall(channel, frame[sent:])
        size = int.from_bytes(await self._read(channel, 4), "big")
        if size > FRAME_BYTES_MAX:
            raise msgspec.ValidationError(f"an answer of {size} bytes")
        body = await self._read(channel, size)
        answer: Answer = msgspec.msgpack.decode(body, type=Answer)
        return answer

    async def _read(self, channel: socket.socket, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = await asyncio.get_running_loop().sock_recv(channel, size - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    # --- Ending it -------------------------------------------------------------------------

    async def _death(self, doing: str) -> str:
        """Why the child closed the channel."""
        process = self._process
        if process is None or self._closed:
            return f"{doing}: the worker was closed"
        code = await self._exit_code(process)
        if code is None:
            how = "closed its channel"
        elif code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"exited with status {code}"
        return f"the worker {how} while {doing}{self._log_end()}"

    async def _abort(self) -> str:
        """Abort it, so that it writes a traceback of where it was to its log."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGABRT)
            await self._exit_code(self._process)
        return self._log_end()

    async def _exit_code(self, process: asyncio.subprocess.Process) -> int | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.stop_s):
                return await process.wait()
        return None

    async def _end(self) -> None:
        process, self._process = self._process, None
        self._ready = False
        channel, self._channel = self._channel, None
        try:
            if process is not None:
                await self._stop(process)
        finally:
            if channel is not None:
                channel.close()

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is not None:
            return
        try:
            _signal_group(process, signal.SIGTERM)
            await self._exit_code(process)
        finally:
            if process.returncode is None:
                _signal_group(process, signal.SIGKILL)
                await process.wait()

    # --- Its log ---------------------------------------------------------------------------

    def _cut_log(self) -> None:
        """The child has the file open, so copy and truncate it instead of renaming it."""
        if self._log.exists() and self._log.stat().st_size > self._limits.log_bytes_max:
            shutil.copy(self._log, self._log.with_name(f"{self._log.name}.1"))
            os.truncate(self._log, 0)

    def _log_end(self) -> str:
        try:
            with self._log.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(min(self._log_start, size), size - LOG_QUOTE_BYTES))
                text = log.read().decode(errors="replace").strip()
        except OSError as error:
            return f"; its log cannot be read: {error}"
        return f"; the end of its log:\n{text}" if text else ""


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Signal the child and its descendants. The group id is not reused until it is reaped."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
