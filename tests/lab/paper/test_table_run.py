"""A table from its cells to its files: interrupted, resumed, repeated, always identical."""

import json
from pathlib import Path

import msgspec
import pytest
from tiny import LEARNING, tiny_table

from defl.engine.book import Engine
from defl.engine.processes import ProcessEngine
from defl.errors import UserError
from defl.lab.experiments.paper.accuracy import AccuracyCell
from defl.lab.experiments.paper.run import (
    CELLS_FILE,
    Line,
    PaperProgress,
    finished,
    run_cells,
    seconds_taken,
)
from support.in_driver import InDriver

FILES = ("table2.csv", "table2.json", "table2.md", "table2.svg", "table2.png")


def silent(_: PaperProgress) -> None:
    pass


def write_table(
    folder: Path, *, on_progress=silent, resume: bool = False, engine: Engine | None = None
) -> list[bytes]:
    part = tiny_table()
    results = run_cells(
        part.cells(),
        folder,
        None,
        engine=engine or InDriver(),
        resume=resume,
        on_progress=on_progress,
    )
    part.write(results, folder)
    return [(folder / name).read_bytes() for name in FILES]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return write_table(tmp_path_factory.mktemp("whole"))


def test_interrupted_and_resumed_table_is_identical(whole: list[bytes], tmp_path: Path) -> None:
    def stop_after_three(progress: PaperProgress) -> None:
        if progress.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_table(tmp_path, on_progress=stop_after_three)
    with (tmp_path / CELLS_FILE).open("ab") as log:
        log.write(b'{"cell":{"type":"accuracy","sys')
    steps: list[PaperProgress] = []
    resumed = write_table(tmp_path, on_progress=steps.append, resume=True)

    assert (steps[0].done, steps[0].total) == (3, 8)
    assert [progress.done for progress in steps[1:]] == [4, 5, 6, 7, 8]
    assert steps[-1].left_s == 0
    assert resumed == whole


def test_table_depends_on_the_seed_alone(whole: list[bytes], tmp_path: Path) -> None:
    assert write_table(tmp_path) == whole

    [cell, *_] = tiny_table().cells()
    assert isinstance(cell, AccuracyCell)
    assert msgspec.structs.replace(cell, seed=2).run(None) != cell.run(None)


def test_time_of_a_cell_is_stored_but_not_part_of_the_table(tmp_path: Path) -> None:
    cells = tiny_table().cells()[:2]
    run_cells(cells, tmp_path, None, engine=InDriver(), resume=False, on_progress=silent)
    log = tmp_path / CELLS_FILE
    [first, second] = [line for line in log.read_bytes().splitlines() if line]
    older = msgspec.structs.replace(msgspec.json.decode(second, type=Line), seconds=None)
    log.write_bytes(first + b"\n" + msgspec.json.encode(older) + b"\n")

    assert list(seconds_taken(tmp_path)) == cells[:1]
    assert seconds_taken(tmp_path)[cells[0]] > 0
    assert list(finished(tmp_path)) == cells


def test_two_processes_write_the_same_table_as_one(whole: list[bytes], tmp_path: Path) -> None:
    assert write_table(tmp_path, engine=ProcessEngine(2)) == whole


def test_without_resume_every_cell_is_measured_again_and_the_later_line_counts(
    tmp_path: Path,
) -> None:
    [cell, *_] = tiny_table().cells()
    results = run_cells([cell], tmp_path, None, engine=InDriver(), resume=False, on_progress=silent)
    altered = msgspec.structs.replace(results[cell], accuracy=0.123)
    (tmp_path / CELLS_FILE).write_bytes(msgspec.json.encode(Line(cell, altered)) + b"\n")

    kept = run_cells([cell], tmp_path, None, engine=InDriver(), resume=True, on_progress=silent)
    anew = run_cells([cell], tmp_path, None, engine=InDriver(), resume=False, on_progress=silent)

    assert kept[cell] == altered
    assert anew[cell] == results[cell] == finished(tmp_path)[cell]


def test_cells_with_other_settings_are_distinct(tmp_path: Path) -> None:
    [cell, *_] = tiny_table().cells()
    assert isinstance(cell, AccuracyCell)
    run_cells([cell], tmp_path, None, engine=InDriver(), resume=False, on_progress=silent)
    known = finished(tmp_path)

    assert cell in known
    for other in (
        msgspec.structs.replace(cell, seed=2),
        msgspec.structs.replace(cell, rule="krum"),
        msgspec.structs.replace(
            cell, learning=LEARNING.__class__("digits", "mlp-32", "sgd", 1, 8, 4)
        ),
    ):
        assert other not in known


def test_json_lists_cells_with_the_papers_number_beside_ours(
    whole: list[bytes],
) -> None:
    cells = json.loads(whole[1])

    assert len(cells) == 8
    assert {"dataset", "setting", "system", "accuracy", "paper", "repeats"} <= set(cells[0])
    [attacked] = [
        cell for cell in cells if cell["setting"] == "3+1 (beta=0.25)" and cell["system"] == "defl"
    ]
    assert attacked["paper"] == 0.881
    assert attacked["repeats"] == 1
    assert 0.1 < attacked["accuracy"] <= 1


def test_repeats_have_distinct_seeds_and_give_a_mean_and_a_spread(tmp_path: Path) -> None:
    part = tiny_table(repeats=2)
    cells = part.cells()
    results = run_cells(cells, tmp_path, None, engine=InDriver(), resume=False, on_progress=silent)
    entries = part.write(results, tmp_path)

    assert len({cell.seed for cell in cells if isinstance(cell, AccuracyCell)}) == 2
    assert len(cells) == 16
    both = [results[cell].accuracy for cell in (cells[0], cells[8])]  # repeat by repeat
    assert entries[0]["accuracy"] == pytest.approx(sum(both) / 2)
    assert entries[0]["spread"] == pytest.approx(abs(both[0] - both[1]) / 2**0.5)
    assert " ± " in (tmp_path / "table2.md").read_text(encoding="utf-8")


def test_unknown_model_is_refused_with_a_list_of_known_ones(tmp_path: Path) -> None:
    [cell, *_] = tiny_table().cells()
    assert isinstance(cell, AccuracyCell)
    learning = LEARNING.__class__("digits", "resnet", "sgd", 1, 8, 4)
    with pytest.raises(UserError, match="densenet-bc-100"):
        msgspec.structs.replace(cell, learning=learning).run(None)
