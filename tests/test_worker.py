"""User code and arithmetic in child processes: their inputs and their results."""

import asyncio
import os
import textwrap
from pathlib import Path

import numpy as np
import pytest

from defl.clients.protocol import schema_of
from defl.ids import NodeId, Round
from defl.node.work.local_entries import read_local
from defl.node.work.worker import Worker
from defl.node.work.worker_process import WorkReport
from defl.output import Aggregate, Aggregated, Reference, Train, Trained, Validate, Validated
from defl.pool.weights import Base, decode
from defl.work import aggregate, model_blob, model_row, validate
from support.builders import name, with_charter
from support.workers import SMALL, bench, failure, run, write_client


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_client(tmp_path / "project")


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
            work = Aggregate(Round(1), b.base, tuple(references), name("closing"), 1)
            done = await b.worker.run(work, b.paths)
            (manifest, payload), judged = aggregate(SMALL.federation, work, blobs.__getitem__)
            assert done == Aggregated(Round(1), manifest)
            path = b.worker.take_output(done.manifest)
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


def test_local_entries_that_training_left_alone_are_written_once(project: Path) -> None:
    (project / "adapting.py").write_text(
        textwrap.dedent(
            """
            import numpy as np

            class Client:
                def initial_weights(self):
                    return {"w": np.zeros(100, np.float32), "base": np.ones(2, np.int64)}

                def train(self, weights, round_):
                    return {**weights, "base": weights["base"] * (5 if round_ == 3 else 1)}, {}

                def evaluate(self, weights):
                    return {}
            """
        ),
        encoding="utf-8",
    )
    schema = schema_of({"w": np.zeros(100, np.float32), "base": np.ones(2, np.int64)})
    federation = with_charter(SMALL.federation, schema=schema)

    async def scenario() -> None:
        initial, payload = model_blob(federation, np.zeros(100, np.float32))
        path, state = project / "base", project.parent / "state"
        path.write_bytes(payload)
        file = state / "client-local.npz"

        async def written(worker: Worker, round_: int) -> int:
            await worker.run(Train(Round(round_), initial.digest), {initial.digest: path})
            return file.stat().st_ino  # another file replaces it

        worker = Worker("adapting:Client", state, federation, project=project)
        first = await written(worker, 1)
        assert await written(worker, 2) == first
        changed = await written(worker, 3)
        assert changed != first
        assert read_local(file, schema)["base"].tolist() == [5, 5]
        await worker.close()
        worker = Worker("adapting:Client", state, federation, project=project)
        assert await written(worker, 4) == changed
        await worker.close()
        file.write_bytes(b"PK rubbish")
        worker = Worker("adapting:Client", state, federation, project=project)
        await written(worker, 5)
        assert read_local(file, schema)["base"].tolist() == [1, 1]
        await worker.close()

    run(scenario())


def test_a_client_trains_on_from_what_its_masked_updates_have_not_sent(project: Path) -> None:
    federation = with_charter(SMALL.federation, codec="int8_masked")
    zero = Base(np.zeros(100, dtype=np.float32), Round(21))

    async def sent(worker: Worker, round_: int, base: Path) -> set[float]:
        """The values of the round's update that are not the base's."""
        work = Train(Round(round_), SMALL.initial.digest)
        trained = await worker.run(work, {SMALL.initial.digest: base})
        assert isinstance(trained, Trained)
        payload = worker.take_output(trained.manifest).read_bytes()
        start = zero._replace(round=Round(round_))
        return set(decode(payload, federation.schema, federation.codec, start).tolist()) - {0.0}

    async def scenario() -> None:
        base = project.parent / "base"
        base.write_bytes(SMALL.initial_payload)
        folder = project.parent / "state"
        first = Worker("my_client:factory", folder, federation, project=project)
        assert await sent(first, 20, base) == {20.0}
        assert await sent(first, 21, base) == {20.0 + 21.0}
        await first.close()
        second = Worker("my_client:factory", folder, federation, project=project)
        assert await sent(second, 22, base) == {22.0}, "lost with the process"
        await second.close()

    run(scenario())
