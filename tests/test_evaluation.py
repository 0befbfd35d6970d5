"""A client's evaluation of each model: it is reported, and never blocks training."""

import asyncio
import io
import json
import textwrap
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from defl.errors import LocalFault
from defl.ids import Digest, Round
from defl.node.report.history import RoundHistory
from defl.node.work.evaluation import Evaluations
from defl.node.work.worker import ChildLimits, Worker
from defl.node.work.worker_process import METRICS_MAX
from defl.output import Train, Trained
from support.builders import Small
from support.logs import log_to

SMALL = Small(real=False)
NAMES = ["a", "b", "c", "d"]
WAIT_S = 30.0
CLIENT = """
import os, time
import numpy as np

class client:
    calls = 0

    def initial_weights(self):
        return {{"point": np.zeros(100, dtype=np.float32)}}

    def train(self, weights, round_):
        return {{"point": weights["point"] + 1}}, {{"pid": os.getpid()}}

    def evaluate(self, weights):
        self.calls += 1
        {evaluate}
"""


class EvaluationBench:
    """A worker with its evaluations, one model, and the log."""

    def __init__(self, folder: Path, evaluate: str, evaluation_s: float) -> None:
        text = CLIENT.format(evaluate=textwrap.indent(evaluate, " " * 8).strip())
        (folder / "my_client.py").write_text(text, encoding="utf-8")
        self.model = folder / "model"
        self.model.write_bytes(SMALL.initial_payload)
        self.stream = io.StringIO()
        self.history = RoundHistory(NAMES, SMALL.federation.committee.members)
        limits = ChildLimits(evaluation_s=evaluation_s)
        self.worker = Worker(
            "my_client:client", folder / "state", SMALL.federation, limits, project=folder
        )
        log = log_to(self.stream)
        self.evaluations = Evaluations(self.worker, self, self.history, log)

    def path(self, digest: Digest) -> Path:
        if digest != SMALL.initial.digest:
            raise LocalFault("retention was quicker")
        return self.model

    def reading(self, _digests: tuple[Digest, ...]) -> AbstractContextManager[None]:
        return nullcontext()

    async def evaluate(self, round_: int) -> None:
        self.evaluations.begin(Round(round_), SMALL.initial.digest)
        await self.evaluations.finish()

    async def train(self, round_: int) -> None:
        done = await self.worker.run(Train(Round(round_), SMALL.initial.digest), self.path)
        assert isinstance(done, Trained)
        row = np.frombuffer(self.worker.take_output(done.manifest).read_bytes(), dtype="<f4")
        assert (row == np.frombuffer(SMALL.initial_payload, dtype="<f4") + 1).all()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


def play(
    folder: Path,
    evaluate: str,
    scenario: Callable[[EvaluationBench], Coroutine[Any, Any, None]],
    evaluation_s: float = WAIT_S,
) -> EvaluationBench:
    async def whole() -> EvaluationBench:
        bench = EvaluationBench(folder, evaluate, evaluation_s)
        try:
            async with asyncio.timeout(WAIT_S):
                await scenario(bench)
        finally:
            await bench.evaluations.cancel()
            await bench.worker.close()
        return bench

    return asyncio.run(whole())


def test_metrics_of_any_name_reach_log_and_status(tmp_path: Path) -> None:
    evaluate = 'return {"accuracy": 0.5, "loss": np.nan, "round": 9, "event": 1, "a\\nb": 2}'
    bench = play(tmp_path, evaluate, lambda bench: bench.evaluate(3))

    line, warning = bench.lines
    assert (line["event"], line["round"], line["accuracy"]) == ("evaluated", 3, 0.5)
    assert line["seconds"] >= 0
    assert (line["loss"], line["a b"]) == ("nan", 2)
    assert warning["event"] == "evaluate returned a metric that is not finite"
    assert (warning["level"], warning["metrics"]) == ("warning", "loss")
    assert "smaller learning rate" in warning["advice"]
    evaluation = bench.history.evaluation
    assert evaluation is not None
    assert evaluation.round == 3
    assert (evaluation.metrics["accuracy"], evaluation.metrics["loss"]) == (0.5, None)
    assert bench.history.evaluation_error is None


def test_the_number_of_metrics_is_bounded(tmp_path: Path) -> None:
    evaluate = "return {str(number) * 1000: number for number in range(5000)}"
    bench = play(tmp_path, evaluate, lambda bench: bench.evaluate(1))

    assert bench.history.evaluation is not None
    assert len(bench.history.evaluation.metrics) <= METRICS_MAX
    assert len(msgspec.json.encode(bench.history.evaluation)) < 10_000


@pytest.mark.parametrize(
    ("evaluate", "why"),
    [
        ('raise ValueError("no test data")', "ValueError: no test data"),
        ("return None", "evaluate returned its metrics as a NoneType"),
        ('return {"loss": "low"}', "metric 'loss' as a str"),
        ('return {"loss": 10**400}', "OverflowError"),
    ],
)
def test_a_failed_evaluation_is_reported_and_the_next_model_is_evaluated(
    tmp_path: Path, evaluate: str, why: str
) -> None:
    async def scenario(bench: EvaluationBench) -> None:
        await bench.train(1)
        await bench.evaluate(0)
        assert why in str(bench.worker.last_error)
        assert why in str(bench.history.evaluation_error)
        await bench.train(2)
        await bench.evaluate(1)
        assert bench.history.evaluation is not None
        assert bench.history.evaluation.round == 1
        assert bench.history.evaluation_error is None
        assert bench.worker.starts == 1  # the process and its state survive

    once = f'if self.calls == 1:\n    {evaluate}\nreturn {{"calls": self.calls}}'
    bench = play(tmp_path, once, scenario)
    assert [line["event"] for line in bench.lines] == [
        "the model could not be evaluated",
        "evaluated",
    ]


@pytest.mark.parametrize(
    ("evaluate", "why"),
    [("while True: time.sleep(0.01)", "took longer than 0.2 s"), ("os._exit(3)", "status 3")],
)
def test_an_evaluation_that_hangs_or_dies_is_the_last_and_training_continues(
    tmp_path: Path, evaluate: str, why: str
) -> None:
    async def scenario(bench: EvaluationBench) -> None:
        await bench.train(1)
        await bench.evaluate(0)
        assert why in str(bench.worker.last_error)
        await bench.train(2)
        await bench.evaluate(1)
        await bench.train(3)
        assert bench.worker.starts == 2

    bench = play(tmp_path, evaluate, scenario, evaluation_s=0.2)
    assert "until the node starts again" in str(bench.history.evaluation_error)
    assert len(bench.lines) == 1


def test_training_interrupts_an_evaluation_which_restarts_in_the_next_gap(
    tmp_path: Path,
) -> None:
    """The evaluation waits for a file that exists only after the training: no gap, no metrics."""
    gate = tmp_path / "trained"

    async def scenario(bench: EvaluationBench) -> None:
        await bench.train(1)
        bench.evaluations.begin(Round(0), SMALL.initial.digest)
        while not (tmp_path / "evaluating").exists():
            await asyncio.sleep(0)
        await bench.train(2)
        assert bench.history.evaluation is None
        gate.touch()
        await bench.evaluations.finish()
        assert bench.worker.starts == 1  # interrupted, not killed

    wait = (
        f'open({str(tmp_path / "evaluating")!r}, "w").close()\n'
        "try:\n"
        f"    while not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
        "except Exception: pass\n"  # the client's own handler does not catch it
        'return {"calls": self.calls}'
    )
    bench = play(tmp_path, wait, scenario)
    assert bench.history.evaluation is not None
    assert bench.history.evaluation.metrics == {"calls": 2}
    assert [line["event"] for line in bench.lines] == ["evaluated"]


def test_only_the_newest_models_wait_for_evaluation(tmp_path: Path) -> None:
    async def scenario(bench: EvaluationBench) -> None:
        for round_ in range(9):
            bench.evaluations.begin(Round(round_), SMALL.initial.digest)
        await bench.evaluations.finish()

    bench = play(tmp_path, "return {}", scenario)
    assert [line["round"] for line in bench.lines] == [7, 8]


def test_a_dropped_model_is_not_evaluated(tmp_path: Path) -> None:
    async def scenario(bench: EvaluationBench) -> None:
        bench.evaluations.begin(Round(0), Digest(bytes(32)))
        await bench.evaluate(1)

    bench = play(tmp_path, "return {}", scenario)
    assert [line["round"] for line in bench.lines] == [1]
