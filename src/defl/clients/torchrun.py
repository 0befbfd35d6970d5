"""A client that trains with several processes under torchrun, on one machine or more.

This is the node's side: it starts torchrun, sends weights to the process of rank 0, and receives
the trained ones. It does not import torch. The processes' side is torchrun_rank.py.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from defl.clients.arrays_file import read_arrays, write_arrays
from defl.clients.protocol import Metrics, Roles
from defl.errors import UserError
from defl.ids import Round
from defl.schema import Weights

FOLDER_VARIABLE = "DEFL_TORCHRUN_FOLDER"  # where rank 0 finds its node's socket and files
SOCKET = "node.sock"
REQUEST_ARRAYS = "request.npz"
ANSWER_ARRAYS = "answer.npz"
ACCEPT_S = 0.5
STOP_S = 10.0


class TorchrunClient:
    """torchrun starts `script` in each process; the script calls `torchrun_rank.serve`.

    `processes` run on this machine. For several machines, give torchrun's own options instead, for
    example ("--nnodes=2", "--node-rank=0", "--nproc-per-node=4", "--master-addr=10.0.0.5"). This
    machine has node rank 0; on the others, start torchrun with the same script yourself.
    """

    def __init__(
        self,
        script: str | Path,
        *,
        processes: int = 1,
        options: Sequence[str] | None = None,
        start_time_max_s: float = 300.0,
    ) -> None:
        self._script = Path(script).resolve()
        if not self._script.is_file():
            raise UserError(f"{script}: no such file; name the script that torchrun starts")
        self._options = options or ("--standalone", f"--nproc-per-node={processes}")
        self._start_time_max_s = start_time_max_s
        self._group: _Group | None = None

    def initial_weights(self) -> Weights:
        self._ask(do="initial")
        return self._answer_arrays()

    def roles(self) -> Roles:
        roles: Roles = self._ask(do="initial")["roles"]
        return roles

    def train(self, weights: Weights, round_: Round, /) -> tuple[Weights, Metrics]:
        metrics: Metrics = self._ask(weights, do="train", round=round_)["metrics"]
        return self._answer_arrays(), metrics

    def evaluate(self, weights: Weights, /) -> Metrics:
        metrics: Metrics = self._ask(weights, do="evaluate", round=0)["metrics"]
        return metrics

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = None

    def _ask(self, weights: Weights | None = None, **request: Any) -> dict[str, Any]:
        if self._group is None:
            self._group = _Group(self._script, self._options, self._start_time_max_s)
        if weights is not None:
            write_arrays(self._group.folder / REQUEST_ARRAYS, weights)
        with contextlib.ExitStack() as after_failure:
            after_failure.callback(self.close)  # after any error the next request needs a new group
            answer = self._group.ask(request)
            after_failure.pop_all()
        return answer

    def _answer_arrays(self) -> Weights:
        if self._group is None:
            raise UserError("the group of processes has ended")
        return read_arrays(self._group.folder / ANSWER_ARRAYS)


class _Group:
    """The running processes; they end when this process ends, even if it is killed."""

    def __init__(self, script: Path, options: Sequence[str], start_time_max_s: float) -> None:
        temporary = tempfile.TemporaryDirectory(prefix="defl-torchrun-")
        self.folder = Path(temporary.name)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(self.folder / SOCKET))
            listening.listen(1)
            command = ("-m", "torch.distributed.run", *options, str(script))
            self._process = subprocess.Popen(  # noqa: S603 - the organisation's own script
                [sys.executable, *command],
                env={**os.environ, FOLDER_VARIABLE: str(self.folder)},
                stdin=subprocess.DEVNULL,
            )
            channels: list[socket.socket] = []
            self.close = weakref.finalize(self, _end, self._process, temporary, channels)
            with contextlib.ExitStack() as after_failure:
                after_failure.callback(self.close)
                self._channel = self._accepted(listening, start_time_max_s)
                after_failure.pop_all()
        channels.append(self._channel)
        self._answers = self._channel.makefile("r", encoding="utf-8")

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with contextlib.suppress(BrokenPipeError):
            self._channel.sendall(json.dumps(request).encode() + b"\n")
        line = self._answers.readline()
        if not line:
            raise self._ended(f"during the request {request['do']!r}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"rank 0 failed:\n{answer['error']}")
        return answer

    def _accepted(self, listening: socket.socket, limit_s: float) -> socket.socket:
        listening.settimeout(ACCEPT_S)
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise self._ended("before it was ready")
            with contextlib.suppress(TimeoutError):
                channel, _ = listening.accept()
                return channel
        raise RuntimeError(f"torchrun's processes were not ready after {limit_s:g} s")

    def _ended(self, when: str) -> RuntimeError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        return RuntimeError(
            f"torchrun ended {when}, with status {self._process.returncode}; the output of its "
            "processes is in worker.log in the node's state folder"
        )


def _end(
    process: "subprocess.Popen[bytes]",
    folder: "tempfile.TemporaryDirectory[str]",
    channels: Sequence[socket.socket],
) -> None:
    """Rank 0 ends the group when its channel closes; processes that do not end are killed."""
    for channel in channels:
        with contextlib.suppress(OSError):
            channel.shutdown(socket.SHUT_RDWR)
        channel.close()
    try:
        process.wait(STOP_S if channels else 0)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    folder.cleanup()
