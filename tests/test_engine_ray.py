"""The engine on a Ray cluster: first on a stand-in for Ray, then on three raylets."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from defl.engine.book import Engine
from defl.engine.choice import opened
from defl.engine.processes import ProcessEngine
from defl.engine.ray_engine import RayEngine
from defl.engine.tasks import EngineTask, perform
from defl.errors import UserError
from defl.lab.experiments import robustness
from support.child_processes import children_of
from support.in_driver import InDriver
from test_engine import small_cell


class FakeRayError(Exception):
    """A worker or its machine was lost."""


class FakeTaskError(FakeRayError):
    """The worker could not even load the function."""


class FakeRay:
    """Runs each call when its answer is asked for; the errors are raised first."""

    exceptions = SimpleNamespace(RayError=FakeRayError, RayTaskError=FakeTaskError)

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.cancelled: list[object] = []

    def remote(self, function: Callable[[bytes], bytes]) -> SimpleNamespace:
        remote = SimpleNamespace(remote=lambda order: (function, order))
        return SimpleNamespace(options=lambda **_: remote)

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def wait(self, references: list[Any]) -> tuple[list[Any], list[Any]]:
        return references[:1], references[1:]

    def get(self, reference: tuple[Callable[[bytes], bytes], bytes]) -> bytes:
        if self._errors:
            raise self._errors.pop()
        return perform(reference[1])

    def cancel(self, reference: object, *, force: bool) -> None:  # noqa: ARG002 - Ray's own
        self.cancelled.append(reference)


def test_cell_that_measures_is_refused_on_a_shared_engine_with_the_reason() -> None:
    measuring = EngineTask("robustness.cell", b"", "figure 2", "memory")
    engine = RayEngine(FakeRay(), 0)
    expected = r"measures memory needs a machine to itself(.|\n)*--engine processes:\nfigure 2"

    with pytest.raises(UserError, match=expected):
        engine.check([small_cell(1), measuring])
    with pytest.raises(UserError, match=expected):
        list(engine.run([measuring]))


def test_cell_of_a_lost_ray_worker_runs_again() -> None:
    tasks = [small_cell(1), small_cell(2)]
    outcomes = list(RayEngine(FakeRay(FakeRayError(), FakeRayError()), 0).run(tasks))

    assert sorted(outcomes, key=str) == sorted(InDriver().run(tasks), key=str)


def test_ray_worker_that_cannot_load_defl_is_refused() -> None:
    ray = FakeRay(FakeTaskError("No module named 'defl'"))

    with pytest.raises(UserError, match=r"same version on each machine(.|\n)*No module named"):
        list(RayEngine(ray, 0).run(map(small_cell, range(3))))
    assert len(ray.cancelled) == 2


@pytest.mark.parametrize("address", ["localhost", "ray://head:10001", "head:port", ":6379"])
def test_address_of_another_form_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="is HOST:PORT"), opened(f"ray:{address}"):
        pass


def test_address_where_nobody_listens_is_refused_at_once() -> None:
    with pytest.raises(UserError, match="no Ray cluster answers at"), opened("ray:127.0.0.1:1"):
        pass


def test_without_ray_the_error_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(UserError, match=r"needs Ray: pip install .*\[ray\]"), opened("ray"):
        pass


def test_gpus_are_refused_without_ray() -> None:
    with pytest.raises(UserError, match="--engine ray"):
        opened("processes:2", gpus_per_task=1)


# --- A real cluster ------------------------------------------------------------------------------

NODE = {"num_cpus": 1, "object_store_memory": 80 * 1024 * 1024}
CELLS = robustness.planned(
    ["fed_avg", "multi_krum"], ["none", "gaussian"], [4], [1, 2, 3], 60, "digits", alphas=[None]
)
GONE_S = 30.0


def descendants() -> set[int]:
    found: set[int] = set()
    front = {os.getpid()}
    while front:
        front = {child for pid in front if alive(pid) for child in children_of(pid)} - found
        found |= front
    return found


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").exists() and bool(Path(f"/proc/{pid}/cmdline").read_bytes())


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Three raylets, and none of their processes left afterwards."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - slow

    before = descendants()
    made = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        for _ in range(2):
            made.add_node(**NODE)
        yield made
        processes = descendants() - before
        assert len(processes) > 3
    finally:
        made.shutdown()
    deadline = time.monotonic() + GONE_S
    while any(map(alive, processes)):
        assert time.monotonic() < deadline, "the cluster left processes behind"


def write_table(folder: Path, engine: Engine, half_way: Callable[[], None]) -> list[object]:
    def progress(done: int, total: int) -> None:
        if done == total // 2:
            half_way()

    robustness.run_table(CELLS, None, folder, engine=engine, progress=progress)
    lines = sorted((folder / "cells.jsonl").read_bytes().splitlines())
    return [
        [line for line in lines if line],
        *((folder / f"robustness.{kind}").read_bytes() for kind in ("csv", "md", "svg")),
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_table_from_three_raylets_of_which_one_is_lost_is_that_of_processes(
    cluster: Any, tmp_path: Path
) -> None:
    [*_, last] = cluster.list_all_nodes()

    def lose_one() -> None:
        cluster.remove_node(last, allow_graceful=False)

    with opened(f"ray:{cluster.address}") as engine:
        on_ray = write_table(tmp_path / "ray", engine, lose_one)
        assert len(cluster.list_all_nodes()) == 2

    assert on_ray == write_table(tmp_path / "processes", ProcessEngine(2), lambda: None)
