"""Compiled loops are cached in a writable place, and loaded before the first round if at all."""

import asyncio
from pathlib import Path

import pytest

from defl.aggregation import kernels_numba, kernels_numpy
from defl.aggregation.kernels import NUMBERS_COMPILED_MIN, best, compiled
from defl.node.work import compiled_code
from defl.node.work.compiled_code import FOLDER, SETTING, cache_settings, is_writable
from defl.node.work.worker import Worker
from support.builders import Small

LOAD_S = 60.0  # takes one or two on an idle machine


def blocked(tmp_path: Path) -> Path:
    """No folder can be created below a file, not even by a superuser."""
    file = tmp_path / "blocked"
    file.write_bytes(b"")
    return file


def test_compiled_code_goes_to_the_nodes_folder_only_if_no_other_place_is_writable(
    tmp_path: Path,
) -> None:
    nowhere = blocked(tmp_path)
    state, writable = tmp_path / "state", str(tmp_path / "home")
    kept = {SETTING: str(state / FOLDER)}
    assert cache_settings({"HOME": str(nowhere)}, state, nowhere) == kept
    assert cache_settings({"HOME": str(nowhere)}, state, tmp_path) == {}
    assert cache_settings({"HOME": writable}, state, nowhere) == {}
    below = {"HOME": str(nowhere), "XDG_CACHE_HOME": writable}
    assert cache_settings(below, state, nowhere) == {}
    chosen = {"HOME": str(nowhere), SETTING: "/chosen/by/the/user"}
    assert cache_settings(chosen, state, nowhere) == {}


def test_a_folder_that_could_be_created_counts_as_writable(tmp_path: Path) -> None:
    assert is_writable(tmp_path / "new" / "newer")
    assert not is_writable(blocked(tmp_path) / "new")


def test_the_arithmetic_process_loads_compiled_code_before_its_first_request(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        large = Small(real=False, values=NUMBERS_COMPILED_MIN, chunk_bytes=2**22)
        worker = Worker(None, tmp_path, large.federation)
        try:
            await worker.start()
            maps = Path(f"/proc/{worker.pids[1]}/maps")
            async with asyncio.timeout(LOAD_S):
                while "llvmlite" not in maps.read_text(encoding="utf-8"):
                    await asyncio.sleep(0.01)
        finally:
            await worker.close()

    asyncio.run(scenario())


def test_rounds_of_small_models_do_not_load_the_compiled_loops() -> None:
    compiled.cache_clear()  # as in a new process
    assert best(NUMBERS_COMPILED_MIN - 1) is kernels_numpy
    assert best(NUMBERS_COMPILED_MIN) is kernels_numba
    assert best(1) is kernels_numba, "once they are loaded"


def test_only_the_arithmetic_process_gets_the_cache_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SETTING, raising=False)
    monkeypatch.setattr(compiled_code, "is_writable", lambda _place: False)

    async def scenario() -> None:
        worker = Worker(None, tmp_path, Small(real=False).federation)
        try:
            await worker.start()
            client, own = (
                Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in worker.pids
            )
            setting = f"{SETTING}={tmp_path / FOLDER}".encode()
            assert setting in own
            assert setting not in client
        finally:
            await worker.close()

    asyncio.run(scenario())
