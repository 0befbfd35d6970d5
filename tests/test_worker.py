"""User code in a child process: its results, and the failures that must not stop the node."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from defl.clients.protocol import schema_of
from defl.errors import WorkerFailed
from defl.ids import Digest, NodeId, Round
from defl.messages import Manifest
from defl.node.work.child import Child
from defl.node.work.worker import ChildLimits, Worker
from defl.node.work.worker_process import Produced, Ready, WorkReport
from defl.output import Aggregate, Aggregated, Reference, Train, Trained, Validate, Validated
from defl.work import aggregate, model_blob, model_row, update_blob, validate
from support.builders import Small, name, with_charter

SMALL = Small(real=False)
WAIT_S = 30.0

# What the client does depends on the round that it is asked for.
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
RUIN = [
    (2, 'raise ValueError("the labels are missing")\nValueError: the labels are missing'),
    (3, "the worker exited with status 7 while training for round 3"),
    (5, "entry 'point' with shape (50,), the schema says (100,)"),
    (6, "entry 'point' with NaN, infinity"),
    (7, "train returned nothing; end it with `return weights, metrics`"),
    (8, "the worker was killed by SIGSEGV while training for round 8"),
    (9, "the worker exited with status 1 while training for round 9"),
    (10, "the worker was killed by SIGKILL"),
    (11, "KeyboardInterrupt"),
    (12, "metric 'loss' as a str; make it a number"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
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
        output = self.worker.take_output(result)
        payload = output.read_bytes()
        base = model_row(SMALL.federation, SMALL.initial_payload)
        assert update_blob(SMALL.federation, base + round_, self.base, base) == (
            result.manifest,
            payload,
        )
        output.unlink()
        return model_row(SMALL.federation, payload)


@asynccontextmanager
async def bench(
    project: Path, client: str | None = "my_client:factory", **options: Any
) -> AsyncIterator[Bench]:
    folder = project.parent / "state"
    limits = ChildLimits(**options)
    worker = Worker(client, folder, SMALL.federation, limits, project=project)
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
    """A zombie that waits for its new parent counts as gone."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


# --- Work ------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", ["my_client:factory", "my_client:Client", "my_client:instance"])
def test_a_client_trains_from_the_given_model(project: Path, client: str) -> None:
    async def scenario() -> None:
        async with bench(project, client) as b:
            await b.worker.start()
            assert (await b.train(1) == 1).all()
            assert (await b.train(20) == 20).all()
            assert b.worker.training == WorkReport(Round(20), {"loss": 0.05})
            assert b.worker.starts == 1
            assert b.worker.last_error is None

    run(scenario())


def test_the_worker_checks_and_aggregates_like_the_pure_functions(project: Path) -> None:
    async def scenario() -> None:
        async with bench(project) as b:
            good, bad = SMALL.blob(1), (SMALL.blob(2)[0], np.full(100, np.inf, "<f4").tobytes())
            for manifest, payload in (good, bad):
                b.put(manifest, payload)
                fault = validate(SMALL.federation, payload)
                result = await b.worker.run(Validate(manifest), b.paths.__getitem__)
                assert result == Validated(manifest.digest, fault)
            assert isinstance(result, Validated)
            assert "infinity" in str(result.fault)

            references = []
            blobs = {SMALL.initial.digest: SMALL.initial_payload}
            for author in range(3):
                manifest, payload = SMALL.blob(author)
                b.put(manifest, payload)
                blobs[manifest.digest] = payload
                references.append(
                    Reference(NodeId(author), manifest.digest, manifest.size, b.base, b"", b"")
                )
            work = Aggregate(Round(1), b.base, tuple(references), name("closing"))
            done = await b.worker.run(work, b.paths)
            (manifest, payload), judged = aggregate(SMALL.federation, work, blobs.__getitem__)
            assert done == Aggregated(Round(1), manifest)
            path = b.worker.take_output(done)
            assert path.read_bytes() == payload
            assert b.worker.aggregation is not None
            assert b.worker.aggregation.weights == judged.weights

            evaluated = await b.worker.evaluate(path)
            expected = float(model_row(SMALL.federation, payload).mean())
            assert evaluated.metrics == pytest.approx({"mean": expected})
            assert path.read_bytes() == payload  # whatever the client did to its arrays

    run(scenario())


def test_an_update_is_checked_while_the_client_trains(project: Path) -> None:
    async def scenario() -> None:
        async with bench(project) as b:
            await b.worker.start()
            training = asyncio.create_task(b.train(4))
            manifest, payload = SMALL.blob(1)
            b.put(manifest, payload)
            result = await b.worker.run(Validate(manifest), b.paths)
            assert result == Validated(manifest.digest, None)
            assert not training.done()
            await b.worker.close()
            assert "the worker was closed" in await failure(training)

    run(scenario())


def test_an_input_dropped_during_the_work_is_still_read(project: Path) -> None:
    async def scenario() -> None:
        async with bench(project) as b:
            training = asyncio.create_task(b.train(1))
            await asyncio.sleep(0)  # it has opened its input and waits for the child to start
            b.paths[b.base].unlink()
            assert (await training == 1).all()

    run(scenario())


def test_client_output_goes_to_the_worker_log(project: Path) -> None:
    async def scenario() -> None:
        async with bench(project, log_bytes_max=100_000) as b:
            assert (await b.train(13) == 13).all()
            log = project.parent / "state" / "worker.log"
            text = log.read_text(encoding="utf-8", errors="replace")
            assert "imported" in text
            assert "from a program" in text
            assert "and its errors" in text
            await b.train(1)
            assert log.stat().st_size < 100_000

    run(scenario())


def test_the_client_has_few_threads_and_yields_to_the_node(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(variable, raising=False)

    async def scenario() -> None:
        async with bench(project, threads=2, niceness=3) as b:
            await b.train(15)
            assert b.worker.training is not None
            assert b.worker.training.metrics["threads"] == 2
            assert b.worker.training.metrics["nice"] == os.nice(0) + 3

    run(scenario())


def test_local_entries_outlive_the_process(project: Path) -> None:
    (project / "counting.py").write_text(
        textwrap.dedent(
            """
            import os
            import numpy as np

            class Client:
                def initial_weights(self):
                    return {"w": np.zeros(100, np.float32), "file": np.zeros(2, np.int64)}

                def train(self, weights, round_):
                    if round_ == 3:
                        os._exit(1)
                    weights["file"] += 1
                    return weights, {"steps": float(weights["file"][0])}

                def evaluate(self, weights):
                    return {}
            """
        ),
        encoding="utf-8",
    )
    schema = schema_of({"w": np.zeros(100, np.float32), "file": np.zeros(2, np.int64)})
    federation = with_charter(SMALL.federation, schema=schema)

    async def scenario() -> None:
        initial, payload = model_blob(federation, np.zeros(100, np.float32))
        path = project / "base"
        path.write_bytes(payload)
        inputs = {initial.digest: path}
        state = project.parent / "state"
        steps = []
        for _ in range(2):
            worker = Worker("counting:Client", state, federation, project=project)
            for round_ in (1, 2):
                await worker.run(Train(Round(round_), initial.digest), inputs)
                assert worker.training is not None
                steps.append(worker.training.metrics["steps"])
            await failure(worker.run(Train(Round(3), initial.digest), inputs))
            await worker.close()
        assert steps == [1, 2, 3, 4]
        (state / "client-local.npz").write_bytes(b"PK rubbish")
        worker = Worker("counting:Client", state, federation, project=project)
        await worker.run(Train(Round(1), initial.digest), inputs)
        assert worker.training is not None
        assert worker.training.metrics["steps"] == 1
        await worker.close()

    run(scenario())


# --- Failing ---------------------------------------------------------------------------------


def test_a_failing_client_is_reported_and_the_next_work_succeeds(project: Path) -> None:
    async def scenario() -> None:
        async with bench(project) as b:
            for starts, (round_, reason) in enumerate(RUIN, start=1):
                reason_given = await failure(b.train(round_))
                assert reason in reason_given
                assert b.worker.last_error == reason_given
                assert b.worker.starts == starts
            assert (await b.train(1) == 1).all()
            assert list((project.parent / "state" / "work").iterdir()) == []

    run(scenario())


def test_the_reason_is_the_users_traceback_without_our_frames(project: Path) -> None:
    async def scenario() -> None:
        async with bench(project) as b:
            reason_given = await failure(b.train(2))
            assert f'File "{project / "my_client.py"}"' in reason_given
            assert "worker_process.py" not in reason_given
            assert "clients/protocol.py" not in reason_given

    run(scenario())


def test_a_hanging_client_is_killed_and_the_reason_shows_where_it_hung(project: Path) -> None:
    async def scenario() -> None:
        async with bench(project, client_s=0.5) as b:
            await b.worker.start()
            pids = b.worker.pids
            reason_given = await failure(b.train(4))
            assert "training for round 4 took longer than 0.5 s" in reason_given
            assert "about to hang" in reason_given
            assert 'my_client.py", line' in reason_given
            assert not alive(pids[0])
            assert (await b.train(1) == 1).all()

    run(scenario())


@pytest.mark.parametrize(
    ("client", "reason"),
    [
        ("my_client:broken", "RuntimeError: no GPU here"),
        ("my_client:missing", "has no 'missing'"),
        ("my_client:empty", "has no initial_weights, train, evaluate"),
        ("no_such_module:client", "no module named 'no_such_module'"),
        (None, "no client is named"),
    ],
)
def test_a_client_that_cannot_be_loaded_is_reported_and_checks_continue(
    project: Path, client: str | None, reason: str
) -> None:
    async def scenario() -> None:
        async with bench(project, client) as b:
            assert reason in await failure(b.train(1))
            assert reason in str(b.worker.last_error)
            manifest, payload = SMALL.blob(1)
            b.put(manifest, payload)
            assert await b.worker.run(Validate(manifest), b.paths) == Validated(
                manifest.digest, None
            )

    run(scenario())


def test_a_repaired_client_is_used_at_once(project: Path) -> None:
    async def scenario() -> None:
        path = project / "my_client.py"
        good = path.read_text(encoding="utf-8")
        path.write_text("def factory(:", encoding="utf-8")
        async with bench(project) as b:
            assert "SyntaxError" in await failure(b.worker.start())
            path.write_text(good, encoding="utf-8")
            assert (await b.train(1) == 1).all()

    run(scenario())


def test_a_child_that_died_while_idle_costs_no_work(project: Path) -> None:
    async def scenario() -> None:
        async with bench(project) as b:
            await b.worker.start()
            for pid in b.worker.pids:
                os.kill(pid, signal.SIGKILL)
            child = b.worker._client
            assert child._process is not None
            await child._process.wait()
            assert (await b.train(1) == 1).all()
            assert b.worker.starts == 2

    run(scenario())


@pytest.mark.parametrize("lie", ["another base", "another size", "no file", "another answer"])
def test_a_result_that_differs_from_its_manifest_is_rejected(
    project: Path, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    honest = Child._exchange

    async def lying(self: Child, *arguments: Any) -> Any:
        answer = await honest(self, *arguments)
        if not isinstance(answer, Produced):
            return answer
        if lie == "another base":
            return Produced(replace(answer.manifest, base=name("another")), answer.report)
        if lie == "another size":
            with next((project.parent / "state" / "work").iterdir()).open("ab") as output:
                output.write(b"more")
            return answer
        if lie == "no file":
            next((project.parent / "state" / "work").iterdir()).unlink()
            return answer
        return Ready()

    async def scenario() -> None:
        async with bench(project) as b:
            with monkeypatch.context() as patched:
                patched.setattr(Child, "_exchange", lying)
                assert "not what the worker says" in await failure(b.train(1))
            assert list((project.parent / "state" / "work").iterdir()) == []
            await b.train(1)
            assert b.worker.starts == 2

    run(scenario())


def test_a_malformed_answer_fails_the_work(project: Path) -> None:
    (project / "rude.py").write_text(
        textwrap.dedent(
            """
            import os, sys
            os.write(int(sys.argv[1]), b"\\x00\\x00\\x00\\x02\\xc1\\xc1")
            """
        ),
        encoding="utf-8",
    )

    async def scenario() -> None:
        async with bench(project, "rude:client") as b:
            assert "malformed" in await failure(b.train(1))

    run(scenario())


def test_a_missing_input_fails_the_work_with_a_reason(project: Path) -> None:
    async def scenario() -> None:
        async with bench(project) as b:
            b.paths[b.base].unlink()
            assert "cannot be opened" in await failure(b.train(1))
            assert "cannot be opened" in await failure(
                b.worker.run(Train(Round(1), name("unknown")), b.paths)
            )

    run(scenario())


# --- Ending ----------------------------------------------------------------------------------


def test_close_kills_the_children_and_their_descendants(project: Path) -> None:
    async def scenario() -> None:
        async with bench(project) as b:
            training = asyncio.create_task(b.train(14))
            await until((project / "helper.pid").exists)
            helper = int((project / "helper.pid").read_text(encoding="utf-8"))
            pids = b.worker.pids
            assert alive(helper)
            await b.worker.close()
            await failure(training)
            assert not any(alive(pid) for pid in pids)
            await until(lambda: not alive(helper))
            assert "closed" in await failure(b.train(1))

    run(scenario())


def test_the_worker_survives_cancelled_work(project: Path) -> None:
    async def scenario() -> None:
        async with bench(project) as b:
            await b.worker.start()
            training = asyncio.create_task(b.train(4))
            log = project.parent / "state" / "worker.log"
            await until(lambda: "about to hang" in log.read_text(encoding="utf-8"))
            training.cancel()
            with pytest.raises(asyncio.CancelledError):
                await training
            assert (await b.train(1) == 1).all()

    run(scenario())


PARENT = """
import asyncio, sys
from pathlib import Path
from test_worker import SMALL, Bench
from defl.node.work.worker import Worker

async def main():
    folder = Path(sys.argv[1])
    worker = Worker("my_client:factory", folder / "state", SMALL.federation,
                    project=folder / "project")
    await worker.start()
    training = asyncio.create_task(Bench(worker, folder).train(4))
    log = folder / "state" / "worker.log"
    while "about to hang" not in log.read_text():
        await asyncio.sleep(0.01)
    print(*worker.pids, flush=True)
    await training

asyncio.run(main())
"""


def test_children_do_not_outlive_a_killed_parent(project: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(project.parent)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert all(alive(pid) for pid in pids)
    parent.kill()
    parent.communicate(timeout=WAIT_S)

    deadline = time.monotonic() + WAIT_S
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not any(alive(pid) for pid in pids)
