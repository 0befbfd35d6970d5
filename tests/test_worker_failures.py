"""Crashes, hangs and false results of a child process do not stop the node; and its shutdown."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from defl.ids import Round
from defl.node.work.child import Child
from defl.node.work.worker_process import Produced, WorkerReady
from defl.output import Train, Validate, Validated
from support.builders import name
from support.workers import SMALL, WAIT_S, alive, bench, failure, run, until, write_client

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
    return write_client(tmp_path / "project")


# --- Failures --------------------------------------------------------------------------------


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
        return WorkerReady()

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


# --- Shutdown --------------------------------------------------------------------------------


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
from support.workers import SMALL, Bench
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
