"""Which tests are slow, and which run on both event loops.

`make test-fast` leaves the slow ones out: real processes, long simulations. A file is listed here
when its tests are slow together; a single slow test in a quick file carries the marker itself.
"""

import asyncio
import gc
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SLOW_FILES = {
    "aggregation/test_properties.py",
    "aggregation/test_reputation.py",
    "aggregation/test_same_bits.py",
    "browser/test_dense_page.py",
    "browser/test_federation_page.py",
    "browser/test_sample_pages.py",
    "clients/test_export_torch.py",
    "clients/test_flower.py",
    "clients/test_misbehaviour.py",
    "clients/test_new.py",
    "clients/test_torchrun.py",
    "lab/baselines/test_counts.py",
    "lab/baselines/test_processes.py",
    "lab/models/test_learner.py",
    "lab/paper/test_costs.py",
    "lab/paper/test_merges.py",
    "lab/paper/test_paper_command.py",
    "lab/paper/test_table_run.py",
    "test_api_page.py",
    "test_bench.py",
    "test_bit_rot.py",
    "test_bounded_work.py",
    "test_demo.py",
    "test_doc_commands.py",
    "test_engine_orphans.py",
    "test_engine_processes.py",
    "test_epoch_processes.py",
    "test_epochs_kills.py",
    "test_examples.py",
    "test_file_bombs.py",
    "test_full_disk.py",
    "test_hostile_members.py",
    "test_left_behind.py",
    "test_node.py",
    "test_operating.py",
    "test_restart_model.py",
    "test_relay_processes.py",
    "test_running.py",
    "test_soak.py",
    "test_strangers.py",
    "test_tracking.py",
    "test_twins.py",
    "test_two_copies.py",
    "test_wheel.py",
    "test_worker_failures.py",
}


def pytest_configure() -> None:
    missing = [name for name in sorted(SLOW_FILES) if not (HERE / name).exists()]
    if missing:
        raise pytest.UsageError(f"tests/conftest.py lists files that do not exist: {missing}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(HERE).as_posix() in SLOW_FILES:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    # What the collection loaded stays: half a million objects that no search for cycles need visit.
    gc.collect()
    gc.freeze()


@pytest.fixture(params=["asyncio", "uvloop"])
def on_both_loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`asyncio.run` uses each of the loops that a node may run on."""
    # The environment with an old Flower has no uvloop, and none of these tests.
    loops = asyncio if request.param == "asyncio" else pytest.importorskip("uvloop")

    def run(scenario: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=loops.new_event_loop) as runner:
            return runner.run(scenario)

    monkeypatch.setattr(asyncio, "run", run)
