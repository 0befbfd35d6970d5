"""A cell that was interrupted resumes with what its nodes have trained already."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tiny import SETTING

from defl.lab.experiments.paper.accuracy import AccuracyCell
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
