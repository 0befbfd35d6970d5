"""For tests of the worker: a client whose behaviour depends on the round, and blobs as files."""

import asyncio
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from defl.errors import WorkerFailed
from defl.ids import Digest, Round
from defl.messages import Manifest
from defl.node.work.worker import ChildLimits, Worker
from defl.output import Train, Trained
from defl.pool.weights import Base
from defl.work import model_row, update_blob
from support.builders import Small

SMALL = Small(real=False)
WAIT_S = 30.0

# In each round this client behaves, or misbehaves, in another way.
CLIENT = """
import ctypes, os, subprocess, sys, time
import numpy as np

print("imported", flush=True)

class Client:
    def __init__(self):
        self.trained = 0

    def initial_weights(self):
        return {"point": np.zeros(100, dtype=np.float32)}

    def train(self, weights, round_):
        self.trained += 1
        point = weights["point"] + np.float32(round_)
        if round_ == 2:
            raise ValueError("the labels are missing")
        if round_ == 3:
            os._exit(7)
        if round_ == 4:
            print("about to hang", flush=True)
            while True:
                time.sleep(0.01)
        if round_ == 5:
            return {"point": point[:50]}, {}
        if round_ == 6:
            return {"point": point * np.nan}, {}
        if round_ == 7:
            return None
        if round_ == 8:
            ctypes.string_at(0)
        if round_ == 9:
            sys.exit("enough")
        if round_ == 10:
            os.kill(os.getpid(), 9)
        if round_ == 11:
            raise KeyboardInterrupt
        if round_ == 12:
            return {"point": point}, {"loss": "low"}
        if round_ == 13:
            print("\\x00\\xff" * 200_000, flush=True)
            os.system("echo from a program; echo and its errors >&2")
        if round_ == 14:
            helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            with open("helper.pid.new", "w") as file:
                file.write(str(helper.pid))
            os.rename("helper.pid.new", "helper.pid")
            time.sleep(600)
        if round_ == 15:
            return {"point": point}, {
                "threads": float(os.environ["OPENBLAS_NUM_THREADS"]),
                "nice": float(os.nice(0)),
                "pid": float(os.getpid()),
                "trained": float(self.trained),
            }
        return {"point": point}, {"loss": 1.0 / round_}

    def evaluate(self, weights):
        mean = float(weights["point"].mean())
        weights["point"] *= 0
        return {"mean": mean}

instance = Client()

def factory():
    return Client()

def empty():
    return object()

def broken():
    raise RuntimeError("no GPU here")
"""


def write_client(folder: Path) -> Path:
    """A project folder with the client above."""
    folder.mkdir()
    (folder / "my_client.py").write_text(textwrap.dedent(CLIENT), encoding="utf-8")
    return folder


class Bench:
    """A worker, and blobs as files."""

    def __init__(self, worker: Worker, folder: Path) -> None:
        self.worker = worker
        self.folder = folder
        self.paths: dict[Digest, Path] = {}
        self.base = self.put(SMALL.initial, SMALL.initial_payload)

    def put(self, manifest: Manifest, payload: bytes) -> Digest:
        path = self.folder / manifest.digest.hex()
        path.write_bytes(payload)
        self.paths[manifest.digest] = path
        return manifest.digest

    async def train(self, round_: int = 1) -> np.ndarray[Any, Any]:
        result = await self.worker.run(Train(Round(round_), self.base), self.paths)
        assert isinstance(result, Trained)
        assert result.manifest.base == self.base
        output = self.worker.take_output(result.manifest)
        payload = output.read_bytes()
        base = model_row(SMALL.federation, SMALL.initial_payload)
        start = Base(base, Round(round_))
        assert update_blob(SMALL.federation, base + round_, self.base, start) == (
            result.manifest,
            payload,
        )
        output.unlink()
        return model_row(SMALL.federation, payload)


@asynccontextmanager
async def bench(
    project: Path,
    client: str | None = "my_client:factory",
    client_environment: Sequence[str] = (),
    **options: Any,
) -> AsyncIterator[Bench]:
    folder = project.parent / "state"
    worker = Worker(
        client,
        folder,
        SMALL.federation,
        ChildLimits(**options),
        project=project,
        client_environment=client_environment,
    )
    try:
        yield Bench(worker, project.parent)
    finally:
        await worker.close()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, WAIT_S))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)


async def failure(attempt: Awaitable[object]) -> str:
    with pytest.raises(WorkerFailed) as failed:
        await attempt
    return str(failed.value)


def alive(pid: int) -> bool:
    """Whether a process exists; a zombie does not count."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
