"""A cell that was interrupted resumes with what its nodes have trained already."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tiny import SETTING

from defl.ids import NodeId, Round
from defl.lab.experiments.paper import checkpoints
from defl.lab.experiments.paper.accuracy import AccuracyCell
from defl.lab.experiments.paper.checkpoints import CheckpointFolder
from defl.lab.models.learner import TaskLearner


class Interrupted(Exception):
    pass


def trainings(monkeypatch: pytest.MonkeyPatch, count_max: int) -> list[int]:
    """Counts what nodes train from now on, and interrupts the run after some."""
    counted: list[int] = []
    honest = TaskLearner._batches

    def batches(learner, part, rng):
        if len(counted) == count_max:
            raise Interrupted
        counted.append(1)
        return honest(learner, part, rng)

    monkeypatch.setattr(TaskLearner, "_batches", batches)
    return counted


@pytest.mark.parametrize("system", ["fl", "defl"])
def test_interrupted_cell_resumes_and_gives_the_same_result(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEFL_CACHE", str(tmp_path))
    plain = AccuracyCell(system, 4, 1, "sign_flip_2", None, SETTING.learning, 3, 2, 1)
    kept = msgspec.structs.replace(plain, learning=replace(plain.learning, checkpoints=True))
    whole = plain.run(None)
    with monkeypatch.context() as patch:
        trainings(patch, count_max=7)
        with pytest.raises(Interrupted):
            kept.run(None)
    again = trainings(monkeypatch, count_max=100)

    assert kept.run(None) == whole
    assert len(again) == 4 * 3 - 7
    assert list(tmp_path.iterdir()) == []  # the cell is finished


class Counting:
    """A client that counts its trainings."""

    count = 0

    def initial_weights(self):
        return {"w": np.zeros(50, np.float32)}

    def train(self, weights, round_):
        self.count += 1
        return {"w": weights["w"] + round_}, {"loss": 0.5}

    def evaluate(self, _weights):
        return {}


def test_only_whole_checkpoints_of_the_same_code_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEFL_CACHE", str(tmp_path))
    client = Counting()

    def train() -> int:
        """How often the client trained, when asked for one round."""
        before = client.count
        kept = CheckpointFolder(b"a cell").client(client, NodeId(0))
        trained, metrics = kept.train(client.initial_weights(), Round(3))
        assert trained["w"].tolist() == [3.0] * 50
        assert metrics == {"loss": 0.5}
        return client.count - before

    assert [train(), train()] == [1, 0]
    (checkpoint,) = tmp_path.glob("cell-*/*.npz")
    for content in (b"", b"PK", checkpoint.read_bytes()[:-100], checkpoint.read_bytes()[:300]):
        checkpoint.write_bytes(content)
        assert [train(), train()] == [1, 0], content
    monkeypatch.setattr(checkpoints, "code_version", lambda: "the next version")
    assert [train(), train()] == [1, 0]


def test_a_cell_goes_on_when_another_run_has_finished_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEFL_CACHE", str(tmp_path))
    folder, client = CheckpointFolder(b"a cell"), Counting()
    kept = folder.client(client, NodeId(0))
    CheckpointFolder(b"a cell").remove()
    kept.train(client.initial_weights(), Round(1))

    assert client.count == 1
